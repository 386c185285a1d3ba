"""Parts of the next-scale methods that treat heads or layers apart: what they measure of a model, and the plans that follow."""
