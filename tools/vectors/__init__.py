"""Test vectors of models whose reference code is in the transformers library: tiny random models and what they compute."""
