"""Test vectors of models with reference code in the transformers library: tiny random models and outputs."""
