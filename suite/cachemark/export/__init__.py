"""What leaves the suite: pages, tables and the formats of other programs."""
