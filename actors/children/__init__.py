"""Construction of a broker's actors: one file for each group, in start order."""
