"""Messages of kombu as bodies of ours."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

kombu = pytest.importorskip("kombu", reason="kombu is not installed")
# ruff: noqa: E402

from troupemq.client.message import word_of
from troupemq.kombu.envelope import (
    HOP_MS,
    Payload,
    decode,
    due_ms,
    encode,
    message_of,
    queue_ttl_ms,
    step_of,
    waits_in_broker,
)

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def payload(**headers: object) -> Payload:
    return {
        "body": b"\x00\n\xff",
        "content-type": "application/data",
        "headers": headers,
        "properties": {"priority": 0, "delivery_info": {"exchange": "", "routing_key": "q"}},
    }


def test_payload_survives() -> None:
    given = payload(id="1", when=NOW)
    assert decode(encode(given)) == given
    assert decode(encode({**given, "body": "text ä"}))["body"] == "text ä".encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"\xff\n",
        b"[]\n",
        b"{}\n",
        b'{"properties": {"delivery_info": 1}}\n',
        b'{"properties": {}, "headers": [1]}\n',
        b'{"properties": {"body_encoding": "base64"}}\n',
        b'{"properties": {"body_encoding": 1}}\n',
        b"[" * 100_000 + b"\n",
        b'{"properties": {"x": %b}}\n' % (b"[" * 100_000),
        b'{"properties": {"x": {"__type__": "decimal", "__value__": "x"}}}\n',
        b'{"properties": {"x": {"__type__": "uuid", "__value__": 1}}}\n',
        b'{"properties": {"x": {"__type__": "datetime", "__value__": "x"}}}\n',
        b'{"properties": {"x": {"__type__": [], "__value__": 1}}}\n',
    ],
    ids=lambda body: body[:60].decode("ascii", "replace"),
)
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode(body)


@pytest.mark.parametrize(
    ("priority", "step"),
    [(None, 0), (0, 0), (2, 0), (3, 1), (6, 2), (9, 3), (99, 3), (-1, 0), ("x", 0)],
)
def test_ten_priorities_share_four_queues(priority: object, step: int) -> None:
    given = payload()
    given["properties"]["priority"] = priority
    assert step_of(given) == step


def test_times_to_live_are_numbers() -> None:
    given: list[object] = ["x", [], 10**400]
    assert [queue_ttl_ms({"x-message-ttl": ttl}) for ttl in given] == [None] * 3


def test_eta_without_a_zone_is_utc() -> None:
    wanted = NOW_MS + 1
    local = (NOW + timedelta(microseconds=1)).astimezone(timezone(timedelta(hours=5)))
    assert due_ms(payload(eta=local.isoformat())) == wanted, "rounded up: never early"
    assert due_ms(payload(eta=local.astimezone(UTC).replace(tzinfo=None).isoformat())) == wanted
    assert [due_ms(payload(eta=eta)) for eta in (None, "soon", 5)] == [None] * 3
    assert due_ms({"headers": None}) is None


def test_long_delays_are_the_brokers() -> None:
    def waits(seconds: float) -> int | None:
        due = (NOW + timedelta(seconds=seconds)).isoformat()
        return waits_in_broker(payload(eta=due), NOW_MS)

    assert waits(60) is None
    assert waits(61) == NOW_MS + 61_000
    assert waits(10 * 86_400) == NOW_MS + HOP_MS
    due = (NOW + timedelta(seconds=90)).isoformat()
    assert message_of("t", payload(eta=due), NOW_MS).deliver_at == NOW_MS + 90_000


def test_task_is_found_by_its_id_and_its_name() -> None:
    message = message_of("t", payload(id="4711", task="shop.tasks.ship"), NOW_MS)
    assert (message.keys, message.tags) == (("4711",), "shop.tasks.ship")
    odd = message_of("t", payload(id="a b", task="x || y"), NOW_MS)
    assert (odd.keys, odd.tags) == ((), None)
    assert [word_of(text) for text in ("", None, "a\n", "a")] == [None, None, None, "a"]
