"""Attempts on settings, rights and signatures: A19, A20, A27, A28, A31, A33, A34.

A21 to A26, A29 and A30 are in the tests of holes of the same subject (table: docs/security.md)."""

import re
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from actors.access.refusals import TRIES_MAX
from actors.admin.settings import REFUSED, NamesrvSettings
from actors.config import NamesrvConfig
from actors.engine.supervisor import ChildSpec
from protocol.bodies import LockBatchRequest, MessageQueue
from protocol.codes import PULL_COMMIT_OFFSET, ResponseCode
from protocol.codes import RequestCode as Code
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.headers.client import QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from protocol.properties_file import parse_properties
from tests.support.brokers import SimulatedBroker, pull_command, send_command
from tests.support.guarded import (
    ACCOUNTS,
    GUARDED,
    GuardedBroker,
    disk_with,
    signed,
    with_accounts,
)
from tests.support.peers import ask, request
from tests.support.sockets import PairedLine, frames_of, paired_lines
from tests.support.told import floods, refused, times
from troupemq.logs import set_up_logs, shut_down_logs
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem

READER = "reader-account"
PAGES = (
    *("consolePort", "consoleBindAddress", "consoleHosts", "healthPort", "metricsExporterType"),
    *("metricsPromExporterHost", "metricsPromExporterPort", "monitoringHosts"),
)
FORBIDDEN = (
    *("storePathRootDir", "storePathCommitLog", "filterServerNums", "rocketmqHome"),
    *("tls.server.keyPath", "tls.config.file", "namesrvAddr", "aclEnable", "brokerIP1"),
    *("listenPort", "bindAddress", "haAllowedAddresses", "adminAllowedAddresses"),
    *("maxConnections", "maxConnectionsPerAddress", "maxAutoTopics", "maxAutoGroups"),
    *("brokerAccessKey", "brokerSecretKey", "configBlackList", "rmqAddressServerDomain"),
    *("retentionArchivePath", "monitoringPort", "kvConfigPath", "configStorePath"),
    *("rocketmq.namesrv.addr", "masters", "otelTraces", "otelTracesEndpoint", "aclRoutePermEnable"),
    *(*PAGES, "aclAllowSampleCredentials"),
)
FILE = b"# an operator's\nfileReservedTime=72\n"


def disk_of(path: str) -> FakeDisk:
    disk = disk_with()
    disk.make_dirs(path.rpartition("/")[0])
    disk.open(path, create=True).pwrite(FILE, 0)
    return disk


def smuggled(key: str) -> list[str]:
    """The ways in which a text may hold this key."""
    first, rest = key[0], key[1:]
    return [
        f"{key}=x\n",
        f"  {key} : x",
        f"fileReservedTime=1\n{key}=x",
        f"fileReservedTime=1\r{key} x",
        f"\\u{ord(first):04x}{rest}=x\n",
        f"\\{first}{rest}=x\n" if first not in "tnrfu" else f"{first}\\\n{rest}=x\n",
        f"{first}\\\n   {rest}=x\n",
    ]


@pytest.mark.parametrize("key", FORBIDDEN)
def test_a19_no_request_changes_operator_only_settings(key: str) -> None:
    path = "/etc/broker.conf"
    made = SimulatedBroker(1, disk=disk_of(path), config=replace(GUARDED, acl_enable=False))
    made.stop()
    made.config = replace(made.config, config_path=path)
    made.start()
    with capture_logs() as logs:
        for text in smuggled(key):
            answer = made.ask(RemotingCommand(Code.UPDATE_BROKER_CONFIG, body=text.encode()))
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, REFUSED), text
    assert made.disk.read_bytes(path) == FILE
    refused = [each for each in logs if each["event"] == "settings not changed"]
    assert {tuple(each["refused"]) for each in refused} == {(key,)}
    assert times(logs, "settings not changed") == [1]
    with capture_logs() as logs:
        made.system.advance(60_000)
    assert times(logs, "settings not changed") == [len(smuggled(key)) - 1]


