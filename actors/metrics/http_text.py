r"""HTTP/1.1 requests and responses for scrapes: GET and HEAD, one request per connection.

GET /metrics?collect=own HTTP/1.1 \\r\\n  name: value \\r\\n  …  \\r\\n
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

HEAD_BYTES_MAX = 8 << 10
PLAIN = "text/plain; charset=utf-8"
_END = b"\r\n\r\n"
_WORDS = 3
_QUERY_FIELDS_MAX = 16


class HttpRefused(Exception):
    """Request to refuse with `status` and the sentence `why`."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    takes_gzip: bool = False
    host: str | None = field(default=None, compare=False)
    """Value of the Host header, or None."""


def parse_request(data: bytes) -> HttpRequest | None:
    """Return the request at the start of `data`, or None if its head is incomplete.

    Raises HttpRefused if the request is invalid.
    """
    head, end, _ = data.partition(_END)
    if not end:
        if len(data) > HEAD_BYTES_MAX:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise HttpRefused(status, f"request head exceeds {HEAD_BYTES_MAX} bytes")
        return None
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != _WORDS or not words[2].startswith("HTTP/1."):
        raise HttpRefused(HTTPStatus.BAD_REQUEST, "invalid request line")
    method, target, _ = words
    if method not in ("GET", "HEAD"):
        raise HttpRefused(HTTPStatus.METHOD_NOT_ALLOWED, "method not supported: use GET or HEAD")
    headers = _headers(lines[1:])
    try:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, max_num_fields=_QUERY_FIELDS_MAX))
    except ValueError:
        raise HttpRefused(HTTPStatus.BAD_REQUEST, "invalid URL") from None
    takes_gzip = "gzip" in headers.get("accept-encoding", "").lower()
    return HttpRequest(method, parts.path, query, takes_gzip, headers.get("host"))


def _headers(lines: list[str]) -> Mapping[str, str]:
    found = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise HttpRefused(HTTPStatus.BAD_REQUEST, "invalid header line: the colon is missing")
        found[name.strip().lower()] = value.strip()
    return found


def response_head(
    status: HTTPStatus, body_bytes: int, content_type: str = PLAIN, *, is_gzip: bool = False
) -> bytes:
    """Return the status line and the headers."""
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {body_bytes}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if is_gzip:
        lines.append("Content-Encoding: gzip")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def refusal(error: HttpRefused) -> bytes:
    """Return a whole response that states the reason."""
    body = f"{error.why}\n".encode()
    return response_head(error.status, len(body)) + body
