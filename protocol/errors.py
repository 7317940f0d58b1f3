"""Errors of the wire, by the side at fault."""


class ProtocolError(Exception):
    """Failure with a response code and a sentence for the peer."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark


class RemoteError(ProtocolError):
    """Error of the peer, answered with `code` and `remark`."""


class LimitReached(RemoteError):
    """Limit of this side reached. `kind`, a name in the code, is for the operator."""

    def __init__(self, code: int, remark: str, kind: str) -> None:
        super().__init__(code, remark)
        self.kind = kind


class FrameError(RemoteError):
    """Unusable stream: close the connection, as 4.9.7 does."""


class FrameTooLong(FrameError):
    """Frame longer than this side accepts; `frame_bytes` includes the length field."""

    def __init__(self, code: int, remark: str, frame_bytes: int) -> None:
        super().__init__(code, remark)
        self.frame_bytes = frame_bytes
