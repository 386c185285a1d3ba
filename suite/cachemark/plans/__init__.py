"""Plans: from a TOML file to cases, their price and what of them is done already."""
