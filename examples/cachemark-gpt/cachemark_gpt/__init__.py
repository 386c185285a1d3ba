"""A model for cachemark: a small GPT that draws colours."""
