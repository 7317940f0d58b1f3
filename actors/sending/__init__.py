"""From a client's send to the answer: check, append, flush, wait for the replica; and what the
broker sends itself.
"""
