"""The parts of the documentation site that are made when it is built. ``docs/hooks.py`` hands them to mkdocs."""
