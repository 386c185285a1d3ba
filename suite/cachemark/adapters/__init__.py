"""Cache methods inside models of other libraries."""
