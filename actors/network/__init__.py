"""Connections and requests: from a socket to the actor that serves a request code, and back.

    Acceptor      → Connections, TlsNegotiator    Accepted
    TlsNegotiator → Handshakes                    StepHandshake; HandshakeStepped is the answer
    TlsNegotiator → Connections                   Accepted, with a TLS socket
    Connection    → PutMessage                    Sends: all sends of one read
    Connection    → the actor of a code           Request; that actor answers through its peer
    Connection    → ClientCalls                   ClientAnswer
    Connection    → Connections                   PeerLeft, before its end
    Connection    → actors that know the peer     PeerClosed, at its end
    Connections   → Connection                    CopyOut, StopReading, Close
    CleanFiles    → Connections                   CopyOut
    any actor     → LongAnswers                   LongAnswer
    any actor     → ClientCalls                   CallClient; CallDone is the answer
    ReplyMessage  → Clients                       AskProducer; CallDone or NoProducer is the answer
    HaSlave       → Dialler                       Dial; Dialed is the answer

The messages are in messages.py, and Accepted in connections.py. The format of the bytes is in
protocol/stream.py.
"""
