"""What can go wrong on the wire, told apart by whose fault it is."""


class ProtocolError(Exception):
    """A failure that has a response code and a sentence for the other side."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark


class RemoteError(ProtocolError):
    """The peer's fault: answered on the wire with `code` and `remark`."""


class LocalError(ProtocolError):
    """Ours: the peer is told, and we have something to repair."""


class FrameError(RemoteError):
    """The stream cannot be trusted any more: close the connection, as 4.9.7 does."""
