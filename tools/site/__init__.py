"""Generated parts of the documentation site, used by ``docs/hooks.py``."""
