"""Engines that run the passes of a generation: eagerly, or recorded once and replayed."""
