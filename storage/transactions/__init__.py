"""The table of half messages and what became of them, derived from the log: `table`."""
