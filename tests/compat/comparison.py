"""Compares what a consumer got with what producers sent: every property of every message."""

import re
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from struct import Struct
from zlib import crc32

from tests.compat.agent import Event, Sent
from tests.compat.corpus import COMPRESS_OVER_BYTES, SERIAL, Outgoing
from tests.compat.servers import BROKER_NAME, CLUSTER, HOST, Broker

RECORD_BYTES_BARE = 91  # a record with IPv4 hosts and empty body, topic and properties
COMPRESSED = 1  # of sysFlag
COMPRESSION_TYPE = 0x700
CONSUMER_ADDS = {
    "MIN_OFFSET",
    "MAX_OFFSET",
    "CONSUME_START_TIME",
}  # by the pulling client, never stored

MAX_SHOWN = 30  # differences in one failure

_BORN_HOST = re.compile(re.escape(HOST) + r":[1-9]\d*")
_PLACE = Struct(
    ">4s"  # host
    "i"  # port
    "q"  # physical_offset
)


def assert_same(sent: Sequence[Sent], got: Iterable[Event], broker: Broker) -> None:
    """Fails with what is not as it must be, one line for each."""
    found = differences(sent, got, broker)
    assert not found, "\n".join([f"{len(found)} differences:", *found[:MAX_SHOWN]])


def differences(sent: Sequence[Sent], got: Iterable[Event], broker: Broker) -> list[str]:
    """One sentence for everything that is not as it must be; empty when all is well."""
    received = [_as_stored(event) for event in got]
    wanted = {message.serial: (one, n) for one in sent for n, message in enumerate(one.messages)}
    serials = Counter(serial_of(event) for event in received)
    found = [f"lost: {serial}" for serial in wanted.keys() - serials.keys()]
    found += [f"foreign: {serial}" for serial in serials.keys() - wanted.keys()]
    found += [f"{serial} came {n} times" for serial, n in serials.items() if n > 1]
    for event in received:
        if serial_of(event) in wanted:
            one, index = wanted[serial_of(event)]
            found += _message_differences(one, index, event, broker)
    return found + _connection_differences(sent, received) + _log_differences(received)


def serial_of(event: Event) -> str:
    return str(event["properties"].get(SERIAL, f"without a serial: {event}"))


def order_differences(got: Iterable[Event]) -> list[str]:
    """Return where a queue's messages arrived out of order; `got` is one member's."""
    last: dict[int, int] = {}
    found = []
    for event in got:
        queue, offset = event["queueId"], event["queueOffset"]
        if offset <= last.get(queue, -1):
            found.append(f"queue {queue}: {offset} came after {last[queue]}")
        last[queue] = offset
    return found


def gaps(got: Iterable[Event]) -> list[str]:
    """Queues whose offsets are not 0, 1, 2 …; `got` is everything that a topic holds."""
    by_queue = sorted(got, key=lambda event: (event["queueId"], event["queueOffset"]))
    found = []
    for queue, events in groupby(by_queue, key=lambda event: event["queueId"]):
        offsets = [event["queueOffset"] for event in events]
        if offsets != list(range(len(offsets))):
            found.append(f"queue {queue} holds the offsets {offsets}")
    return found


def _as_stored(event: Event) -> Event:
    """With the bit that a 5.x client takes away when it has unpacked a body."""
    if event["sysFlag"] & COMPRESSION_TYPE:
        return {**event, "sysFlag": event["sysFlag"] | COMPRESSED}
    return event


def _message_differences(sent: Sent, index: int, event: Event, broker: Broker) -> list[str]:
    message = sent.messages[index]
    checks = _expected_fields(sent, message, broker) | _told_fields(sent, index)
    found = [
        f"{message.serial} ({sent.way}): {name} is {event[name]!r}, not {value!r}"
        for name, value in checks.items()
        if event[name] != value
    ]
    for problem in (*_body_problems(sent, message, event), *_place_problems(sent, event, broker)):
        found.append(f"{message.serial} ({sent.way}): {problem}")
    properties = {k: v for k, v in event["properties"].items() if k not in CONSUMER_ADDS}
    expected = _expected_properties(sent, message, index, properties)
    for name in properties.keys() | expected.keys():
        if (value := properties.get(name)) != (wanted := expected.get(name)):
            found.append(f"{message.serial} ({sent.way}): {name} is {value!r}, not {wanted!r}")
    return found


def _expected_fields(sent: Sent, message: Outgoing, broker: Broker) -> dict[str, object]:
    return {
        "topic": sent.topic,
        "tags": message.tags,
        "keys": message.keys,
        "flag": message.flag,
        "storeHost": broker.address,
        "reconsumeTimes": 0,
        "preparedTransactionOffset": 0,
        "brokerName": BROKER_NAME,
    }


