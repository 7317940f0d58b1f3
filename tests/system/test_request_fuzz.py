"""Requests that no client makes: fields left out, of another kind, out of every range; any body.

Whatever comes, every request is answered, no actor dies of it, and the broker goes on serving.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, replace
from dataclasses import fields as fields_of
from itertools import count
from json import dumps
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.broker import RESPONDERS
from actors.network.request import codes_of
from protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from protocol.bodies_tables import SubscriptionGroupConfig
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand, decode_json_header
from protocol.message import decode_records
from protocol.message_id import offset_message_id
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from tests.support.headers_by_code import REQUEST_HEADERS
from tests.support.transacting import COMMIT, end_command, half, producing, sending

RANDOM_COUNT = 100
SEND_CODES = (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
CODES = (*sorted(codes_of(RESPONDERS)), *SEND_CODES)
SHORT = {Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE_V2}
ANSWERED_WITHIN_MS = 40_000
"""Consumers that are asked do not answer here: their time has to be over."""
IN_THE_END_MS = 200_000
"""Whatever looks at all there is has looked: clients that are silent, open transactions."""
FAILURES = (
    "actor failed",
    "request handler failed",
    "actor restart scheduled",
    "supervisor gave up",
    "actor creation failed",
)

NUMBERS = (0, 1, 2, 3, 7, 8, 12, 255, 65_536, -1, -2, 2**31 - 1, -(2**31), 2**31, 10**12)
HUGE = (2**62, 2**63 - 1, -(2**63), 2**63, 10**30)
NAMES = ("Topic", "Other", "consumers", "producers", "client", "%RETRY%consumers", "%DLQ%consumers")
SYSTEM = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "cluster_REPLY_TOPIC")
ODD = (
    "",
    " ",
    "../../x",
    "a/b",
    "a@b",
    "a" * 300,
    "ä\U0001f600",
    "\0",
    "\x01\x02",
    "null",
    "[]",
    "\ud800x",
)
PROPERTIES = ("KEYS", "TAGS", "DELAY", "TRAN_MSG", "REPLY_TO_CLIENT", "RETRY_TOPIC", "PGROUP", "")
FLAGS = ("true", "false", "TRUE", "maybe")
LIKELY = {
    "topic": "Topic",
    "default_topic": "TBW102",
    "subscription": "*",
    "expression_type": "TAG",
    "topic_filter_type": "SINGLE_TAG",
    "perm": "6",
    "queue_id": "0",
}
NO_TEXT: tuple[object, ...] = (7, -1.5, None, True, [1], {"a": None}, 10**25)
BODIES = (
    HeartbeatData(
        "client",
        [ProducerData("producers")],
        [ConsumerData("consumers", "CONSUME_PASSIVELY", "CLUSTERING", None, [])],
    ).encode(),
    SubscriptionGroupConfig("consumers").encode(),
    b'{"clientId":"c","consumerGroup":"consumers","mqSet":[{"topic":"Topic","queueId":1}]}',
    b"",
    b"{}",
    b"[]",
    b"null",
    b"7",
    b'"text"',
    b"\xff\xfe{",
    b"[" * 500,
    b'{"clientId":"client","group":7,"subscriptionData":{}}',
    b'{"clientId":"c","consumerGroup":"consumers","mqSet":[null,{"topic":null,"queueId":-1}]}',
    b'{"clientID":null,"consumerDataSet":[{"groupName":"../x","subscriptionDataSet":[null]}]}',
    b'{"clientID":"c","consumerDataSet":[null],"producerDataSet":[{"groupName":null}]}',
    b'{"groupName":"new","retryQueueNums":-5,"retryMaxTimes":999999999999}',
    b'{"groupName":"a/b"}',
    b'{"groupName":["x"]}',
    b"maxMessageSize=abc\nslaveReadEnable=true\n=\n",
    b"\\u00zz=1\nstorePathRootDir=/tmp/x\n",
    b"transactionCheckInterval=-1\n",
    b"flushDiskType=SYNC_FLUSH\nbrokerRole=SLAVE\n",
)


class Fuzz:
    """One broker, and what is asked of it."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(seed)
        self.is_slave = seed % 5 == 4
        config = replace(BROKER, property_filter_enable=self.random.random() < 0.5)
        if self.is_slave:
            config = replace(config, broker_role="SLAVE", broker_id=1)
        self.made = SimulatedBroker(seed, config=config, store_config=STORE)
        self.ids, self.offsets = ["7F00000100002A9F" + "0" * 16], ["0"]
        if not self.is_slave:
            self._fill()

    def _fill(self) -> None:
        made = self.made
        made.make_topic()
        made.make_group()
        producing(made)
        for n in range(5):
            record = made.stored(made.send(b"%d" % n, queue_id=n % 4, properties="KEYS\x01k\x02"))
            self._know(record.physical_offset)
        self._know(half(made, "one").physical_offset)
        record = half(made, "two")
        made.client.start(end_command(record, COMMIT))
        made.start_send(**sending("three"))
        made.send(b"later", properties="DELAY\x011\x02")
        made.subscribe()
        made.system.advance(2000)

    def renew(self) -> None:
        """Create again what earlier requests may have removed."""
        if not self.is_slave:
            self.made.make_topic()
            self.made.make_group()
        self.made.subscribe(version=self.made.clock.now_ms())

    def _know(self, offset: int) -> None:
        host = self.made.broker.store.commit_log.store_host
        self.ids.append(offset_message_id(host, offset))
        self.offsets.append(str(offset))

    def value(self) -> str:
        """Anything at all; in one of ten cases as a property of a message."""
        random = self.random
        kinds = (NUMBERS, NUMBERS, HUGE, NAMES, NAMES, SYSTEM, ODD, FLAGS, self.ids, self.offsets)
        value = str(random.choice(random.choice(kinds)))
        if random.random() < 0.1:
            value = f"{random.choice(PROPERTIES)}\x01{value}\x02"
        return value

    def likely(self, field: Field[Any]) -> str:
        """Return a value that a client could mean."""
        random, hint, name = self.random, str(field.type), field.name
        if name in LIKELY:
            return LIKELY[name]
        if "bool" in hint:
            return random.choice(FLAGS)
        if "int" in hint:
            return random.choice(("0", "1", "2", "3", "8", *self.offsets))
        if name.endswith("id"):
            return random.choice(("client", *self.ids))
        return random.choice(("consumers", "producers") if "group" in name else ("Topic", "Other"))

    def fields(self, code: int, strange: Mapping[str, str | None]) -> dict[str, object]:
        """Return fields of this code, some of them unusual; None omits one."""
        found: dict[str, object] = {}
        for each in fields_of_code(code):
            name = each.metadata["short" if code in SHORT else "name"]
            value = strange[each.name] if each.name in strange else self.likely(each)
            if value is not None:
                found[name] = value
        return found

    def body(self) -> bytes | None:
        random = self.random
        kind = random.randrange(5)
        if kind == 0:
            return None
        if kind == 1:
            return random.randbytes(random.randrange(200))
        body = bytearray(random.choice(BODIES))
        if kind == 2 and body:
            body[random.randrange(len(body))] = random.randrange(256)
        return bytes(body)

    def commands(self) -> Iterator[RemotingCommand]:
        """This seed's odd value in every place that there is, then whatever comes to mind."""
        random = self.random
        odd = ODD[self.seed % len(ODD)]
        places = [(code, each.name) for code in CODES for each in fields_of_code(code)]
        for code, name in random.sample(places, len(places)):
            yield self.command(code, self.fields(code, {name: odd}))
        for _ in range(RANDOM_COUNT):
            code = random.choice(CODES)
            names = [each.name for each in fields_of_code(code)]
            some = random.sample(names, min(random.choice((0, 1, 2, 99)), len(names)))
            values = {name: None if random.random() < 0.2 else self.value() for name in some}
            found = self.fields(code, values)
            if random.random() < 0.2:
                found = {key: random.choice((value, *NO_TEXT)) for key, value in found.items()}
            yield self.command(code, found)

    def command(
        self, code: int, found: dict[str, object], *, oneway: float = 0.1
    ) -> RemotingCommand:
        """Return a command as decoded from the wire: values in JSON need not be strings."""
        random = self.random
        header = {
            "code": code,
            "flag": ONEWAY_FLAG if random.random() < oneway else 0,
            "language": random.choice(("JAVA", "CPP", "GO", "NOBODY")),
            "version": random.choice((407, 407, 28, 479, 0, -1)),
            "extFields": found or None,
        }
        command = decode_json_header(dumps(header).encode())
        command.body = self.body()
        return command