@pytest.mark.parametrize("value", ["1\nnamesrvAddr=a:1", "1\\nnamesrvAddr=a:1", "1\\u000aa=b"])
@pytest.mark.parametrize("end", [b"", b"brokerIP1=127.0.0.1\\\n", b"brokerIP1=127.0.0.1\\"])
def test_a19_a_value_cannot_inject_or_join_a_key(value: str, end: bytes) -> None:
    path = "/etc/broker.conf"
    made = SimulatedBroker(1, disk=disk_of(path), config=replace(GUARDED, acl_enable=False))
    made.disk.open(path).pwrite(end, len(FILE))  # of a line that goes on the rest is its value
    made.stop()
    made.config = replace(made.config, config_path=path)
    made.start()
    before, body = parse_properties((FILE + end).decode()), f"regionId={value}\n".encode()
    answer = made.ask(RemotingCommand(Code.UPDATE_BROKER_CONFIG, body=body))
    found = parse_properties(made.disk.read_bytes(path).decode())
    assert found.items() >= before.items()
    added = (0, {"regionId"}) if "\n" not in value else (ResponseCode.NO_PERMISSION, set())
    assert (answer.code, found.keys() - before.keys()) == added


@pytest.mark.parametrize(
    "key",
    [
        *("kvConfigPath", "configStorePath", "aclEnable", "listenPort", "adminAllowedAddresses"),
        *PAGES,
    ],
)
def test_a20_no_request_changes_operator_only_settings_of_a_name_server(key: str) -> None:
    path = "/etc/namesrv.conf"
    system = SimulatedSystem(1, disk_of(path), 1_700_000_000_000)
    config = NamesrvConfig(config_store_path=path)
    system.start(ChildSpec("settings", lambda _: NamesrvSettings(config)))
    with capture_logs() as logs:
        for text in smuggled(key):
            update = request(Code.UPDATE_NAMESRV_CONFIG, body=text.encode())
            answer = ask(system, "settings", update)
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, REFUSED)
        assert times(logs, "settings not changed") == [1]
        system.advance(60_000)
        system.rarely.tell_rest()
    assert times(logs, "settings not changed") == [1, len(smuggled(key)) - 1]
    assert system.disk.read_bytes(path) == FILE
    assert system.stop(5)


# --- A27, A28: others' groups


def test_a27_offsets_and_queues_of_another_group_are_not_changed() -> None:
    made = GuardedBroker(1)
    for _ in range(5):
        made.send(topic="Orders")
    made.make_group("shop")
    commit = UpdateConsumerOffsetHeader("shop", "Orders", 0, 2)
    assert (
        made.ask_as("shop-account", RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, commit.encode()))
    ).code == 0
    queue = MessageQueue("Orders", "broker-a", 0)
    lock = LockBatchRequest("shop@1", "shop", [queue]).encode()
    reset = {"topic": "Orders", "group": "shop", "timestamp": "0", "isForce": "true"}
    asked_for = [
        RemotingCommand(
            Code.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetHeader("shop", "Orders", 0, 5).encode(),
        ),
        RemotingCommand(
            Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("shop", "Orders", 0).encode()
        ),
        RemotingCommand(Code.LOCK_BATCH_MQ, body=lock),
        RemotingCommand(Code.UNLOCK_BATCH_MQ, body=lock),
        RemotingCommand(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset),
        pull_command(
            topic="Orders", consumer_group="shop", sys_flag=PULL_COMMIT_OFFSET, commit_offset=5
        ),
    ]
    with capture_logs() as logs:
        for command in asked_for * 2:
            answer = made.ask_as(READER, command)
            assert answer.code == 1
            assert (answer.remark or "").startswith("org.apache.rocketmq.acl.common.AclException: ")
        assert floods(logs) == []
        made.system.advance(60_000)
    assert refused(logs) == {(READER, command.code): 2 for command in asked_for}
    asked = RemotingCommand(
        Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("shop", "Orders", 0).encode()
    )
    assert (made.ask_as("shop-account", asked).fields or {})["offset"] == "2"


def test_a28_a_reply_without_permission_is_refused_and_logged() -> None:
    listed = "topicPerms: [Orders=SUB, DefaultCluster_REPLY_TOPIC=DENY]"
    made = with_accounts(1, ACCOUNTS.replace("topicPerms: [Orders=SUB]", listed))
    reply = replace(
        send_command(topic="DefaultCluster_REPLY_TOPIC", properties="CORRELATION_ID\x01guessed"),
        code=Code.SEND_REPLY_MESSAGE_V2,
    )
    with capture_logs() as logs:
        answer = made.ask_as(READER, reply)
    assert answer.code == 1 and "No default permission" in (answer.remark or "")
    assert refused(logs) == {(READER, Code.SEND_REPLY_MESSAGE_V2): 1} and floods(logs) == []


# --- A31, A33: signatures


