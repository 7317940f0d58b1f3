"""Errors of the client, all derived from ClientError."""

from collections.abc import Callable
from typing import Self, TypeVar

from protocol.codes import ResponseCode
from protocol.errors import RemoteError

Data = TypeVar("Data")
Value = TypeVar("Value")


FORKED = "belongs to the process that was forked: make a new one"


class ClientError(Exception):
    """Base of all errors of the client; the text says what failed and why."""

    def __copy__(self) -> Self:
        """Return a copy with notes of its own, for one of several calls that fail together."""
        made = type(self).__new__(type(self), *self.args)
        made.__dict__.update(self.__dict__)
        if notes := getattr(self, "__notes__", None):
            made.__notes__ = [*notes]
        return made


class ClientClosed(ClientError):
    """The producer or consumer is not started yet, or is stopped."""


class ClientBusy(ClientError):
    """A limit on in-flight sends or unsent bytes is reached; nothing was sent."""


class ConnectionFailed(ClientError):
    """The connection could not be opened, or broke before the answer.

    The server may have carried out a request that was already sent.
    """


class RequestTimeout(ClientError, TimeoutError):
    """No answer arrived within the timeout; the server may have carried out the request.

    It is a TimeoutError, too, as that of `asyncio.timeout` is.
    """


class RouteNotFound(ClientError):
    """No name server has a route of the topic, or an address of the broker."""


class MessageNotFound(ClientError):
    """None of the brokers that were asked has the message."""


class ArgumentIllegal(ClientError, ValueError):
    """An argument is invalid; the call had no effect."""


class MessageIllegal(ArgumentIllegal):
    """A message is invalid: brokers would reject it, or other clients could not read it."""


class QueueChoiceFailed(ClientError):
    """The application's queue choice failed; its exception, if any, is the `__cause__`."""


class NotSupported(ClientError):
    """The broker's version does not know this request."""


class DeliverySettled(ClientError):
    """The delivery was acknowledged or given back before."""


class DeliveryExpired(ClientError):
    """The broker no longer holds the message: it is delivered again, or was settled."""


class ResultUnknown(ClientError, TypeError):
    """A callback of the application returned a value without a meaning."""


class BrokerError(ClientError):
    """A server answered with an error; `code` and `remark` are from its answer."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        self.code = code
        self.remark = remark or ""
        self.address = address
        super().__init__(f"{address} answered {code_name(code)}: {self.remark or 'no remark'}")

    def __reduce__(self) -> tuple[type["BrokerError"], tuple[int, str, str]]:
        """Make pickles from the arguments of `__init__`."""
        return type(self), (self.code, self.remark, self.address)


class BadAnswer(ClientError):
    """A server's answer cannot be decoded."""


def understood(decode: Callable[[Data], Value], data: Data) -> Value:
    """Return `decode(data)`. Raises BadAnswer for data that it cannot decode."""
    try:
        return decode(data)
    except RemoteError as error:
        raise BadAnswer(f"an answer that cannot be understood: {error.remark}") from None


def code_name(code: int) -> str:
    """Return the name of a response code, or "code <number>" for an unknown one."""
    known = ResponseCode._value2member_map_.get(code)
    return known.name if isinstance(known, ResponseCode) else f"code {code}"
