"""Generated reference text about models and methods."""
