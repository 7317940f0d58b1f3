"""Fuzz runs over every decoder, each in a process of its own: CONTRIBUTING.md, Attempts."""
