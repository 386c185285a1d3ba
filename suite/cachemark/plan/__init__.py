"""Plans: from a TOML file to cases, their price and what of them is done already. Called with a name, this package reads that plan."""

from . import calling as calling  # importing it makes the package one that can be called
