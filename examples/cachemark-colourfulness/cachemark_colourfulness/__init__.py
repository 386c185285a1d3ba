"""A metric of images for cachemark: colourfulness."""
