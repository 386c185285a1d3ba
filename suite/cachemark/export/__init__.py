"""Results in other formats: tables, frames, figures, and the files of other programs."""
