"""Results in other formats: tables, frames, charts, and files of other programs."""
