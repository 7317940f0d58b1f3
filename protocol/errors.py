"""Errors of the wire, told apart by whose fault they are."""


class ProtocolError(Exception):
    """A failure that has a response code and a sentence for the other side."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark


class RemoteError(ProtocolError):
    """The peer's fault: answered on the wire with `code` and `remark`."""


class LimitReached(RemoteError):
    """More than this side gives to anybody. `kind`, a name in the code, is for its operator."""

    def __init__(self, code: int, remark: str, kind: str) -> None:
        super().__init__(code, remark)
        self.kind = kind


class FrameError(RemoteError):
    """The stream cannot be trusted any more: close the connection, as 4.9.7 does."""


class FrameTooLong(FrameError):
    """A frame that is longer than this side takes; `frame_bytes` with its length field."""

    def __init__(self, code: int, remark: str, frame_bytes: int) -> None:
        super().__init__(code, remark)
        self.frame_bytes = frame_bytes
