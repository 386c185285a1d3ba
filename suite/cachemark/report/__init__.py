"""HTML report: a pure function from a run and its results to one self-contained file."""
