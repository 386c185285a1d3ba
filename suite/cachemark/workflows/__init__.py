"""The application as a library: a module for each task, with typed arguments and results."""
