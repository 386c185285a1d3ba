"""What a user does, as plain functions: run, compare, check, bisect, report."""
