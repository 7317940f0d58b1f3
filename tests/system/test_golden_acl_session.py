"""The recorded session of an official broker that has access control, held again with ours.

Every frame goes in its order and at its moment, over a connection for each of the recorded ones:
those to the broker to a guarded one on the same ports, those to the name server, which had no
access control, to one that has the same accounts. What comes back is compared whole: codes, words,
fields, ids and bodies. What differs has its reason in `REASONS`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import ANY

import pytest

from actors.access.grant import PREFIX
from actors.config import NamesrvConfig
from actors.namesrv_server import children, service
from actors.network.start_access import opened_acl
from actors.parts import Ports
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand, decode_frame
from protocol.message import MessageRecord, decode_records
from storage.access.acl_files import save_acl_file
from tests.support.brokers import BROKER, SimulatedBroker
from tests.support.golden import frames
from tests.support.guarded import ACL_PATH, disk_with
from troupemq.testing.simulation import SimulatedSystem
from troupemq.testing.virtual_broker import LocalClient

pytestmark = pytest.mark.heavy

Record = dict[str, Any]


class Told(NamedTuple):
    """Fields of an answer."""

    code: int
    remark: Any
    fields: dict[str, Any]
    body: Any


ACCOUNTS = """
globalWhiteRemoteAddresses: [10.10.103.*, 192.168.0.*]
accounts:
- {accessKey: RocketMQ, secretKey: 12345678, admin: false, defaultTopicPerm: DENY,
   defaultGroupPerm: DENY, topicPerms: [GL_A=PUB|SUB, GL_B=DENY, GL_C=SUB],
   groupPerms: [CG_deny=DENY, CG_acl=PUB|SUB]}
- {accessKey: rocketmq2, secretKey: 12345678, admin: true, whiteRemoteAddress: 192.168.1.*}
"""
HOST, BROKERS_HOST = "127.0.0.1", "10.10.103.1"
"""Whence clients ask, and the broker, which cannot sign: a white address."""

PLACE = re.compile(r", org\.apache\.rocketmq\.acl\.plain\.\w+\.\w+\(\w+\.java:\d+\)$")
"""Source position at which the original refused."""


class Servers:
    """Broker and name server with access control, and their connected clients."""

    def __init__(self, start_ms: int) -> None:
        settings: dict[str, Any] = {"acl_enable": True, "acl_file": ACL_PATH}
        settings["takes_samples"] = True
        self.broker = SimulatedBroker(
            1,
            disk=disk_with(ACCOUNTS),
            config=replace(BROKER, trace_topic_enable=True, **settings),
            start_ms=start_ms,
            ports=Ports(20911, 20909, 20912),
        )
        config = NamesrvConfig(kv_config_path="/kv", **settings)
        disk = disk_with(ACCOUNTS)
        save_acl_file(disk, "/kv", b'{"configTable":{"ORDER_TOPIC_CONFIG":{}}}')  # as it was there
        self.names = SimulatedSystem(1, disk, start_ms)
        acl = opened_acl(self.names, config, "")
        self._names_service = service(self.names, config, acl)
        specs = children(self.names, config, [], acl)
        self.names.start(*(each for each in specs if each.name != "namesrv_acceptor"))
        self._clients: dict[int, LocalClient] = {}

    def wind_to(self, now_ms: int) -> None:
        for system in (self.broker.system, self.names):
            if (ms := now_ms - system.clock.now_ms()) > 0:
                system.advance(ms)

    def client(self, record: Record) -> LocalClient:
        """The one of that connection."""
        number = record["conn"]
        if number not in self._clients:
            self._clients[number] = self._new_client(record)
        return self._clients[number]

    def _new_client(self, record: Record) -> LocalClient:
        if record["to"] == "broker":
            return self.broker.new_client(record["conn"], host=HOST)
        host = BROKERS_HOST if record["client"].startswith("broker") else HOST
        return LocalClient(self.names, self._names_service, host=host, port=record["conn"])

    def ask(self, record: Record) -> list[RemotingCommand]:
        """Passes on a recorded request; its answer, where one comes at once."""
        answers: list[RemotingCommand] = []
        self.client(record).start(decode_frame(record["frame"][4:]), answers.append)
        self.broker.system.drain()
        self.names.drain()
        return answers

    def restart_broker(self, now_ms: int) -> None:
        self.broker.stop()
        self.broker.start_ms = now_ms
        self.broker.start()

    def stop(self) -> None:
        self.broker.stop()
        assert self.names.stop(60)


def conversations() -> list[list[Record]]:
    """Return pairs of request and answer in recorded order."""
    found: dict[tuple[str, int], list[Record]] = {}
    for record in frames("acl"):
        found.setdefault((record["session"], record["pair"]), []).append(record)
    return sorted(found.values(), key=lambda records: (records[0]["ts"], records[0]["id"]))


def body_of(code: int, body: bytes | memoryview | None) -> Any:
    """JSON as values, records without their moment, the port that they came from, and the order of
    their properties, and of topics: that is a Java map's."""
    if not body:
        return None
    if code in (Code.PULL_MESSAGE, Code.QUERY_MESSAGE):
        return [(in_order(each.properties), neutral(each)) for each in decode_records(bytes(body))]
    found = json.loads(re.sub(r"([{,])(\d+):", r'\1"\2":', bytes(body).decode()))  # fastjson's keys
    if "topicList" in found:
        found["topicList"].sort()
    return found


