"""Master and slave: the log from one to the other, and the tables after it."""
