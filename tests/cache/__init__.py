"""Tests of layouts, slots, codecs, attention and random streams."""
