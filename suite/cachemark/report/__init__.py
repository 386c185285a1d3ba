"""The HTML report: a pure function from a run and its outcomes to one self-contained file."""