def in_order(properties: bytes) -> list[bytes]:
    return sorted(properties.split(b"\x02"))


def neutral(record: MessageRecord) -> MessageRecord:
    return replace(record, store_timestamp=0, born_host=b"", properties=b"")


def told(request: Record, answer: RemotingCommand) -> Told:
    remark = None if answer.remark is None else PLACE.sub("", answer.remark)
    return Told(
        answer.code, remark, dict(answer.fields or {}), body_of(request["code"], answer.body)
    )


# --- what differs


def as_a_guarded_name_server(request: Record, theirs: Told) -> tuple[str, Told]:
    if request["code"] == Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
        topics = [each for each in theirs.body["topicList"] if each != "RMQ_SYS_TRANS_HALF_TOPIC"]
        return "it came with a registration that is not kept", theirs._replace(
            body={"topicList": topics}
        )
    if request["client"].startswith("broker") or "AccessKey" in request["header"]["extFields"]:
        return "", theirs
    return "the original name server asks nobody: H14", Told(
        1, f"{PREFIX}No accessKey is configured", {}, None
    )


def as_ours(request: Record, theirs: Told) -> tuple[str, Told]:
    """Return the reason why our answer differs, and the expected one."""
    if request["to"] == "namesrv":
        return as_a_guarded_name_server(request, theirs)
    code = request["code"]
    if code == Code.SEND_BATCH_MESSAGE and "GT_Go" in str(request["header"]):
        refused = f"{PREFIX}No default permission for topic:GT_Go"
        return "batches go unchecked there: H1", Told(1, refused, {}, None)
    if code == Code.GET_BROKER_CLUSTER_ACL_CONFIG:
        text = json.dumps(theirs.body).replace("12345678", "******").replace("secret99", "******")
        return "no secrets are shown: H4", theirs._replace(body=json.loads(text))
    if code == Code.UPDATE_AND_CREATE_ACL_CONFIG and theirs.code:
        words = theirs.remark.replace("secretKey=x", "secretKey")
        return "nor repeated: H12", theirs._replace(remark=words)
    if code == Code.GET_BROKER_CLUSTER_ACL_INFO:
        versions = {"version": ANY, "allAclFileVersion": ANY, "aclFingerprints": ANY}
        reason = "the moment of a file, and its content's fingerprint, which is ours"
        return reason, theirs._replace(fields=theirs.fields | versions)
    if code == Code.QUERY_MESSAGE:
        fields = {"indexLastUpdateTimestamp": ANY, "indexLastUpdatePhyoffset": ANY}
        return "queries with an odd field fail there always", Told(0, None, fields, ANY)
    return "", theirs


REASONS = {
    "": 81,
    "the original name server asks nobody: H14": 3,
    "batches go unchecked there: H1": 1,
    "no secrets are shown: H4": 2,
    "nor repeated: H12": 1,
    "the moment of a file, and its content's fingerprint, which is ours": 2,
    "queries with an odd field fail there always": 2,
    "it came with a registration that is not kept": 1,
}
"""Number of compared answers by the reason why they differ from the recorded ones; empty: equal."""


def test_the_recorded_session_gets_its_answers_from_guarded_servers(
    tell: Callable[[str], None],
) -> None:
    said = conversations()
    made = Servers(said[0][0]["ts"])
    count: Counter[str] = Counter()
    session, last_registration = "acl", said[0][0]
    for request, *answered in said:
        made.wind_to(request["ts"])
        if request["session"] != session:
            session = request["session"]
            made.restart_broker(request["ts"])
            made.ask(last_registration)  # of a broker's only some are kept
        if request["direction"] == "server-oneway":
            notices = [(each.code, each.fields) for each in made.client(request).received]
            assert (request["code"], request["header"]["extFields"]) in notices
            continue
        answers = made.ask(request)
        if request["code"] == Code.REGISTER_BROKER:
            last_registration = request
        if not answered:
            is_held = request["code"] == Code.PULL_MESSAGE or request["direction"] == "oneway"
            assert answers == [] or not is_held, "what was not answered"
            continue
        reason, wanted = as_ours(request, told(request, decode_frame(answered[0]["frame"][4:])))
        assert [told(request, each) for each in answers] == [wanted], request["id"]
        count[reason] += 1
    made.stop()
    tell(f"answers compared: {dict(count)}")
    assert count == REASONS
