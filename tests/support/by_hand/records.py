"""Messages of a store by hand, one of each kind, as the bytes of their records.

A record, integers big-endian, a host being 4 or 16 bytes of address and a port of 4:

    int32 size | int32 magic | int32 body CRC | int32 queue id | int32 flag | int64 queue offset
    int64 physical offset | int32 sysFlag | int64 born | born host | int64 stored | store host
    int32 reconsume times | int64 prepared transaction offset | int32 body bytes | body
    int8 topic bytes | topic | int16 properties bytes | properties
"""

from dataclasses import dataclass, field, replace
from hashlib import sha256
from ipaddress import ip_address
from struct import pack
from typing import Any
from zlib import compress, crc32

MAGIC = 0xDAA320A7
BORN_V6, STORE_V6 = 0x10, 0x20
COMMITTED = 8
ZLIB, LZ4, ZSTD = 0x301, 0x101, 0x201
"""Compressed, and by what."""

FIRST_MS = 1_795_189_404_000
STEP_MS = 1_370
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SCHEDULED = "SCHEDULE_TOPIC_XXXX"
LEVEL_3_MS = 10_000

Host = tuple[str, int]
BORN: Host = ("10.1.2.3", 40_123)
STORED: Host = ("127.0.0.1", 10_911)
BORN_ON_V6: Host = ("fd00::17", 40_123)


@dataclass(frozen=True)
class Message:
    """Stored values of one message, except its offsets."""

    topic: str
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    queue_id: int = 0
    sys_flag: int = 0
    flag: int = 0
    born: Host = BORN
    reconsume_times: int = 0
    prepared_offset: int = 0

    @property
    def text(self) -> bytes:
        """The properties as they are stored."""
        return "\x02".join(f"{name}\x01{value}" for name, value in self.properties.items()).encode()

    @property
    def keys(self) -> list[str]:
        """Return the keys in the index: the unique key, then the words of KEYS."""
        unique = self.properties.get("UNIQ_KEY")
        words = self.properties.get("KEYS", "").split(" ")
        return [key for key in [unique, *words] if key]

    def tags_code(self, stored_ms: int) -> int:
        """Return the tags code of the unit: the tag's hash, or a delayed message's due time."""
        if self.topic == SCHEDULED:
            return stored_ms + LEVEL_3_MS
        return java_hash(self.properties.get("TAGS", ""))


@dataclass(frozen=True)
class Record:
    """A message in its place."""

    message: Message
    queue_offset: int
    physical_offset: int
    stored_ms: int

    @property
    def sys_flag(self) -> int:
        return self.message.sys_flag | BORN_V6 * (":" in self.message.born[0])

    def encoded(self) -> bytes:
        message, topic = self.message, self.message.topic.encode()
        rest = (
            pack(">IIiiqqi", MAGIC, body_crc(message.body), message.queue_id, message.flag,
                 self.queue_offset, self.physical_offset, self.sys_flag)
            + pack(">q", self.stored_ms - 5) + packed(message.born)
            + pack(">q", self.stored_ms) + packed(STORED)
            + pack(">iq", message.reconsume_times, message.prepared_offset)
            + pack(">i", len(message.body)) + message.body
            + pack(">b", len(topic)) + topic
            + pack(">h", len(message.text)) + message.text
        )  # fmt: skip
        return pack(">i", len(rest) + 4) + rest

    def told(self) -> dict[str, Any]:
        """Return the message as the manifest of a golden store describes it."""
        message = self.message
        return {
            "storeSize": len(self.encoded()),
            "bodyCRC": body_crc(message.body),
            "queueId": message.queue_id,
            "flag": message.flag,
            "queueOffset": self.queue_offset,
            "commitLogOffset": self.physical_offset,
            "sysFlag": self.sys_flag,
            "bornTimestamp": self.stored_ms - 5,
            "bornHost": host_text(message.born),
            "storeTimestamp": self.stored_ms,
            "storeHost": host_text(STORED),
            "reconsumeTimes": message.reconsume_times,
            "preparedTransactionOffset": message.prepared_offset,
            "topic": message.topic,
            "rawBodyLen": len(message.body),
            "rawBodySha256": sha256(message.body).hexdigest(),
            "propertiesRaw": message.text.decode(),
        }