def _told_fields(sent: Sent, index: int) -> dict[str, object]:
    """Return the fields of message `index` in the producer's results and headers."""
    told: dict[str, object] = {}
    if sent.wire:
        frame = _frame_of(sent, index)
        told |= {name: frame[name] for name in ("bornTimestamp", "queueId", "sysFlag")}
        told["msgId"] = frame["uniqueKey"]
    if sent.results:
        batch = sent.way == "batch"
        result = sent.results[0 if batch else index]
        place = index if batch else 0
        told["queueId"] = result["queueId"]
        told["queueOffset"] = result["queueOffset"] + place
        told["offsetMsgId"] = result["offsetMsgIds"][place]
        if result["msgIds"]:
            told["msgId"] = result["msgIds"][place]
    if sent.way == "batch" and sent.wire and sent.wire[index]["headerKey"]:
        told["msgId"] = sent.wire[index]["headerKey"]  # stored behind the message's own key
    return told


def _frame_of(sent: Sent, index: int) -> Event:
    """The header of message `index`; async sends leave in any order, a retry twice."""
    if sent.way in ("batch", "oneway"):
        return sent.wire[index]
    (unique_key,) = sent.results[index]["msgIds"]
    return next(frame for frame in reversed(sent.wire) if frame["uniqueKey"] == unique_key)


def _expected_properties(
    sent: Sent, message: Outgoing, index: int, got: dict[str, str]
) -> dict[str, str]:
    expected = {**message.user_properties(), "CLUSTER": CLUSTER}
    if message.tags is not None:
        expected["TAGS"] = message.tags
    if message.keys is not None:
        expected["KEYS"] = message.keys
    unique_key = _told_fields(sent, index).get("msgId")
    if sent.wire or sent.way != "batch":  # the Go client's batches have none
        expected["UNIQ_KEY"] = str(unique_key or got.get("UNIQ_KEY"))
    if sent.way == "batch" and sent.wire:  # a batch keeps what other sends lose
        expected["WAIT"] = "true"
    return expected


def _body_problems(sent: Sent, message: Outgoing, event: Event) -> Iterable[str]:
    if b64decode(event["body"] or "") != message.body:
        yield "another body"
    compressed = bool(event["sysFlag"] & COMPRESSED)
    may_compress = len(message.body) >= COMPRESS_OVER_BYTES and sent.way != "batch"
    if compressed != may_compress:
        yield f"sysFlag is {event['sysFlag']} for a body of {len(message.body)} bytes"
    if compressed:
        return
    if event["bodyCrc"] != crc32(message.body) & 0x7FFFFFFF:
        yield f"bodyCrc is {event['bodyCrc']}"
    if sent.way == "batch":
        return
    stored = {k: v for k, v in event["properties"].items() if k not in CONSUMER_ADDS}
    text = "\x02".join(f"{name}\x01{value}" for name, value in stored.items())
    size = RECORD_BYTES_BARE + sum(
        len(part) for part in (message.body, sent.topic.encode(), text.encode())
    )
    if event["storeSize"] != size:
        yield f"storeSize is {event['storeSize']}, not {size}"


def _place_problems(sent: Sent, event: Event, broker: Broker) -> Iterable[str]:
    host, port = broker.address.split(":")
    packed_host = bytes(int(part) for part in host.split("."))
    place = _PLACE.pack(packed_host, int(port), event["commitLogOffset"]).hex().upper()
    if event["offsetMsgId"] != place:
        yield f"offsetMsgId is {event['offsetMsgId']}, but the record lies at {place}"
    if not _BORN_HOST.fullmatch(event["bornHost"]):
        yield f"bornHost is {event['bornHost']}"
    if not sent.began_ms <= event["bornTimestamp"] <= sent.ended_ms:
        yield f"bornTimestamp is {event['bornTimestamp']}"
    if not sent.began_ms <= event["storeTimestamp"] <= time.time() * 1000 + 1:
        yield f"storeTimestamp is {event['storeTimestamp']}"
    # The broker reads the end of a queue before it reads the queue: the end may lie behind.
    least, most = (int(event["properties"].get(f"{end}_OFFSET", -1)) for end in ("MIN", "MAX"))
    if not 0 <= least <= min(most, event["queueOffset"]):
        yield f"MIN_OFFSET and MAX_OFFSET are {least} and {most}"


def _connection_differences(sent: Sequence[Sent], received: Sequence[Event]) -> list[str]:
    """A producer has one connection to a broker: all that it sent at a time was born there."""
    found = []
    for one in sent:
        serials = {message.serial for message in one.messages}
        hosts = {event["bornHost"] for event in received if serial_of(event) in serials}
        if len(hosts) > 1:
            found.append(f"one producer's messages have the born hosts {sorted(hosts)}")
    return found


def _log_differences(received: Iterable[Event]) -> list[str]:
    """In the log's order, store times and every queue's offsets may only grow."""
    in_log = sorted(received, key=lambda event: int(event["commitLogOffset"]))
    found = [
        f"storeTimestamp goes back at {after['commitLogOffset']}"
        for before, after in pairwise(in_log)
        if after["storeTimestamp"] < before["storeTimestamp"]
    ]
    return found + order_differences(in_log)
