"""Tools of the project itself, not part of the wheel: training, cards."""
