"""Recorded questions about groups, asked of our broker: the same answers, bodies included.

Each pair is replayed on a broker of its own that is made to look, from the recorded answer, as the
original looked then: topics filled, offsets committed, clients connected. What the broker asked of
a consumer for an answer is compared too, and the consumer answers what it answered then. Left out:
rates, and when a producer was heard of last.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from protocol.bodies import ConsumerData, HeartbeatData, MessageQueue, ProducerData
from protocol.bodies_admin import (
    ClientConnection,
    ConsumerConnection,
    ConsumeStatsBody,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupList,
    ProducerConnection,
    ProducerTable,
    TopicStatsTable,
)
from protocol.bodies_client import ConsumerStatusBody, ResetOffsetBody, ResetOffsetList
from protocol.codes import LanguageCode, RequestCode
from protocol.frame import RemotingCommand
from protocol.json_body import Body
from protocol.signature import CREDENTIALS
from tests.actors.test_golden_answers import empty_record_bytes, plain, told
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from tests.support.golden import frames
from tests.support.groups import update

BODIES: dict[int, type[Body]] = {
    202: TopicStatsTable,
    203: ConsumerConnection,
    204: ProducerConnection,
    208: ConsumeStatsBody,
    222: ResetOffsetBody,
    223: ConsumerStatusBody,
    300: GroupList,
    303: ConsumeTimeSpans,
    308: CorrectionOffsets,
    317: ConsumeStatsList,
    328: ProducerTable,
}
CODES = (*BODIES, 15, 220, 307, 309, 314)
FILES = {"java-4.9.7": 40, "java-5.3.3": 1, "go-v2": 2}
"""Minimum number of compared pairs."""

Record = dict[str, Any]


def recorded(name: str) -> Iterator[tuple[Record, Record]]:
    """Questions to a broker with these codes, and their answers."""
    asked: dict[tuple[int, int], Record] = {}
    for record in frames(name):
        key = record["pair"], record["opaque"]
        if record["direction"] == "request" and record["to"].startswith("broker"):
            if record["code"] in CODES:
                asked[key] = record
        elif record["direction"] == "response" and key in asked:
            yield asked.pop(key), record


Question = frozenset[tuple[str, str]]


def question(fields: dict[str, str] | None) -> Question:
    """Return the request without credentials: the original passes them on, TroupeMQ does not."""
    return frozenset(pair for pair in (fields or {}).items() if pair[0] not in CREDENTIALS)


def asked_of_clients(code: int) -> dict[Question, tuple[RemotingCommand, RemotingCommand]]:
    """Return the original's requests to consumers and their answers."""
    found, waiting = {}, {}
    for record in frames("java-4.9.7"):
        if record["direction"] == "server-request" and record["code"] == code:
            waiting[record["pair"]] = told(record)
        elif record["direction"] == "server-response" and record["pair"] in waiting:
            command = waiting.pop(record["pair"])
            found[question(command.fields)] = command, told(record)
    return found


