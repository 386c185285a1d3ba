"""One file per schema version, numbered; a released one is never edited."""
