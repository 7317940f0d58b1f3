"""The broker's tables, each with its JSON file: topics, groups, offsets, filters."""
