"""What a model and a method promise one another."""
