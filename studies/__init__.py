"""Scripts behind the numbers of the documents, and the values that they measured. Run one with ``python -m studies.NAME``."""
