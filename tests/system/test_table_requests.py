"""Requests that change a table, with values that no client sends: none costs an entry of another.

After whatever was asked, a broker and a name server are restarted: each table is as it was before
the stop, and the log has no line of damage.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import cache
from itertools import count
from json import dumps
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from actors.admin.settings import NamesrvSettings
from actors.broker import RESPONDERS
from actors.naming.namesrv import Namesrv
from actors.network.request import codes_of
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import (
    ONEWAY_FLAG,
    RemotingCommand,
    decode_binary_header,
    decode_json_header,
    encode_binary_header,
)
from protocol.headers.client import UpdateConsumerOffsetHeader
from protocol.headers.namesrv import PutKvConfigHeader
from storage.tables.json_config import load
from storage.tables.table_files import KV_TABLE, table_parsers
from tests.support.brokers import BROKER, SimulatedBroker
from tests.support.headers_by_code import REQUEST_HEADERS
from tests.support.name_servers import KV_PATH, name_server
from tests.support.peers import RecordingPeer, request, tell
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem

CONFIG = replace(BROKER, property_filter_enable=True)
SENDS = {Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE}
SHORT = {Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE_V2}
ASKS_ONLY = ("GET_", "QUERY_", "VIEW_", "SEARCH_", "CHECK_", "LOCK_", "UNLOCK_")
NO_TABLE = {  # they pass something on, clean or refuse
    Code.CONSUME_MESSAGE_DIRECTLY,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    Code.DELETE_EXPIRED_COMMITLOG,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE,
    Code.CLEAN_UNUSED_TOPIC,
    Code.UPDATE_AND_CREATE_ACL_CONFIG,
    Code.DELETE_ACL_CONFIG,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    Code.RESUME_CHECK_HALF_MESSAGE,
}
CHANGING = sorted(
    code
    for code in {Code(each) for each in codes_of(RESPONDERS)} | SENDS
    if not code.name.startswith(ASKS_ONLY) and code not in NO_TABLE
)
NAMESRV_CHANGING = sorted(
    code
    for code in map(Code, {**Namesrv.serves_codes, **NamesrvSettings.serves_codes})
    if not code.name.startswith(ASKS_ONLY)
)
DAMAGE = (
    "config file damaged",
    "entry left out",
    "entries left out",
    "consumer filters left out",
    "topics found by their queues",
    "groups found by their topics and offsets",
    "actor failed",
    "request handler failed",
)
MAKING = {
    Code.UPDATE_AND_CREATE_TOPIC,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_CONSUMER_OFFSET,
    Code.HEART_BEAT,
    Code.PUT_KV_CONFIG,
}
"""Each request makes an entry of its own, which no later one changes."""
VICTIMS = 3
"""That there are before."""
REQUESTS = 15
TOGETHER = 40
"""Requests that come before anything is saved: each save writes a whole table."""

# --- values

EDGES = [0, -1, -4, 255, 65_536, 65_537, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1]
EDGES += [2**63, -(2**63), -(2**63) - 1, 10**30]
NUMBERS = st.sampled_from(EDGES) | st.integers(-100, 100) | st.integers()
ODD_NAMES = ["", " ", "a@b", "../x", "a/b", "ä", "\0", "a\nb", "$ref", "@type", "x" * 300, "null"]
ODD_NAMES += ["%RETRY%new", "new", "\x7f", "\u2028", "TBW102", "SCHEDULE_TOPIC_XXXX", '"', "{", "1"]
TEXTS = st.sampled_from(ODD_NAMES) | st.text(max_size=8)
ODD = st.one_of(NUMBERS.map(str), TEXTS, st.sampled_from(["true", "maybe"]))
NO_TEXT = st.sampled_from([7, -1.5, True, [1], {"a": None}, 10**25, None])
LIKELY = {
    "defaultTopic": "TBW102",
    "topicFilterType": "SINGLE_TAG",
    "perm": "6",
    "queueId": "0",
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "bodyCrc32": "0",
    "compressed": "false",
}


def likely(name: str, number: int) -> str:
    """Return a value that a client could mean; its number is unique, so that a later one does not
    hide it.
    """
    lower = name.lower()
    if "group" in lower or name == "namespace":
        return f"victims-{number}"
    if name in LIKELY:
        return LIKELY[name]
    return f"Victim-{number}" if "topic" in lower else "4"


BODIES: dict[Code, dict[str, Any]] = {
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {
        "groupName": "victims",
        "retryQueueNums": 1,
        "retryMaxTimes": 3,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "consumeEnable": True,
    },
    Code.HEART_BEAT: {
        "groupName": "victims",
        "topic": "Victim",
        "subString": "a > 1",
        "expressionType": "SQL92",
        "subVersion": 5,
    },
    Code.REGISTER_BROKER: {
        "topicName": "Victim",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicSysFlag": 0,
        "topicFilterType": "SINGLE_TAG",
    },
    Code.SET_MESSAGE_REQUEST_MODE: {
        "topic": "Victim",
        "consumerGroup": "victims",
        "mode": "POP",
        "popShareQueueNum": 1,
    },
    Code.BATCH_ACK_MESSAGE: {
        "c": "victims",
        "t": "Victim",
        "r": "1",
        "so": 0,
        "q": 0,
        "pt": 1,
        "b": "AQ==",
    },
    Code.UPDATE_BROKER_CONFIG: {"defaultTopicQueueNums": 8, "brokerPermission": 6},
    Code.UPDATE_NAMESRV_CONFIG: {"kvConfigPath": "/x", "orderMessageEnable": True},
}
"""Fields of the bodies that matter."""


def body(code: Code, fields: Mapping[str, Any]) -> bytes:
    if code in (Code.UPDATE_BROKER_CONFIG, Code.UPDATE_NAMESRV_CONFIG):
        return "".join(f"{key}={value}\n" for key, value in fields.items()).encode()
    found: dict[str, Any] = dict(fields)
    if code == Code.HEART_BEAT:
        consumer = {"groupName": found.pop("groupName"), "subscriptionDataSet": [found]}
        consumer |= {"consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
        found = {"clientID": "client", "consumerDataSet": [consumer]}
    if code == Code.REGISTER_BROKER:
        version = {"counter": found["perm"], "timestamp": 1}
        found = {"topicConfigTable": {"Victim": found}, "dataVersion": version}
        found = {"topicConfigSerializeWrapper": found, "filterServerList": []}
    if code == Code.BATCH_ACK_MESSAGE:
        found = {"acks": [found]}
    return dumps(found).encode() if fields else b"body"


def fields_named(code: Code) -> list[str]:
    """The names of a code's fields, as its header has them."""
    header = REQUEST_HEADERS.get(code)
    key = "short" if code in SHORT else "name"
    return [] if header is None else [each.metadata[key] for each in fields_of(header)]


