"""Prints any file of a store for a human: `any_file` knows them by place or content."""
