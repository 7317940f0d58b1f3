"""Requests to brokers and name servers, one at a time: no thread, no event loop.

file           what it does
address.py     host:port, taken apart
local_address.py
                name and address of this machine
sync_connection.py
                a blocking connection: a request, then its answer
tls.py         TLS contexts, made of PEM files
tls_options.py TLS options of a program or the environment
tls_socket.py  a TLS connection that does not block
"""