def made_request(
    code: Code, number: int, strange: Mapping[str, Any], *, is_json: bool, oneway: bool
) -> RemotingCommand:
    """Return a command as decoded from the wire, in one of the two header forms; None omits a
    field.
    """
    number = number if code in MAKING else number % VICTIMS
    header = REQUEST_HEADERS.get(code)
    names = [] if header is None else [each.metadata["name"] for each in fields_of(header)]
    fields: dict[str, Any] = {
        own: likely(name, number) for own, name in zip(fields_named(code), names, strict=True)
    }
    fields |= {key: value for key, value in strange.items() if key in fields}
    fields = {key: value for key, value in fields.items() if value is not None}
    flag = ONEWAY_FLAG if oneway else 0
    if is_json:
        found = {"code": code, "flag": flag, "language": "JAVA", "version": 407}
        command = decode_json_header(dumps({**found, "extFields": fields}).encode())
    else:
        texts = {name: str(value) for name, value in fields.items()}
        command = decode_binary_header(
            encode_binary_header(RemotingCommand(code, texts, flag=flag, version=407))
        )
    usual = {
        key: f"{value}-{number}" if value in ("victims", "Victim") else value
        for key, value in BODIES.get(code, {}).items()
    }
    command.body = body(code, usual | {key: strange[key] for key in usual.keys() & strange.keys()})
    return command


def each_edge(code: Code) -> Iterator[RemotingCommand]:
    """Every odd value of the list in every place that there is."""
    numbers = count()
    for name in (*fields_named(code), *BODIES.get(code, ())):
        for value in (*map(str, EDGES), *ODD_NAMES, *EDGES[:3], None):
            number = next(numbers)
            yield made_request(
                code, number, {name: value}, is_json=number % 2 == 0, oneway=number % 3 == 0
            )


@st.composite
def requests(draw: st.DrawFn, code: Code) -> list[RemotingCommand]:
    """Requests of this code with whatever comes to mind."""
    names = sorted({*fields_named(code), *BODIES.get(code, ())})
    odd = st.dictionaries(st.sampled_from(names), NUMBERS | TEXTS | NO_TEXT | ODD, max_size=2)
    forms = st.tuples(odd, st.booleans(), st.booleans())
    return [
        made_request(code, number, strange, is_json=is_json, oneway=oneway)
        for number, (strange, is_json, oneway) in enumerate(
            draw(st.lists(forms, min_size=REQUESTS, max_size=REQUESTS))
        )
    ]


QUICK = settings(
    derandomize=True,
    max_examples=2,
    phases=[Phase.generate],
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

# --- a broker


@cache
def filled() -> FakeDisk:
    """Return the store of a broker with protected topics, groups and offsets, and a victim."""
    made = SimulatedBroker(1, disk=(disk := FakeDisk()), config=replace(CONFIG))
    for number in range(5):
        made.make_topic(f"Kept-{number}")
        made.make_group(f"kept-{number}")
        _commit(made, f"Kept-{number}", f"kept-{number}", number)
    for number in range(VICTIMS):
        made.make_topic(f"Victim-{number}")
        made.make_group(f"victims-{number}")
        _commit(made, f"Victim-{number}", f"victims-{number}", 3)
    made.subscribe("a > 1", topic="Kept-1", kind="SQL92", group="kept-1")
    made.send(topic="Victim-0", properties="DELAY\x011")
    made.system.advance(12_000)
    made.stop()
    return disk


def _commit(made: SimulatedBroker, topic: str, group: str, offset: int) -> None:
    header = UpdateConsumerOffsetHeader(group, topic, 0, offset)
    command = RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, header.encode())
    assert made.ask(command).code == ResponseCode.SUCCESS


