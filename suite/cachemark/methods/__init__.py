"""Cache methods, one per file."""
