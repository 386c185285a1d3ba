"""Methods that keep everything and measure a model: calibrations and profiles."""
