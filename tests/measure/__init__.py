"""Tests of measuring, and the small model that they and the tests of the command line measure."""
