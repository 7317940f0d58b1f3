"""Counters: of sends, pulls, topics and groups."""
