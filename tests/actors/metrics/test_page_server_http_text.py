"""Tests of actors/metrics/page_server.py: valid and invalid requests."""

from http import HTTPStatus

import pytest

from actors.metrics.page_server import (
    HEAD_BYTES_MAX,
    HttpRefused,
    HttpRequest,
    parse_request,
    refusal,
    response_head,
)


def test_a_request_is_read_once_its_head_is_complete() -> None:
    whole = (
        b"GET /metrics?collect=client&x=1 HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip, br\r\n\r\n"
    )
    for end in range(len(whole)):
        assert parse_request(whole[:end]) is None
    wanted = HttpRequest("GET", "/metrics", {"collect": "client", "x": "1"}, takes_gzip=True)
    assert parse_request(whole) == parse_request(whole + b"more") == wanted


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /metrics\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /metrics SMTP/1.0\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET http://[x HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /?" + b"a=1&" * 17 + b" HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"POST /metrics HTTP/1.1\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"x" * (HEAD_BYTES_MAX + 1), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
def test_an_invalid_http_request_is_refused(data: bytes, status: HTTPStatus) -> None:
    with pytest.raises(HttpRefused) as refused:
        parse_request(data)
    assert refused.value.status is status
    assert refusal(refused.value).startswith(b"HTTP/1.1 %d " % status.value)


def test_an_answer_has_its_length_and_closes_the_connection() -> None:
    head = response_head(HTTPStatus.OK, 5, "text/plain", is_gzip=True).decode()
    assert head.startswith("HTTP/1.1 200 OK\r\n") and head.endswith("\r\n\r\n")
    for line in ("Content-Length: 5", "Connection: close", "Content-Encoding: gzip"):
        assert line in head.split("\r\n")
