"""Checks a store against itself while others use it: `round` goes through all of it once."""