class Replay:
    """A broker that looks as an answer says, and the question."""

    def __init__(self, request: Record, record: Record) -> None:
        self.asked, self.wanted = told(request), told(record)
        self.fields = self.asked.fields or {}
        self.now_ms = request["ts"]
        config = replace(BROKER, broker_name="broker-a")
        began_ms = self.now_ms - 86_400_000
        self.made = SimulatedBroker(1, config=config, start_ms=began_ms, store_config=STORE)
        self.answers: list[RemotingCommand] = []

    def body(self, of: RemotingCommand) -> Any:
        kind = BODIES.get(self.asked.code)
        if kind is None or not of.body:
            return of.body
        return comparable(kind.decode(of.body))

    def set_up(self) -> None:
        if self.wanted.code == 0 and self.wanted.body:
            method = getattr(self, f"set_up_{self.asked.code}", None)
            kind = BODIES.get(self.asked.code)
            if method is not None:
                method(None if kind is None else kind.decode(self.wanted.body))
        elif self.wanted.code != 17 and "topic" in self.fields:
            self.made.make_topic(self.fields["topic"])

    def fill(self, queues: Mapping[MessageQueue, tuple[int, Mapping[int, int]]]) -> None:
        """So many messages in each queue, some of them stored at given times; others between."""
        self.topics(queues)
        plan = []
        for queue, (count, times) in queues.items():
            time_ms = self.made.clock.now_ms()
            for number in range(count):
                time_ms = times.get(number, time_ms)
                plan.append((time_ms, queue.topic, queue.queue_id, number))
        for time_ms, topic, queue_id, _ in sorted(plan):
            self.made.clock.set_wall(time_ms)
            self.made.start_send(topic=topic, queue_id=queue_id)
            self.made.system.drain()
        self.made.clock.set_wall(self.now_ms)

    def topics(self, queues: Mapping[MessageQueue, Any]) -> None:
        counts: Counter[str] = Counter(queue.topic for queue in queues)
        for topic, count in counts.items():
            self.made.make_topic(topic, queues=count)

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        self.made.ask(update(group, offset, queue.queue_id, queue.topic))

    def connect(self, connection: ClientConnection, data: HeartbeatData) -> Any:
        host, _, port = connection.client_addr.lstrip("/").partition(":")
        peer = self.made.new_client(int(port), host=host)
        command = RemotingCommand(
            RequestCode.HEART_BEAT,
            body=data.encode(),
            language=LanguageCode[connection.language],
            version=connection.version,
        )
        assert peer.request(command, timeout_s=60).code == 0
        return peer

    # --- by code

    def set_up_202(self, body: TopicStatsTable) -> None:
        self.fill(
            {
                queue: (ends.max_offset, {ends.max_offset - 1: ends.last_update_timestamp})
                for queue, ends in body.offset_table.items()
            }
        )

    def set_up_203(self, body: ConsumerConnection) -> None:
        data = ConsumerData(
            self.fields["consumerGroup"],
            body.consume_type,
            body.message_model,
            body.consume_from_where,
            list(body.subscription_table.values()),
        )
        for each in body.connection_set:
            self.connect(each, HeartbeatData(each.client_id, [], [data]))

    def set_up_204(self, body: ProducerConnection) -> None:
        for each in body.connection_set:
            data = HeartbeatData(each.client_id, [ProducerData(self.fields["producerGroup"])])
            self.connect(each, data)

    def set_up_328(self, body: ProducerTable) -> None:
        by_client: dict[str, list[ProducerData]] = {}
        connections = {}
        for group, listed in body.data.items():
            for each in listed:
                by_client.setdefault(each.client_id, []).append(ProducerData(group))
                connections[each.client_id] = ClientConnection(
                    each.client_id, each.remote_ip, each.language, each.version
                )
        for client_id, data in by_client.items():
            self.connect(connections[client_id], HeartbeatData(client_id, data))

    def fill_stats(self, listed: Mapping[str, list[ConsumeStatsBody]]) -> None:
        """Fill queues and offsets to match the recorded stats of all groups."""
        queues: dict[MessageQueue, tuple[int, dict[int, int]]] = {}
        for found in listed.values():
            for queue, each in [pair for one in found for pair in one.offset_table.items()]:
                count, times = queues.setdefault(queue, (0, {}))
                if each.last_timestamp:
                    times[each.consumer_offset - 1] = each.last_timestamp
                queues[queue] = max(count, each.broker_offset), times
        self.fill(queues)
        for group, found in listed.items():
            self.made.make_group(group)
            for queue, each in [pair for one in found for pair in one.offset_table.items()]:
                self.commit(group, queue, each.consumer_offset)

    def set_up_208(self, body: ConsumeStatsBody) -> None:
        self.fill_stats({self.fields["consumerGroup"]: [body]})

    def set_up_317(self, body: ConsumeStatsList) -> None:
        self.fill_stats(by_group(body))

    def set_up_222(self, body: ResetOffsetBody) -> None:
        timestamp = int(self.fields["timestamp"])
        queues: dict[MessageQueue, tuple[int, dict[int, int]]] = {}
        for queue, goal in body.offset_table.items():
            if timestamp == -1:
                queues[queue] = goal, {}
            else:
                before = dict.fromkeys(range(goal), timestamp - 1000)
                queues[queue] = goal + 2, {**before, goal: timestamp, goal + 1: timestamp + 5000}
        self.fill(queues)
        for queue in queues:
            self.commit(self.fields["group"], queue, 3)
        self.member = self.consumer(self.fields["group"], "192.0.2.2@admc")

    def set_up_223(self, body: ConsumerStatusBody) -> None:
        (client_id,) = body.consumer_table
        self.member = self.consumer(self.fields["group"], client_id)

    def set_up_300(self, body: GroupList) -> None:
        for group in body.group_list:
            self.commit(group, MessageQueue(self.fields["topic"], "broker-a", 0), 1)

    def set_up_303(self, body: ConsumeTimeSpans) -> None:
        queues: dict[MessageQueue, tuple[int, dict[int, int]]] = {}
        for each in body.consume_time_span_set:
            times = {0: each.min_time_stamp, 2: each.consume_time_stamp}
            if each.delay_time:
                times |= {3: self.now_ms - each.delay_time, 4: each.max_time_stamp}
                times[3] = min(times[3], times[4])
            queues[each.message_queue] = len(times) + 1, times
        self.fill(queues)
        for queue in queues:
            self.commit(self.fields["group"], queue, 3)

    def set_up_308(self, body: CorrectionOffsets) -> None:
        topic = self.fields["topic"]
        for queue_id, offset in body.correction_offsets.items():
            self.commit("CG_lowest", MessageQueue(topic, "broker-a", queue_id), offset)
            for group in (self.fields["compareGroup"], self.fields.get("filterGroups", "CG_x")):
                self.commit(group, MessageQueue(topic, "broker-a", queue_id), offset + 5)

    def set_up_307(self, _: Any) -> None:
        self.member = self.consumer(self.fields["consumerGroup"], self.fields["clientId"])

    def set_up_309(self, _: Any) -> None:
        self.set_up_307(None)
        offset = int(self.fields["msgId"][-16:], 16)
        self.made.send(bytes(offset - empty_record_bytes()))
        self.made.send(b"consume this")

    def consumer(self, group: str, client_id: str) -> Any:
        data = ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING")
        connection = ClientConnection(client_id, "127.0.0.1:43352", "JAVA", 407)
        return self.connect(connection, HeartbeatData(client_id, [], [data]))

    # --- the question

    def ask(self) -> RemotingCommand:
        self.made.client.start(self.asked, self.answers.append)
        self.made.system.drain()
        if not self.answers:
            self.consumer_answers()
        (answer,) = self.answers
        return answer

    def consumer_answers(self) -> None:
        """The consumer was asked as it was then, and answers what it answered then."""
        (asked,) = [each for each in self.member.received if each.code != 40]
        known = asked_of_clients(asked.code)
        then, answered = known[frozenset((asked.fields or {}).items())]
        assert (asked.code, asked.flag) == (then.code, then.flag)
        if asked.code == 309:
            assert asked.body and b"consume this" in bytes(asked.body)
        self.member.reply(replace(answered, opaque=asked.opaque))
        self.made.system.drain()