@pytest.mark.trial(short=1, long=2)
def test_a31_wrong_signatures_close_with_few_lines(seed: int, tell: Callable[[str], None]) -> None:
    """1,000 of them, 50 of a connection; 100,000 in `make trials`. The first ones are answered."""
    made = GuardedBroker(1)
    tries = (1000, 100_000)[seed % 2]
    wrong = signed(send_command(topic="Orders"), "shop-account", "another-secret")
    frame = frames_of([wrong])
    with capture_logs() as logs, paired_lines(made, 0, "198.51.100.1") as lines:
        line = PairedLine(made, "198.51.100.1")
        for _ in range(TRIES_MAX):
            line.send_bytes(frame)
            (answer,) = line.receive_now()
            assert (answer.remark or "").endswith(
                "Check signature failed for accessKey=shop-account"
            )
        for _ in range(tries // 50):
            line.send_bytes(frame * 50)
            assert line.receive_now() == []
            assert line.is_closed()
            line.close()
            line = PairedLine(made, "198.51.100.1")
        line.close()
        other = PairedLine(made, "198.51.100.2")
        lines.append(other)
        other.send(signed(send_command(topic="Orders"), "shop-account"))
        assert [each.code for each in other.receive_now()] == [0]
    told = [each["event"] for each in logs if each["log_level"] == "warning"]
    tell(f"A31: {tries} wrong signatures, {len(told)} lines")
    assert told.count("too many failed signatures") == 1
    assert len([each for each in told if each != "late"]) <= 4


def test_a31_unknown_keys_count_as_one_account() -> None:
    made = GuardedBroker(1)
    with capture_logs() as logs, paired_lines(made, 0) as lines:
        answers = []
        for number in range(200):
            line = PairedLine(made, "198.51.100.1")
            line.send(signed(send_command(topic="Orders"), f"unknown-{number}", "a-secret"))
            answers += line.receive_now()
            line.close()
        assert [each.code for each in answers] == [1] * TRIES_MAX
        assert all("No acl config for unknown-" in (each.remark or "") for each in answers)
        lines.append(PairedLine(made, "198.51.100.1"))
        lines[0].send(signed(send_command(topic="Orders"), "shop-account"))
        assert [each.code for each in lines[0].receive_now()] == [0], "whom the broker knows"
    told = [each for each in logs if each["event"] == "too many failed signatures"]
    assert [each["account"] for each in told] == [""]
    assert len([each for each in logs if each["event"] == "request refused"]) == 1


def test_a31_a_key_is_quoted_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    key = "\x1b[2J\n[error] forged \u202eyek"
    try:
        for as_json in (False, True):
            set_up_logs(as_json=as_json)
            made = GuardedBroker(1)
            command = send_command(topic="Orders")
            command.fields = {**(command.fields or {}), "AccessKey": key, "Signature": "x"}
            assert made.client_at("198.51.100.9").request(command).code == 1
            made.stop()
            (said,) = [line for line in capsys.readouterr().err.splitlines() if "forged" in line]
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", said), repr(said)
    finally:
        shut_down_logs()


def test_a31_a_key_of_a_megabyte_is_neither_hashed_for_long_nor_shown_whole() -> None:
    made = GuardedBroker(1)
    for key in ("k" * 900_000, "\x1b[2J\n[error] forged", "x\u202ey"):
        with capture_logs() as logs:
            command = send_command(topic="Orders")
            command.fields = {**(command.fields or {}), "AccessKey": key, "Signature": "x"}
            answer = made.client_at("198.51.100.9").request(command)
        assert answer.code == 1
        assert len(answer.remark or "") < 400
        assert all(len(repr(each)) < 2000 for each in logs)


SIGNATURES = {
    "missing": None,
    "empty": "",
    "not Base64": "!!! not Base64 at all !!!!!!",
    "too short": "AAAA",
    "a megabyte": "A" * 900_000,
    "not ASCII": "é" * 28,
}


@pytest.mark.parametrize("signature", SIGNATURES.values(), ids=SIGNATURES.keys())
def test_a33_a_malformed_signature_fails(signature: str | None) -> None:
    made = GuardedBroker(1)
    with capture_logs() as logs:
        for command in (send_command(topic="Orders"), pull_command(topic="Orders")) * 3:
            command.fields = {**(command.fields or {}), "AccessKey": "shop-account"}
            if signature is not None:
                command.fields["Signature"] = signature
            answer = made.client_at("198.51.100.3").request(command)
            text = "Check signature failed for accessKey=shop-account"
            assert answer.code == 1 and (answer.remark or "").endswith(text)
        assert floods(logs) == []
        made.system.advance(60_000)
    assert refused(logs) == {("shop-account", 310): 3, ("shop-account", 11): 3}


@pytest.mark.parametrize("code", [310, 11])
def test_a33_the_last_of_two_signatures_counts(code: int) -> None:
    """Any duplicate key is treated so: a valid signature before an invalid one is refused."""
    send = send_command if code == 310 else pull_command
    right = frames_of([signed(send(topic="Orders"), "shop-account")])
    (field,) = re.findall(rb'"Signature":"([^"]+)"', right)
    for first, last, codes in (
        (field, b"A" * len(field), [1]),
        (b"A" * len(field), field, [0] if code == 310 else [17]),
    ):
        twice = b'"Signature":"%b","Signature":"%b"' % (first, last)
        frame = right.replace(b'"Signature":"%b"' % field, twice)
        more = len(frame) - len(right)
        head = (int.from_bytes(frame[:4]) + more).to_bytes(4)
        head += (int.from_bytes(frame[4:8]) + more).to_bytes(4)
        with paired_lines(GuardedBroker(1), 1, "198.51.100.3") as (line,):
            line.send_bytes(head + frame[8:])
            assert [each.code for each in line.receive_now()] == codes


def test_a33_invented_groups_codes_and_keys_share_log_lines() -> None:
    """Each is counted up to the limit (aclRefusals)."""
    made = GuardedBroker(1)
    with capture_logs() as logs:
        for n in range(100):
            pull = pull_command(topic="Orders", consumer_group=f"made-up-{n}")
            assert made.ask_as(READER, pull).code == 1
            assert made.ask_as(READER, RemotingCommand(20_000 + n)).code == 3
            stranger = made.client_at(f"198.51.100.{n}")
            assert stranger.request(signed(pull_command(), f"made-up-{n}")).code == 1
            assert stranger.request(RemotingCommand(20_000)).code == 1, "it learns nothing"
        assert times(logs, "request refused") == [1, 1], (
            "one for an account, one for all unknown ones"
        )
        made.system.advance(60_000)
    assert refused(logs) == {(READER, 11): 100, ("", 11): 1, ("", 20_000): 199}
    found = [each.count for each in made.broker.refusals.all()]
    assert (len(found), sum(found)) == (102, 300)


def test_a33_unserved_codes_log_one_line_a_minute() -> None:
    made = GuardedBroker(1)
    with capture_logs() as logs, paired_lines(made, 1, "198.51.100.3") as (line,):
        line.send(*(signed(RemotingCommand(20_000 + n), READER) for n in range(50)))
        assert [each.code for each in line.receive_now()] == [3] * 50
    assert times(logs, "unsupported request") == [1]


def test_a34_the_peer_address_cannot_be_forged() -> None:
    made = GuardedBroker(1)
    header = {"X-Forwarded-For": "192.0.2.7", "Forwarded": "for=192.0.2.7"}
    command = send_command(topic="Orders")
    command.fields = {**(command.fields or {}), **header}
    with capture_logs() as logs:
        for _ in range(10):
            assert made.client_at("198.51.100.4").request(replace(command)).code == 1
    assert times(logs, "request refused") == [1]
    with paired_lines(made, 1, "198.51.100.4") as (line,):
        proxied = b"PROXY TCP4 192.0.2.7 192.0.2.1 1 10911\r\n"
        line.send_bytes(proxied + frames_of([send_command(topic="Orders")]))
        assert line.is_closed()


def test_one_way_requests_do_not_bypass_permissions() -> None:
    made = GuardedBroker(1)
    before = made.broker.store.commit_log.end_offset
    command = replace(send_command(topic="Orders"), flag=ONEWAY_FLAG)
    made.client_at("198.51.100.5").start(command)
    made.client_at("198.51.100.5").start(
        RemotingCommand(Code.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n", flag=ONEWAY_FLAG)
    )
    made.system.advance(1000)
    assert made.broker.store.commit_log.end_offset == before
    assert made.broker.config.broker_permission == 6


def test_administration_from_other_addresses_is_refused_for_every_account() -> None:
    made = with_accounts(1, ACCOUNTS, {"admin_allowed_addresses": "10.0.0.7;10.1.0.0/16"})
    fields = {"topic": quote("New"), "defaultTopic": "TBW102", "perm": "6"}
    fields |= {"readQueueNums": "4", "writeQueueNums": "4", "topicFilterType": "SINGLE_TAG"}
    asked = RemotingCommand(
        Code.UPDATE_AND_CREATE_TOPIC, fields | {"topicSysFlag": "0", "order": "false"}
    )
    answer = made.ask_as("administrator", replace(asked), host="10.0.0.8")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "New" not in made.broker.tables.topics.value
    assert made.ask_as("administrator", replace(asked), host="10.1.2.3").code == 0
    assert made.ask_as("shop-account", send_command(topic="Orders"), host="10.0.0.8").code == 0