def tables_of(made: SimulatedBroker) -> dict[str, Mapping[Any, Any]]:
    """Return a broker's tables in memory; of filters only what a restart keeps."""
    tables = made.broker.tables
    return {
        "topics": dict(tables.topics.value),
        "groups": dict(tables.groups.value),
        "offsets": {key: dict(queues) for key, queues in tables.offsets.value.items()},
        "delays": dict(tables.delay_offsets.value),
        "filters": {
            (each.topic, each.group): (each.expression, each.client_version, each.positions)
            for each in tables.filters.value
        },
    }


def within_queues(made: SimulatedBroker, offsets: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    """Offsets as a start leaves them: none lies behind the end of its queue."""
    queues = made.broker.store.consume_queues

    def end(key: str, queue_id: int) -> int:
        queue = queues.get(key.partition("@")[0], queue_id)
        return 0 if queue is None else queue.max_offset

    return {
        key: {queue_id: min(offset, end(key, queue_id)) for queue_id, offset in found.items()}
        for key, found in offsets.items()
    }


def kept(table: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: each for key, each in table.items() if "ept-" in str(key)}


@pytest.mark.heavy
@pytest.mark.parametrize("code", CHANGING, ids=[code.name for code in CHANGING])
def test_no_request_costs_a_brokers_tables_an_entry(code: Code) -> None:
    @QUICK
    @given(requests(code))
    def ask(commands: list[RemotingCommand]) -> None:
        ask_and_restart(commands)

    def ask_and_restart(commands: Iterable[RemotingCommand]) -> None:
        made = SimulatedBroker(1, disk=filled().killed(), config=replace(CONFIG))
        base = tables_of(made)
        for number, command in enumerate(commands):
            made.client.start(command, lambda _: None)
            if number % TOGETHER == 0:
                made.system.drain()
        made.system.advance(12_000)
        made.stop()
        before = tables_of(made)
        with capture_logs() as lines:
            made.start()
        assert [line for line in lines if line["event"] in DAMAGE] == []
        before["offsets"] = within_queues(made, before["offsets"])
        after = tables_of(made)
        delays = after.pop("delays")  # what is due by then is delivered at once
        assert all(delays[level] >= offset for level, offset in before["delays"].items())
        for name in after:
            assert after[name] == before[name], name
            assert kept(after[name]) == kept(base[name]) != {}, name
        made.stop()

    if code not in (Code.UPDATE_BROKER_CONFIG, Code.UPDATE_NAMESRV_CONFIG):
        ask_and_restart(each_edge(code))
    ask()


# --- a name server


@contextmanager
def restarted(disk: FakeDisk) -> Iterator[SimulatedSystem]:
    with capture_logs() as lines, name_server(disk) as system:
        system.drain()
        yield system
    assert [line for line in lines if line["event"] in DAMAGE] == []


@pytest.mark.parametrize("code", NAMESRV_CHANGING, ids=[code.name for code in NAMESRV_CHANGING])
def test_no_request_costs_a_name_servers_settings_an_entry(code: Code) -> None:
    @QUICK
    @given(requests(code))
    def ask(commands: list[RemotingCommand]) -> None:
        ask_and_restart(commands)

    def ask_and_restart(commands: Iterable[RemotingCommand]) -> None:
        disk, peer = FakeDisk(), RecordingPeer()
        to = "settings" if code in NamesrvSettings.serves_codes else "namesrv"
        with name_server(disk) as system:
            for number in range(5):
                fields = PutKvConfigHeader("kept", f"key-{number}", str(number)).encode()
                tell(system, "namesrv", request(Code.PUT_KV_CONFIG, fields), peer)
            for command in commands:
                tell(system, to, command, peer)
                system.drain()
            before = namespaces(disk)
        with restarted(disk):
            pass
        after = namespaces(disk)
        assert after == before
        assert after["kept"] == {f"key-{number}": str(number) for number in range(5)}

    if code not in (Code.UPDATE_BROKER_CONFIG, Code.UPDATE_NAMESRV_CONFIG):
        ask_and_restart(each_edge(code))
    ask()


def namespaces(disk: FakeDisk) -> dict[str, dict[str, str]]:
    parse: Any = table_parsers(CONFIG.bloom)[KV_TABLE]
    found = load(disk, KV_PATH, parse)
    assert found.value is not None and not found.is_to_be_saved, found
    value: dict[str, dict[str, str]] = found.value
    return value
