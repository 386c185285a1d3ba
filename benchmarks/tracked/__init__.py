"""The asv suite: it follows the speed of the code itself over its commits. Histories of measured plans come from `export asv`."""
