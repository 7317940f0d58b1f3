"""Changes by subject: clusters, offsets, messages, access control, and the console itself.

Each module registers its changes with changes.py when it is imported.
"""
