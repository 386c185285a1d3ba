"""The similarity by which AMS-KV decides, and a profile of a model that shows it."""