def fields_of_code(code: int) -> tuple[Field[Any], ...]:
    """The fields of this request's header, if it has one."""
    header = REQUEST_HEADERS.get(code)
    return () if header is None else fields_of(header)


def may_be_silent(command: RemotingCommand) -> bool:
    """One-way, or the verdict of a producer that does not know."""
    outcome = (command.fields or {}).get("commitOrRollback")
    return command.is_oneway or (command.code == Code.END_TRANSACTION and outcome == "0")


def ask(fuzz: Fuzz, command: RemotingCommand) -> None:
    """One request: an answer comes."""
    answers: list[RemotingCommand] = []
    fuzz.made.client.start(command, answers.append)
    fuzz.made.system.drain()
    if not answers and not may_be_silent(command):
        fuzz.made.system.advance(ANSWERED_WITHIN_MS)
    assert answers or may_be_silent(command), f"no answer: {command!a}"


def check_serves(fuzz: Fuzz, topic: str) -> None:
    """A message goes in and comes out; a slave at least says how it is."""
    made = fuzz.made
    assert made.ask(RemotingCommand(Code.GET_BROKER_RUNTIME_INFO)).code == ResponseCode.SUCCESS
    if not fuzz.is_slave:
        made.make_topic(topic)
        made.make_group(topic)
        body = topic.encode()
        assert made.send(body, topic=topic).code == ResponseCode.SUCCESS
        made.system.drain()
        answer = made.pull(topic=topic, consumer_group=topic)
        assert answer.code == ResponseCode.SUCCESS
        assert [record.body for record in decode_records(answer.body or b"")] == [body]


