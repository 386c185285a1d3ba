"""Tools of the project itself, which the wheel leaves out: training, cards, figures that papers print."""
