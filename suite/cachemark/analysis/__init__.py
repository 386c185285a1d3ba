"""The report as data: a run and its outcomes in, frozen dataclasses out."""
