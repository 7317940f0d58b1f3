"""Batches of similar messages, rewritten with and without comparison to the previous one."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from actors.sending.property_rewriter import BatchSuffix, PartKnown
from protocol.batch import BatchMessage, encode_batch
from protocol.codes import SerializeType
from protocol.frame import RemotingCommand
from protocol.host import pack_host
from storage.config import StoreConfig
from tests.support.brokers import STORE, FramesPeer, SimulatedBroker, send_command

KEY = "C0A80102279300000000946E0B2A"
WIDE = replace(STORE, commit_log_file_bytes=20_000, max_hash_slots=16, max_index_entries=150)


def own(number: int, tag: str = "TagA", key: str = KEY) -> bytes:
    return f"UNIQ_KEY\x01{key}{number:04X}\x02WAIT\x01true\x02TAGS\x01{tag}".encode()


def alike(random: Random, count: int, properties: Callable[[int], bytes] = own) -> bytes:
    """Return a batch as a Java client encodes it."""
    first, body_bytes = random.randrange(0xFF00), random.randrange(40)
    return encode_batch(
        BatchMessage(random.randbytes(body_bytes), properties(first + number), 3)
        for number in range(count)
    )


def plainly_alike(random: Random) -> bytes:
    """Return such a batch of random length."""
    return alike(random, random.randrange(1, 60))


def nearly_alike(random: Random) -> bytes:
    """One message differs in one thing, or all do, or a byte is another."""
    size = random.randrange(3)
    messages = [BatchMessage(bytes(size), own(number), 3) for number in range(5)]
    place = random.randrange(5)
    one = messages[place]
    text = one.properties
    others = (
        one._replace(body=one.body + b"!"),
        one._replace(flag=4),
        one._replace(properties=b""),
        one._replace(properties=text + b"\x02"),
        one._replace(properties=text.replace(b"TagA", b"TagB")),
        one._replace(properties=text.replace(b"TagA", b"TagAA"), body=one.body[:-1]),
        one._replace(properties=text.replace(b"C0A8", b"C1A8")),
        one._replace(properties=text.replace(b"000", b"0-0", 3)),
        one._replace(properties=text.replace(b"\x02WAIT", b" \x02WAIT")),
        one._replace(properties=text.replace(b"\x02WAIT", b"\x02KEYS")),
        one._replace(properties=text[:32] + b"\xc3\xbc\x02=" + text[36:]),
        one._replace(properties=text[:40] + b"\x02" + text[41:]),
    )
    messages[place] = random.choice(others)
    body = bytearray(encode_batch(messages))
    if random.random() < 0.3:
        body[random.randrange(len(body))] ^= 1 << random.randrange(8)
    if random.random() < 0.1:
        del body[-1]
    return bytes(body)


def in_common(random: Random) -> bytes:
    """All alike, in properties of another kind."""
    kinds: tuple[Callable[[int], bytes], ...] = (
        lambda n: own(n, tag="TagB"),
        lambda n: own(n, tag="T\x02KEYS\x01a b"),
        lambda n: own(n, key=""),
        lambda n: own(n, key="k"),
        lambda n: own(n, key="\u00fc"),
        lambda n: own(n, key="-" * 24),
        lambda n: own(n, key="0" * 28),
        lambda n: own(n)[: 9 + 32],
        lambda n: b"UNIQ_KEY\x01%04X" % n + b"\x02UNIQ_KEY\x01same",
        lambda n: b"a\x01b",
        lambda _: b"",
    )
    return alike(random, random.randrange(1, 40), random.choice(kinds))


def commands(seed: int) -> list[RemotingCommand]:
    """Return one producer's sends: batches and single messages of all kinds."""
    random, found = Random(seed), list[RemotingCommand]()
    for _ in range(60):
        body = random.choice((plainly_alike, plainly_alike, nearly_alike, in_common))(random)
        properties = random.choices(
            ("WAIT\x01true", "", "WAIT\x01false\x02a\x01b", "TAGS\x01all", "UNIQ_KEY\x01all"),
            (16, 1, 1, 1, 1),
        )[0]
        command = send_command(
            body if random.random() < 0.8 else b"single",
            batch=random.random() < 0.9,
            queue_id=random.randrange(2),
            properties=properties,
            sys_flag=random.choices((0, 1, 4, 0x10), (12, 1, 1, 1))[0],
        )
        kind = random.choice((SerializeType.JSON, SerializeType.ROCKETMQ))
        found.append(replace(command, serialize_type=kind))
    return found


def outcome(
    seed: int, host: str, store: StoreConfig, burst: int
) -> tuple[list[RemotingCommand], dict[str, bytes]]:
    """The answers, and all files that a broker has after these sends."""
    made = SimulatedBroker(seed, store_config=store)
    made.make_topic()
    answers: list[RemotingCommand] = []
    sends = commands(seed)
    for first in range(0, len(sends), burst):
        peer = FramesPeer(host)
        peer.host = pack_host(host, 40_000)
        made.system.address("put_message").tell(peer.sends(*sends[first : first + burst]))
        made.system.advance(300)
        answers += peer.answers()
    made.stop()
    files = {}
    for path in made.disk.paths():  # type: ignore[attr-defined]
        if path.startswith(("/store/commitlog", "/store/consumequeue", "/store/index")):
            file = made.disk.open(path, read_only=True)
            files[path] = file.pread(file.size(), 0)
            file.close()
    return answers, files


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("seed", "host", "store", "burst"),
    [
        (1, "192.0.2.7", STORE, 1),
        (2, "192.0.2.7", WIDE, 7),
        (3, "2001:db8::1", WIDE, 60),
        (4, "192.0.2.7", replace(STORE, enable_consume_queue_ext=True), 7),
        (5, "192.0.2.7", replace(WIDE, max_message_bytes=3000), 7),
    ],
)
def test_caching_the_previous_message_changes_no_byte_and_no_answer(
    monkeypatch: pytest.MonkeyPatch, seed: int, host: str, store: StoreConfig, burst: int
) -> None:
    expected: list[bytes] = []
    expect_like = BatchSuffix.expect_like

    def counted(suffix: BatchSuffix, own: bytes, unique: bytes, known: PartKnown) -> None:
        expected.append(own)
        expect_like(suffix, own, unique, known)

    monkeypatch.setattr(BatchSuffix, "expect_like", counted)
    answers, files = outcome(seed, host, store, burst)
    assert len(expected) > 5
    monkeypatch.setattr(BatchSuffix, "expect_like", lambda *_: None)
    plain_answers, plain_files = outcome(seed, host, store, burst)
    assert answers == plain_answers
    assert files.keys() == plain_files.keys()
    for path, data in files.items():
        assert data == plain_files[path], path
