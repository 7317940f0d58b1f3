"""Settings that change while the broker runs, the files they come from, and their keys."""