@pytest.mark.trial(short=2, long=1000)
def test_any_request_is_answered_without_affecting_others(seed: int) -> None:
    print(f"seed {seed}")
    fuzz = Fuzz(seed)
    made = fuzz.made
    with capture_logs() as lines:
        for number, command in enumerate(fuzz.commands()):
            if number % 10 == 0:
                fuzz.renew()
            ask(fuzz, command)
            failed = [line for line in lines if line["event"] in FAILURES]
            assert not failed, (Code(command.code).name, ascii(command), failed)
        made.system.advance(IN_THE_END_MS)
        failed = [line for line in lines if line["event"] in FAILURES]
        assert not failed, failed
    check_serves(fuzz, "After")
    made.stop()
    made.start()
    check_serves(fuzz, "Again")


def ask_everything(fuzz: Fuzz) -> dict[str, list[RemotingCommand]]:
    """One request of each code, all at once, and some steps of what follows."""
    made, random = fuzz.made, fuzz.random
    answers: dict[str, list[RemotingCommand]] = {}
    for code in random.sample(CODES, len(CODES)):
        command = fuzz.command(code, fuzz.fields(code, {}), oneway=0)
        if not may_be_silent(command):
            got: list[RemotingCommand] = []
            answers[Code(code).name] = got
            made.client.start(command, got.append)
    steps = count(-random.randrange(2 * len(CODES)))
    with suppress(TimeoutError):  # nothing is left to do
        made.system.run_until(lambda: next(steps) >= 0, 0)
    return answers


@pytest.mark.trial(short=2, long=500)
def test_every_request_is_answered_when_an_actor_fails(seed: int) -> None:
    print(f"seed {seed}")
    fuzz = Fuzz(5 * seed)
    made = fuzz.made
    names = [spec.name for spec in made.broker.children()]
    for name in fuzz.random.sample(names, 4):
        fuzz.renew()
        answers = ask_everything(fuzz)
        made.system.address(name).tell(object())
        made.system.advance(ANSWERED_WITHIN_MS)
        silent = [code for code, got in answers.items() if not got]
        assert not silent, (name, silent)
    check_serves(fuzz, "After")


@pytest.mark.trial(short=2, long=500)
def test_every_request_is_answered_at_a_stop(seed: int) -> None:
    print(f"seed {seed}")
    fuzz = Fuzz(seed)
    answers = ask_everything(fuzz)
    fuzz.made.stop()
    assert [code for code, got in answers.items() if not got] == []
