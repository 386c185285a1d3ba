"""Layouts, slots, codecs, the attention function and the method interface."""