def by_group(body: ConsumeStatsList) -> dict[str, list[ConsumeStatsBody]]:
    return {name: found for each in body.consume_stats_list for name, found in each.items()}


def comparable(body: Any) -> Any:
    """Without rates and moments, and in one order where the original has none."""
    if isinstance(body, ConsumeStatsBody):
        body.consume_tps = 0.0
        return {queue: each for queue, each in body.offset_table.items()}
    if isinstance(body, ConsumeStatsList):
        shown = {
            name: sorted(map(comparable, found), key=lambda one: str(sorted(one, key=str)))
            for name, found in by_group(body).items()
            if found
        }
        return shown, body.total_diff
    if isinstance(body, GroupList):
        return sorted(body.group_list)
    if isinstance(body, ProducerTable):
        for each in [one for listed in body.data.values() for one in listed]:
            each.last_update_timestamp = 0
        return {name: sorted(map(str, listed)) for name, listed in body.data.items()}
    if isinstance(body, ConsumeTimeSpans):
        for span in body.consume_time_span_set:  # local times: another test has them
            span.min_time_stamp_str = span.max_time_stamp_str = span.consume_time_stamp_str = None
    return body


@pytest.mark.heavy
@pytest.mark.parametrize("name", FILES)
def test_recorded_group_queries_get_the_recorded_answers(name: str) -> None:
    compared: Counter[int] = Counter()
    differing = []
    for request, record in recorded(name):
        if record.get("truncated"):
            continue
        replay = Replay(request, record)
        replay.set_up()
        answer, wanted = replay.ask(), replay.wanted
        replay.made.stop()
        compared[replay.asked.code] += 1
        ours = answer.code, plain(answer.remark), answer.fields, replay.body(answer)
        theirs = wanted.code, plain(wanted.remark), wanted.fields, replay.body(wanted)
        if ours != theirs:
            differing.append((request["id"], ours, theirs))
    assert differing == []
    assert sum(compared.values()) >= FILES[name]
    if name == "java-4.9.7":
        assert compared.keys() == set(CODES)


def test_members_get_the_originals_reset_notices() -> None:
    notices = [each for each in frames("java-4.9.7") if each["direction"] == "server-oneway"]
    wanted = {}
    for each in notices:
        if each["code"] == 220:
            command = told(each)
            wanted[(command.fields or {})["timestamp"]] = command
    compared = 0
    for request, record in recorded("java-4.9.7"):
        if request["code"] != 222 or record["code"] != 0:
            continue
        replay = Replay(request, record)
        replay.set_up()
        replay.ask()
        then = wanted.get(replay.fields["timestamp"])
        if then is None:
            continue
        (notice,) = [each for each in replay.member.received if each.code == 220]
        assert (notice.fields, notice.flag) == (then.fields, then.flag)
        is_cpp = replay.asked.language == LanguageCode.CPP
        kind: type[Body] = ResetOffsetList if is_cpp else ResetOffsetBody
        ours, theirs = kind.decode(notice.body), kind.decode(then.body)
        if is_cpp:
            assert sorted(map(str, ours.offset_table)) == sorted(map(str, theirs.offset_table))  # type: ignore[attr-defined]
        else:
            assert ours == theirs
        compared += 1
        replay.made.stop()
    assert compared >= 2