def messages() -> list[Message]:
    """In the order of the log. `prepared_offset` of a committed one is the number of its half."""
    plain = [
        Message("Plain", b"body %d" % n, {**unique(n), "KEYS": f"k{n} all", "TAGS": "AB"[n % 2]})
        for n in range(310)
    ]
    big = [
        Message("Big", bytes([n]) * 9_000, {**unique(1000 + n), "CLUSTER": "DefaultCluster"}, n % 2)
        for n in range(9)
    ]
    shared = {"WAIT": "true", "CLUSTER": "DefaultCluster"}
    tagged = {**unique(2000), "TAGS": "AaAa", "KEYS": "order-1"}
    delayed = {**unique(2010), "DELAY": "3", "REAL_TOPIC": "Delayed", "REAL_QID": "0"}
    again = {**unique(2020), "RETRY_TOPIC": "Plain", "ORIGIN_MESSAGE_ID": "7F00" * 8}
    sale = {**unique(2030), "TRAN_MSG": "true", "PGROUP": "sellers", "REAL_TOPIC": "Sales",
            "REAL_QID": "1"}  # fmt: skip
    other, third = ({**sale, **unique(n)} for n in (2031, 2032))
    return [
        *plain,
        *big,
        Message("Kinds", b"no properties"),
        Message("Kinds", b"", {**tagged, "color": "rot-grün", "名": "值"}, flag=7),
        Message("Kinds", b"from IPv6", {**unique(2001), "TAGS": "BBBB"}, born=BORN_ON_V6),
        Message("Kinds", compress(b"zlib " * 900), unique(2002), sys_flag=ZLIB),
        Message("Kinds", b"\x04\x22\x4d\x18 LZ4", unique(2003), sys_flag=LZ4),
        Message("Kinds", b"\x28\xb5\x2f\xfd ZSTD", unique(2004), sys_flag=ZSTD),
        Message("Batch", b"one", {**unique(2005), **shared}),
        Message("Batch", b"two", {**unique(2006), "TAGS": "A", **shared}),
        Message("Batch", b"three", shared),
        Message(SCHEDULED, b"later", delayed, queue_id=2),
        Message("Delayed", b"later", delayed),
        Message("%RETRY%readers", b"again", {**again, "DELAY": "3"}, reconsume_times=1),
        Message("%DLQ%readers", b"dead", {**again, **unique(2021)}, reconsume_times=16),
        Message("%DLQ%readers", b"too", {**again, **unique(2022)}, reconsume_times=16),
        Message(HALF, b"a sale", sale),
        Message(HALF, b"no sale", other),
        Message(HALF, b"who knows", third),
        Message("Sales", b"a sale", sale, 1, COMMITTED, prepared_offset=0),
        Message(OP, b"0", {**unique(2040), "TAGS": "d"}),
        Message(OP, b"1", {**unique(2041), "TAGS": "d"}),
    ]


def in_place(log_file_bytes: int) -> list[Record]:
    """The messages one after the other; none lies across two files of the log."""
    found: list[Record] = []
    ends: dict[tuple[str, int], int] = {}
    end = 0
    for number, message in enumerate(messages()):
        queue = message.topic, message.queue_id
        record = Record(message, ends.get(queue, 0), end, FIRST_MS + number * STEP_MS)
        size = len(record.encoded())
        if size + 8 > log_file_bytes - end % log_file_bytes:
            end += log_file_bytes - end % log_file_bytes
        if message.sys_flag & COMMITTED:
            halves = [each.physical_offset for each in found if each.message.topic == HALF]
            message = replace(message, prepared_offset=halves[message.prepared_offset])
        found.append(replace(record, message=message, physical_offset=end))
        ends[queue] = ends.get(queue, 0) + 1
        end += size
    return found


def unique(number: int) -> dict[str, str]:
    """The unique key of a message: 32 digits."""
    return {"UNIQ_KEY": f"{number:032X}"}


def java_hash(text: str) -> int:
    """Count the characters in units of 16 bits."""
    total = 0
    for unit in text:
        total = (31 * total + ord(unit)) & 0xFFFFFFFF
    return total - (total >> 31 << 32)


def body_crc(body: bytes) -> int:
    return crc32(body) & 0x7FFFFFFF


def packed(host: Host) -> bytes:
    return ip_address(host[0]).packed + pack(">i", host[1])


def host_text(host: Host) -> str:
    return f"[{host[0]}]:{host[1]}" if ":" in host[0] else f"{host[0]}:{host[1]}"
