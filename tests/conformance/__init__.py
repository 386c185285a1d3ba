"""Models against stored outputs of the official code."""
