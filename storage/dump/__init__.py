"""Readable output for any file of a store; `any_file` recognizes it by path or content."""
