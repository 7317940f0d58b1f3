"""The attempts of docs/security.md, really made, against official servers and ours.

`python -m tests.security.outcomes [A7 A12 …]` starts both kinds, makes the attempts at counts that
take seconds, and prints a table of what happened. It needs a JDK and Maven, as interop does.

    peers       a client that shows what became of what it sent
    sides       the servers of one kind: plain, with accounts, with TLS
    reading     what is read: frames, headers, bodies, expressions, names, settings
    rights      accounts and signatures
    servers     name servers, replication, connections, TLS, a prepared store
    clients     hostile servers of ours, and what commands of both kinds make of their answers
"""
