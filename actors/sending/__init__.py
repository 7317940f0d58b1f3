"""Sending: check, append, flush, wait for the replica, answer; and the messages that the
broker sends itself.

The path of a send, from file to file: put_message.py.
"""
