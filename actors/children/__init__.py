"""What each actor of a broker is given: one file for each floor, in start order."""
