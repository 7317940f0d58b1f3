"""Connections, frames and requests: from the socket to the actor that serves a request code,
and back.
"""
