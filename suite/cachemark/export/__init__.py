"""Results in other formats: tables, frames, figures, and files of other programs."""
