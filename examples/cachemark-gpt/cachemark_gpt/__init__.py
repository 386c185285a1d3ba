"""A model for cachemark: a small GPT over palette colors."""
