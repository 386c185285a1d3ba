"""Engines that run the passes of a generation: eagerly, or captured and replayed."""
