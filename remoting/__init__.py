"""Requests to brokers and name servers, one at a time: no thread, no event loop.

file           what it does
address.py     host:port, taken apart
line.py        one blocking connection: a request, then its answer
"""
