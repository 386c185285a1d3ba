"""The report as HTML: pages and sites."""
