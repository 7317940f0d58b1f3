"""Equal requests, well-formed and unusual, to the official servers and to ours: equal answers.

Code and remark are compared. `may_differ` lists accepted differences and reasons, which
docs/protocol.md explains to operators.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.remoting import Answer, exchange
from tests.compat.servers import Broker

pytestmark = pytest.mark.slow(seconds=4)

NAMES = ("", " ", "../x", "a/b", "a@b", "%", "\xe4", "n" * 127, "n" * 128)
NUMBERS = ("", "-1", "abc", "2147483648", "9223372036854775808", "+1", "1e3", " 1")
FLAGS = ("TRUE", "1", "")
BODIES = (b"", b"{}", b"7", b'"x"', b"\xff\xfe{", b"{", b"{'a':1}")
TOPIC, GROUP = "Odd", "odd-group"
ILLEGAL = re.compile(r"[^%|a-zA-Z0-9_-]|^$|^.{128,}$")
HOST = re.compile(r"\d+\.\d+\.\d+\.\d+:\d+")

QUEUE = {"topic": TOPIC, "queueId": "0"}
IN_GROUP = {"consumerGroup": GROUP, **QUEUE}
BROKER_NAME = {"brokerName": "odd", "brokerAddr": "10.0.0.1:1", "clusterName": "odd-cluster"}
CREATE = {
    **{"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4"},
    **{"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
}
SEND = {
    **{"a": "producers", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0"},
    **{"g": "1700000000000", "h": "0", "i": "KEYS\x01k\x02", "j": "0", "k": "false"},
    **{"l": "0", "m": "false", "n": "broker-a"},
}
PULL = {
    **{**IN_GROUP, "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0"},
    **{"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"},
}
BACK = {"offset": "0", "group": GROUP, "delayLevel": "0", "originTopic": TOPIC}
RESET = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"}
CLONE = {"srcGroup": GROUP, "destGroup": "odd-2", "topic": TOPIC, "offline": "true"}
TAKES_ANY_NAME = {15, 36, 200, 314, 321}
"""Codes with which the original creates directories and table entries. Ours answers with 1."""


@dataclass(frozen=True)
class Case:
    """One request; `odd` is the value in it that is."""

    code: int
    fields: Mapping[str, str] | None
    body: bytes = b""
    odd: str = field(default="", compare=False)
    missing: bool = False


def variants(
    code: int,
    fields: Mapping[str, str],
    names: Sequence[str] = (),
    numbers: Sequence[str] = (),
    flags: Sequence[str] = (),
    body: bytes = b"",
) -> Iterator[Case]:
    """Return the valid request, one without each field, and one with each field unusual."""
    yield Case(code, fields, body)
    for key in fields:
        rest = {name: value for name, value in fields.items() if name != key}
        yield Case(code, rest, body, f"no {key}", missing=True)
    for keys, values in ((names, NAMES), (numbers, NUMBERS), (flags, FLAGS)):
        for key in keys:
            for value in values:
                yield Case(code, {**fields, key: value}, body, value)


def to_name_servers() -> Iterator[Case]:
    entry = {"namespace": "odd", "key": "k"}
    yield from variants(100, {**entry, "value": "v"}, ("namespace", "key", "value"))
    yield from variants(101, entry, ("namespace", "key"))
    yield from variants(219, {"namespace": "odd"}, ("namespace",))
    yield from variants(102, entry, ("namespace", "key"))
    topic = {"topicName": "T", "perm": 6, "readQueueNums": 2, "writeQueueNums": 3}
    version = {"counter": 1, "timestamp": 5}
    tables = {"dataVersion": version, "topicConfigTable": {"T": topic}}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": tables}).encode()
    broker = {**BROKER_NAME, "brokerId": "0"}
    register = {**broker, "haServerAddr": "10.0.0.1:2", "compressed": "false", "bodyCrc32": "0"}
    yield from variants(103, register, (), ("brokerId", "bodyCrc32"), ("compressed",), body)
    for each in BODIES:
        yield Case(103, register, each)
        yield Case(103, {**register, "compressed": "true"}, each)
        yield Case(322, broker, each)
    yield from variants(322, broker, (), (), (), json.dumps(version).encode())
    yield from variants(105, {"topic": "T"}, ("topic",), (), ())
    yield from variants(205, {"brokerName": "odd"}, ("brokerName",))
    yield from variants(327, {"brokerName": "odd"}, ("brokerName",))
    yield from variants(224, {"cluster": "odd-cluster"}, ("cluster",))
    yield from variants(216, {"topic": "T", "clusterName": "x"}, ("topic", "clusterName"))
    yield from variants(104, broker, (), ("brokerId",))
    for code in (106, 206, 304, 311, 312, 313, 319):
        yield Case(code, None)


def to_brokers() -> Iterator[Case]:
    yield from variants(17, CREATE, ("topic", "defaultTopic"), ("readQueueNums", "perm"))
    for name in ("TBW102", "rmq_sys_x", "broker-a", "SCHEDULE_TOPIC_XXXX", "%RETRY%x", "%SYS%x"):
        yield Case(17, {**CREATE, "topic": name})
    yield Case(17, CREATE)
    yield from (Case(310, SEND, b"body") for _ in range(5))
    yield from variants(310, SEND, ("b",), ("d", "e", "f", "g", "h"), (), b"x")
    for code in (30, 31, 32):
        yield from variants(code, QUEUE, ("topic",), ("queueId",))
    yield from variants(29, {**QUEUE, "timestamp": "0"}, ("topic",), ("timestamp",))
    for text in (GROUP, "", "../x", "a@b", "g" * 255, "g" * 256):
        yield Case(200, None, json.dumps({"groupName": text}).encode(), text)
    large = json.dumps({"groupName": "large", "retryMaxTimes": 1 << 31}).encode()
    yield from (Case(200, None, each) for each in (*BODIES[2:], large))
    commit = {**IN_GROUP, "commitOffset": "2"}
    yield from variants(15, commit, ("consumerGroup", "topic"), ("queueId", "commitOffset"))
    yield from variants(14, IN_GROUP, (), ("queueId",))
    yield from variants(202, {"topic": TOPIC}, ("topic",))
    yield from variants(203, {"consumerGroup": GROUP}, ("consumerGroup",))
    yield from variants(204, {"producerGroup": GROUP}, ("producerGroup",))
    yield from variants(208, {"consumerGroup": GROUP, "topic": TOPIC}, ("consumerGroup", "topic"))
    yield from variants(222, RESET, ("topic", "group"), ("timestamp",), ("isForce",))
    yield from variants(300, {"topic": TOPIC}, ("topic",))
    yield from variants(303, {"topic": TOPIC, "group": GROUP}, ("topic", "group"))
    yield from variants(307, {"consumerGroup": GROUP, "clientId": "c"}, ("consumerGroup",))
    yield from variants(308, {"compareGroup": GROUP, "topic": TOPIC}, ("compareGroup", "topic"))
    yield from variants(314, CLONE, ("srcGroup", "destGroup", "topic"), (), ("offline",))
    stats = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "nope"}
    yield from variants(315, stats, ("statsName", "statsKey"))
    yield from variants(317, {"isOrder": "false"}, (), (), ("isOrder",))
    units = {**QUEUE, "index": "0", "count": "10", "consumerGroup": GROUP}
    yield from variants(321, units, ("topic", "consumerGroup"), ("index", "count"))
    yield from variants(323, {"msgId": "x"}, ("msgId",))
    for code in (21, 26, 28, 43, 45, 201, 305, 306, 316, 328, 329):
        yield Case(code, {})
    for code in (34, 41, 42, 46):
        yield from (Case(code, None, body) for body in BODIES)
    yield from variants(35, {"clientID": "c", "producerGroup": "P", "consumerGroup": GROUP})
    yield from variants(38, {"consumerGroup": GROUP}, ("consumerGroup",))
    yield from variants(36, BACK, ("group", "originTopic"), ("offset", "delayLevel"))
    yield from variants(33, {"offset": "0"}, (), ("offset",))
    yield from variants(11, PULL, ("consumerGroup", "topic"), ("queueId", "queueOffset"))
    yield from variants(207, {"groupName": "nope", "removeOffset": "false"}, ("groupName",))
    yield from variants(215, {"topic": "nope"}, ("topic",))
    for code in (13, 22, 23, 27, 209, 210, 211, 212, 213, 214, 301, 302, 220, 221, 39, 40, 326):
        yield Case(code, {})


def may_differ(case: Case, official: Answer, ours: Answer) -> bool:
    """Return whether a difference is known and intended, or harmless."""
    if "Exception" in (official.remark or "") or "Error" in (official.remark or ""):
        return True  # a mistake of its own: what counts is that ours answers at all
    if case.missing:  # it takes null for a name; nothing that is missing is guessed here
        return ours.code == 1 and "custom field" in (ours.remark or "")
    if case.code in (15, 17) and case.odd == "-1":  # it saves what no table can have
        return ours.code == 1 and "it has to be from 0 to" in (ours.remark or "")
    name = f"%RETRY%{case.odd}" if case.code == 36 else case.odd
    if case.code in TAKES_ANY_NAME and ILLEGAL.search(name if case.odd else ""):
        return ours.code == 1
    return case.code == 200 and len(case.odd) > 255 and ours.code == 1


def until_forgotten(address: str) -> None:
    """Wait until a name server has noticed that a registered client disconnected."""
    for _ in range(5000):
        if exchange(address, 105, {"topic": "T"}).code:
            return
    pytest.fail("a broker stays that has hung up")


def answers(kind: str, address: str, cases: Sequence[Case]) -> list[Answer | str]:
    found: list[Answer | str] = []
    for case in cases:
        try:
            if case.code == 105:
                until_forgotten(address)
            fields = None if case.fields is None else dict(case.fields)
            found.append(exchange(address, case.code, fields, case.body))
        except OSError as error:
            found.append(f"{kind}: {type(error).__name__}")
    return found


@pytest.fixture(scope="module")
def brokers(
    make_name_server: MakeNameServer, make_broker: MakeBroker, scratch: Path
) -> Iterator[list[Broker]]:
    """The official one and ours, each with a name server of its kind."""
    folder = scratch / "odd-requests"
    with (
        make_name_server("official", folder / "theirs-names") as their_names,
        make_broker("official", folder / "theirs", their_names) as theirs,
        make_name_server("ours", folder / "ours-names") as our_names,
        make_broker("ours", folder / "ours", our_names) as ours,
    ):
        yield [theirs, ours]


@pytest.mark.parametrize("server", ["name server", "broker"])
def test_our_broker_answers_as_the_original(server: str, brokers: list[Broker]) -> None:
    is_broker = server == "broker"
    cases = list(to_brokers() if is_broker else to_name_servers())
    theirs, ours = (
        answers(each.kind, each.address if is_broker else each.name_server.address, cases)
        for each in brokers
    )
    differences = []
    for case, official, our in zip(cases, theirs, ours, strict=True):
        assert isinstance(our, Answer), f"{case}: {our}"
        assert isinstance(official, Answer), f"{case}: {official}"
        same = _shape(official) == _shape(our)
        if not same and not may_differ(case, official, our):
            differences.append(f"{case}\n  official {official}\n  ours     {our}")
    assert not differences, "\n".join(differences)


def _shape(answer: Answer) -> tuple[int, str]:
    return answer.code, HOST.sub("HOST", answer.remark or "")
