"""Frames by hand: the usual requests and answers, each with a JSON header and with a binary one.

    int32 bytes that follow | int8 header form | int24 header bytes | header | body

The binary header: int16 code | int8 language | int16 version | int32 opaque | int32 flag, then
the remark and the fields, each after its length in an int32; a field is int16 length | name |
int32 length | value.
"""

import json
from collections.abc import Iterator
from struct import pack
from typing import Any

from tests.support.by_hand.exchanges import EXCHANGES, Exchange

JSON_FORM, BINARY_FORM = "JSON", "ROCKETMQ"
SERVER_VERSION = 407
RESPONSE, ONEWAY = 1, 2
OF_SENDS = ("msgId", "queueId", "queueOffset", "TRACE_ON", "MSG_REGION")
"""The order of these fields in a binary header; a JSON header has them in that of a hash map."""


def frames_by_hand() -> Iterator[dict[str, Any]]:
    """In the shape of the recordings: every exchange in both forms, request before answer."""
    pair = 0
    for form in (JSON_FORM, BINARY_FORM):
        for exchange in EXCHANGES:
            pair += 1
            yield from _of_exchange(exchange, form, pair)


def _of_exchange(exchange: Exchange, form: str, pair: int) -> Iterator[dict[str, Any]]:
    server = "server-" if exchange.is_asked_by_server else ""
    common = {"pair": pair, "to": exchange.to, "client": "by-hand"}
    opaque = 1000 + pair
    is_oneway = exchange.answer is None
    yield common | _frame(
        form,
        opaque,
        exchange.code,
        exchange.fields,
        exchange.body,
        flag=ONEWAY if is_oneway else 0,
        version=exchange.version,
        direction=server + ("oneway" if is_oneway else "request"),
    )
    if exchange.answer is not None:
        code, fields, body, remark = exchange.answer
        yield common | _frame(
            form,
            opaque,
            code,
            fields,
            body,
            flag=RESPONSE,
            version=SERVER_VERSION,
            direction=server + "response",
            request_code=exchange.code,
            remark=remark,
        )


def _frame(
    form: str,
    opaque: int,
    code: int,
    fields: dict[str, str] | None,
    body: bytes,
    *,
    flag: int,
    version: int,
    remark: str | None = None,
    **told: Any,
) -> dict[str, Any]:
    named: dict[str, Any] = {"code": code, "extFields": fields, "flag": flag, "language": "JAVA"}
    named |= {"opaque": opaque, "remark": remark}
    named |= {"serializeTypeCurrentRPC": form, "version": version}
    header = {name: value for name, value in named.items() if value is not None}
    if form == JSON_FORM:
        data = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    else:
        fields = fields or {}
        names = [name for name in OF_SENDS if name in fields] if "msgId" in fields else []
        entries = b"".join(
            pack(">h", len(name)) + name.encode() + _text(fields[name])
            for name in [*names, *(name for name in fields if name not in names)]
        )
        data = pack(">hbhii", code, 0, version, opaque, flag) + _text(remark or "")
        data += pack(">i", len(entries)) + entries
    mark = pack(">i", (form == BINARY_FORM) << 24 | len(data))
    return {
        "id": opaque * 2 + (flag & RESPONSE),
        "code": code,
        "opaque": opaque,
        "flag": flag,
        "language": "JAVA",
        "version": version,
        "serialize": form,
        "header": header,
        "header_text": data.decode() if form == JSON_FORM else None,
        "frame": pack(">i", 4 + len(data) + len(body)) + mark + data + body,
        "body": body,
        **told,
    }


def _text(value: str) -> bytes:
    return pack(">i", len(value.encode())) + value.encode()
