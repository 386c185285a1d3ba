"""Facts measured of a model's weights: calibrations of methods, and profiles for `cachemark profile`."""
