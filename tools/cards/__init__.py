"""The pages about models and methods."""
