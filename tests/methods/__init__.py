"""Each method against a second implementation of its rules, and its parameters."""
