"""HTML pages and sites."""
