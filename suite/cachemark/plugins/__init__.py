"""Files outside this package that bring methods, models, decoders and metrics."""
