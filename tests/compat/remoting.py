"""Asks a server one question in the plainest form of the protocol, by code of its own.

A frame, integers big-endian:

    offset  size  type  field
    0       4     i32   total         bytes after this field
    4       4     i32   header_bytes  the high byte is the serialisation: 0 = JSON
    8       n     utf8  header        JSON
    8+n           -     body
"""

import hmac
import json
import socket
from base64 import b64encode
from dataclasses import dataclass
from ssl import SSLContext
from struct import Struct
from typing import Any

QUERY_MESSAGE = 12
QUERY_CONSUMER_OFFSET = 14
GET_ROUTEINFO_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106
SUCCESS = 0
VERSION = 407
TIMEOUT_S = 5.0

_LENGTHS = Struct(
    ">i"  # total
    "i"  # header_bytes
)
_TOTAL = Struct(">i")


@dataclass(frozen=True)
class Answer:
    """Response to one request."""

    code: int
    remark: str | None
    fields: dict[str, str] | None
    body: bytes


def ask(
    address: str, code: int, fields: dict[str, str] | None = None, tls: SSLContext | None = None
) -> tuple[int, bytes]:
    """Return code and body of one request on its own connection; OSError without an answer."""
    answer = exchange(address, code, fields or None, tls=tls)
    return answer.code, answer.body


def exchange(
    address: str,
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    tls: SSLContext | None = None,
) -> Answer:
    """Return the response to one request on its own connection; OSError without an answer."""
    header = json.dumps(
        {"code": code, "language": "OTHER", "version": VERSION, "opaque": 1, "flag": 0}
        | ({} if fields is None else {"extFields": fields})
    ).encode()
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    with (
        connection
        if tls is None
        else tls.wrap_socket(connection, server_hostname=host) as connection
    ):
        total = _LENGTHS.size - _TOTAL.size + len(header) + len(body)
        connection.sendall(_LENGTHS.pack(total, len(header)) + header + body)
        (answer_bytes,) = _TOTAL.unpack(_exactly(connection, _TOTAL.size))
        answer = _exactly(connection, answer_bytes)
    (header_bytes,) = _TOTAL.unpack_from(answer)
    body_at = _TOTAL.size + header_bytes
    found: dict[str, Any] = json.loads(answer[_TOTAL.size : body_at])
    return Answer(int(found["code"]), found.get("remark"), found.get("extFields"), answer[body_at:])


def has_route(
    name_server: str,
    topic: str,
    account: tuple[str, str] | None = None,
    tls: SSLContext | None = None,
) -> bool:
    """Asked as an account, key and secret, where there is access control."""
    fields = {"topic": topic} if account is None else signed(*account, topic=topic)
    code, _ = ask(name_server, GET_ROUTEINFO_BY_TOPIC, fields, tls)
    return code == SUCCESS


def knows_broker(
    name_server: str,
    address: str,
    account: tuple[str, str] | None = None,
    tls: SSLContext | None = None,
) -> bool:
    """True once the broker at `address` is registered; False while the name server is not up.

    Asked as an account, key and secret, where there is access control.
    """
    fields = None if account is None else signed(*account)
    try:
        code, body = ask(name_server, GET_BROKER_CLUSTER_INFO, fields, tls)
    except OSError:
        return False
    return code == SUCCESS and f'"{address}"'.encode() in body


def stored_offset(
    address: str, group: str, topic: str, queue_id: int, account: tuple[str, str] | None = None
) -> int:
    """Return a group's committed offset; 0 also for a young queue without one."""
    queue = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    if account is not None:
        queue = signed(*account, **queue)
    answer = exchange(address, QUERY_CONSUMER_OFFSET, queue)
    return int((answer.fields or {}).get("offset", 0))


def has_key(address: str, topic: str, key: str) -> bool:
    """Whether the index has a message of that key: it follows the log."""
    times = {"beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    code, _ = ask(address, QUERY_MESSAGE, {"topic": topic, "key": key, "maxNum": "1", **times})
    return code == SUCCESS


def signed(access_key: str, secret: str, **own: str) -> dict[str, str]:
    """The fields of a request without a body; its own are given by name, in the order of these."""
    content = access_key + "".join(own[name] for name in sorted(own))
    made = hmac.digest(secret.encode(), content.encode(), "sha1")
    return {**own, "AccessKey": access_key, "Signature": b64encode(made).decode()}


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the server closed the connection in the middle of an answer")
        data += more
    return data
