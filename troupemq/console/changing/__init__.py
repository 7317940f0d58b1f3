"""The changes themselves, by subject: topics and groups, offsets, messages, brokers and the house.

Each module registers its own with changes.py when it is imported.
"""
