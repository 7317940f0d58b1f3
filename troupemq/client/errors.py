"""Errors that a user of the client may have to catch, all below one class."""

from collections.abc import Callable
from typing import TypeVar

from protocol.codes import ResponseCode
from protocol.errors import RemoteError

Data = TypeVar("Data")
Value = TypeVar("Value")


class ClientError(Exception):
    """Something that the client was asked for did not happen; the text says what and why."""


class ClientClosed(ClientError):
    """The producer or consumer was not started yet, or is stopped."""


class ClientBusy(ClientError):
    """Too much is under way already; nothing was sent."""


class ConnectionFailed(ClientError):
    """No connection to the address, or it broke before the answer came.

    A request that was on its way may have been carried out.
    """


class RequestTimeout(ClientError):
    """No answer in time. The request may have been carried out all the same."""


class RouteNotFound(ClientError):
    """No name server knows where this topic, or this broker, is."""


class MessageNotFound(ClientError):
    """No broker that was asked has this message."""


class ArgumentIllegal(ClientError, ValueError):
    """What was passed is not what was asked for; nothing was done."""


class MessageIllegal(ArgumentIllegal):
    """A message that no broker would take, or that another client could not read."""


class QueueChoiceFailed(ClientError):
    """The application's own choice of a queue raised something; it is the cause of this error."""


class ResultUnknown(ClientError, TypeError):
    """A function of the application returned something that has no meaning."""


class BrokerError(ClientError):
    """The other side answered that it would not; `code` and `remark` are its own."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        self.code = code
        self.remark = remark or ""
        self.address = address
        super().__init__(f"{address} answered {code_name(code)}: {self.remark or 'no remark'}")

    def __reduce__(self) -> tuple[type["BrokerError"], tuple[int, str, str]]:
        """Copies and pickles are made of the same three."""
        return type(self), (self.code, self.remark, self.address)


class BadAnswer(ClientError):
    """The other side answered something that cannot be understood."""


def understood(decode: Callable[[Data], Value], data: Data) -> Value:
    """What `decode` makes of an answer. Raises BadAnswer where it makes nothing of it."""
    try:
        return decode(data)
    except RemoteError as error:
        raise BadAnswer(f"an answer that cannot be understood: {error.remark}") from None


def code_name(code: int) -> str:
    """The response code in words where it has any."""
    known = ResponseCode._value2member_map_.get(code)
    return known.name if isinstance(known, ResponseCode) else f"code {code}"
