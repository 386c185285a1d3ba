"""How the passes of a generation are run: eagerly, or recorded once and replayed."""
