"""The messages that the suite sends: every field in several forms, each with its own serial."""

from base64 import b64encode
from dataclasses import dataclass, field
from random import Random

SERIAL = "serial"  # the user property by which a received message finds the one that was sent
COMPRESS_OVER_BYTES = 4096  # the clients' default


@dataclass(frozen=True)
class Outgoing:
    """A message as the application wants it sent."""

    serial: str
    body: bytes
    tags: str | None = None
    keys: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    wait: bool = True
    delay_level: int = 0

    def user_properties(self) -> dict[str, str]:
        return {SERIAL: self.serial, **self.properties}

    def as_json(self) -> dict[str, object]:
        return {
            "body": b64encode(self.body).decode(),
            "tags": self.tags,
            "keys": self.keys,
            "properties": self.user_properties(),
            "flag": self.flag,
            "wait": self.wait,
            "delayLevel": self.delay_level,
        }


BODIES = (
    b"x",
    bytes(range(256)),
    "sch\u00f6n \u6f22\u5b57 \U0001f3ad".encode(),
    b"plain text " * 30,
    b"compressible " * 500,
    Random(1).randbytes(20_000),
    b"\x00" * 100,
)
TAGS = (None, "TagA", "TagB", "\u6807\u7b7e-C")
KEYS = (None, "key-{serial}", "first-{serial} second-{serial} \u00e4")
PROPERTIES: tuple[dict[str, str], ...] = (
    {},
    {"colour": "red", "spaced": " a b "},
    {"\u540d\u5b57": "w\u00e9rt \U0001f3ad", "json": '{"a":[1,"b"]}', "slash": "a/b\\c"},
    {f"property-{number}": f"value-{number}" * 3 for number in range(20)},
)
FLAGS = (0, 0, 1, 7, -1)


def varied(prefix: str, count: int, *, waits: bool = True) -> list[Outgoing]:
    """`count` messages that differ in everything; all wait for the store, or some do not."""
    return [
        Outgoing(
            serial=(serial := f"{prefix}-{number}"),
            body=BODIES[number % len(BODIES)],
            tags=TAGS[number % len(TAGS)],
            keys=(keys := KEYS[number % len(KEYS)]) and keys.format(serial=serial),
            properties=PROPERTIES[number // 2 % len(PROPERTIES)],
            flag=FLAGS[number % len(FLAGS)],
            wait=waits or number % 6 != 5,
        )
        for number in range(count)
    ]


def tagged(prefix: str, tags: tuple[str | None, ...], count: int) -> list[Outgoing]:
    """`count` small messages whose tags go round `tags`."""
    return [
        Outgoing(f"{prefix}-{number}", f"body {number}".encode(), tags=tags[number % len(tags)])
        for number in range(count)
    ]
