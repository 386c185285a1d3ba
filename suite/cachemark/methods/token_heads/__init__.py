"""Parts of the next-token methods that treat heads apart: what they measure of a model."""
