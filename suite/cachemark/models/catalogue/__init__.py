"""The models that plans can name."""
