"""The models against outputs that the official code gave."""
