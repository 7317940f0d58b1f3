"""Attackers who invent: topics, groups, brokers, and bodies that unfold; they count the answers.

They ask one thing after another and read what is said, as fast as they are answered.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from itertools import count, islice
from os import getpid
from socket import create_connection
from zlib import Z_FULL_FLUSH, compressobj

from protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from protocol.bodies_tables import DataVersion
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerHeader
from tests.support.brokers import pull_command, send_command, subscription
from tests.support.sockets import Line

AT_A_TIME = 100
ANSWERED_S = 60.0
_numbers = count(1)


def refusals(
    port: int, commands: Iterable[RemotingCommand], stack: ExitStack, code: int | None = None
) -> int:
    """Send the requests in portions; return the refusals, or those with `code`."""
    line = stack.enter_context(Line(create_connection(("127.0.0.1", port), ANSWERED_S)))
    left, refused = iter(commands), 0
    while some := [*islice(left, AT_A_TIME)]:
        wanted = {*line.send(*some)}
        while wanted:  # what comes between answers is news of the groups
            (answer,) = line.receive()
            if answer.is_response:
                wanted.remove(answer.opaque)
                refused += answer.code == code if code else answer.code != ResponseCode.SUCCESS
    return refused


def invented(what: str) -> str:
    """Another name with each call."""
    return f"{what}-{getpid()}-{next(_numbers)}"


def unfolds(unfolded_mib: int) -> bytes:
    """Zeros in zlib; the thousandth part of them."""
    packer, block = compressobj(9), bytes(1 << 20)
    first, next_one = (packer.compress(block) + packer.flush(Z_FULL_FLUSH) for _ in range(2))
    return first + next_one * (unfolded_mib - 1)


def registration(name: str, body: bytes, *, compressed: bool) -> RemotingCommand:
    address = f"198.51.100.1:{next(_numbers) % 65_000 + 1}"
    header = RegisterBrokerHeader(name, address, "C", address, 0)
    fields = header.encode() | {"compressed": str(compressed).lower()}
    return RemotingCommand(Code.REGISTER_BROKER, fields, body, version=407)


def table(topics: int) -> bytes:
    """A compressed table of invented topics."""
    first = next(_numbers) << 32
    lines = (b"%x 1 1 6 SINGLE_TAG" % (first + number) for number in range(topics))
    packer, version = compressobj(1), DataVersion().encode()
    parts = [packer.compress(_counted(version) + topics.to_bytes(4))]
    while some := b"".join(map(_counted, islice(lines, 10_000))):
        parts.append(packer.compress(some))
    return b"".join([*parts, packer.compress(_counted(b"[]")), packer.flush()])


def _counted(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data


def a12_registrations(port: int, stack: ExitStack) -> str:
    body = unfolds(10 << 10)
    asked = (registration(invented("b"), body, compressed=True) for _ in range(10))
    refused = sum(refusals(port, [each], stack) for each in asked)
    return f"10 registrations of {len(body) >> 20} MiB that unfold to 10 GiB, refused: {refused}"


def a18_topics(port: int, stack: ExitStack) -> str:
    sends = (send_command(b"x", topic=invented("t"), queue_id=0) for _ in range(100_000))
    return f"100,000 topics by sends, refused: {refusals(port, sends, stack)}"


def a18_groups(port: int, stack: ExitStack) -> str:
    """Half of them consume, half produce; a heartbeat is answered 0 whatever became of its groups,
    so that a pull of one of them tells it."""
    found = 0
    for _ in range(100):
        groups = [invented("g") for _ in range(1000)]
        pull = pull_command(topic="Topic", consumer_group=groups[0], offset=99)
        assert refusals(port, [heartbeat(groups)], stack) == 0
        found += refusals(port, [pull], stack, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    return f"100,000 groups by heartbeats, 1,000 each, half of them consumers', unknown: {found}"


def heartbeat(groups: list[str]) -> RemotingCommand:
    half = len(groups) // 2
    wanted = [subscription("Topic")]
    data = HeartbeatData(
        invented("client"),
        [ProducerData(each) for each in groups[half:]],
        [
            ConsumerData(each, "CONSUME_PASSIVELY", "CLUSTERING", None, wanted)
            for each in groups[:half]
        ],
    )
    return RemotingCommand(Code.HEART_BEAT, body=data.encode())


def a36_topics(port: int, stack: ExitStack) -> str:
    """Ten tables of a million, each too many for a broker, and then such as are taken."""
    body = table(1_000_000)
    refused = 0
    for _ in range(10):
        asked = registration(invented("b"), body, compressed=True)
        refused += refusals(port, [asked], stack)
    for _ in range(3):
        asked = registration(invented("b"), table(400_000), compressed=True)
        refused += refusals(port, [asked], stack)
    return f"11,200,000 topics in 13 registrations, refused: {refused}"


def a36_brokers(port: int, stack: ExitStack) -> str:
    """Register for three minutes at 1,000 brokers a minute, on the virtual clock."""
    refused = 0
    for _ in range(20):
        asked = (registration(invented("b"), b"", compressed=False) for _ in range(150))
        refused += refusals(port, asked, stack)
    return f"3,000 brokers, 150 of a connection, refused: {refused}"
