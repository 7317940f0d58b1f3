"""The making of a broker's actors: one file for each floor, in start order."""
