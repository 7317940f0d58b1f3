"""The table of half messages and their states, derived from the commit log (`table`)."""
