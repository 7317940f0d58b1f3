"""Connections and requests: from the socket to the actor that serves a request code, and back.

    transport.py     a socket: bytes in, bytes out, and what its peer has not taken yet
    connection.py    the actor of one connection: events of its stream out, answers in
    connections.py   the actors of all of them, and of the ports where they come in
    accepted.py      a new connection on its way there, and its place among them
    entrance.py      the actor at the door of ports that speak TLS: looks at the first byte
    handshakes.py    the actor that does handshakes, and reads certificates anew
    tls_contexts.py  the TLS contexts in force
    service.py       what a port serves: which actor takes which request
    request.py       a request on its way, and the actors that answer requests
    sends.py         the sends of one read on their way, and their answers
    client_calls.py  the broker's own requests to clients
    long_answers.py  bodies that take long to write out
    dial.py          connections that the broker opens
    hooks.py         code of the operator before and after sends and pulls

What is in the bytes: protocol/stream.py.
"""
