"""The search for damage in the background."""
