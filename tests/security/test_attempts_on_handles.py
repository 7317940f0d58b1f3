"""Attempts with handles, names and reports of other accounts, A55 to A57.

Each request is permitted for its sender, and names something of another account besides.
"""

import ast
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from actors.access.grant import Grant
from actors.access.refusals import Refusals
from actors.access.rights import BROKER_RIGHTS, Level
from actors.consumers import consumer_groups, heartbeat_rules
from actors.engine.server_log import RateLimitedLog
from actors.jobs.messages import JobChanged, JobState
from actors.jobs.spark_jobs import PATHS, REPORT_HIDDEN, SENTENCE_HIDDEN
from actors.network.messages import Request
from actors.retention.retention_holds import LEASES_OF_OWNER_MAX
from protocol.bodies import (
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    ProducerData,
)
from protocol.bodies_admin import ConsumeStatsBody
from protocol.bodies_assignment import AssignmentQuery
from protocol.bodies_own import Jobs
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import GetConsumeStatsHeader
from protocol.headers.client import UpdateConsumerOffsetHeader
from protocol.headers.own import RELEASE, RENEW, TAKE, LeaseHeader
from spark import jobs as jobs_package
from storage.access.acl_file import DENY, PUB, SUB, Account
from tests.actors.jobs.test_scheduled_runs import World
from tests.security.test_attempts_on_detours import MORE, PREFIX, refused
from tests.support.guarded import (
    ACCOUNTS,
    WHITE_HOST,
    GuardedBroker,
    signed,
    with_accounts,
)
from tests.support.headers_by_code import REQUEST_HEADERS
from tests.support.peers import RecordingPeer

SEND_CODES = (10, 310, 320, 324, 325)


@pytest.fixture
def made() -> GuardedBroker:
    broker = with_accounts(1, ACCOUNTS + MORE)
    for topic in ("Orders", "Secret"):
        broker.make_topic(topic)
    broker.make_group("shop")
    return broker


# --- A55: handles of another account


def lease(action: str, name: str = "job-1", offset: int = 0) -> RemotingCommand:
    header = LeaseHeader(action, name, "job", offset=offset)
    return RemotingCommand(Code.LEASE_LOG, header.encode())


def test_a55_no_monitor_ends_or_moves_the_lease_of_another(made: GuardedBroker) -> None:
    """The log would be deleted under its reader."""

    def leases() -> list[int]:
        return [each.offset for each in made.broker.kept.value.leases]

    assert made.ask_as("monitor-account", lease(TAKE, offset=5)).code == 0
    assert made.ask_as("second-monitor", lease(RENEW)).code == ResponseCode.QUERY_NOT_FOUND
    assert made.ask_as("second-monitor", lease(RELEASE)).code == 0
    assert leases() == [5]
    assert made.ask_as("second-monitor", lease(TAKE, offset=9)).code == 0
    assert leases() == [5, 9], "one of its own"
    assert made.ask_as("monitor-account", lease(RENEW)).code == 0
    assert made.ask_as("second-monitor", lease(RELEASE)).code == 0
    assert leases() == [5]


def test_a55_a_monitor_cannot_exhaust_the_leases(made: GuardedBroker) -> None:
    for number in range(LEASES_OF_OWNER_MAX):
        assert made.ask_as("monitor-account", lease(TAKE, f"{number}")).code == 0
    answer = made.ask_as("monitor-account", lease(TAKE, "one more"))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "lease limit of 200 for monitor-account reached" in (answer.remark or "")
    assert made.ask_as("monitor-account", lease(TAKE, "7", 3)).code == 0, "one of its own moves"
    assert made.ask_as("second-monitor", lease(TAKE)).code == 0
    for number in range(LEASES_OF_OWNER_MAX):
        assert made.ask_as(None, lease(TAKE, f"{number}"), host=WHITE_HOST).code == 0
    assert made.ask_as(None, lease(TAKE, "more"), host=WHITE_HOST).code == ResponseCode.SYSTEM_BUSY


def locks(code: Code, client_id: str = "10.0.0.1@1") -> RemotingCommand:
    body = LockBatchRequest(client_id, "shop", [MessageQueue("Orders", "broker-a", 0)]).encode()
    return RemotingCommand(code, body=body)


def test_a55_an_account_cannot_unlock_queues_of_another(made: GuardedBroker) -> None:
    """An id is no secret: 38 tells those of all members."""

    def locked(account: str) -> bool:
        answer = made.ask_as(account, locks(Code.LOCK_BATCH_MQ))
        return bool(LockBatchResponse.decode(answer.body).lock_ok_mq_set)

    assert locked("shop-account")
    assert not locked("partner-account"), "the same id"
    assert made.ask_as("partner-account", locks(Code.UNLOCK_BATCH_MQ)).code == 0
    assert not locked("partner-account")
    assert made.ask_as("shop-account", locks(Code.UNLOCK_BATCH_MQ)).code == 0
    assert locked("partner-account")


def test_a55_an_account_leaves_room_for_the_producers_of_others(
    made: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly one without any permission had all places: no other heartbeat was accepted."""
    for module in (consumer_groups, heartbeat_rules):
        monkeypatch.setattr(module, "PRODUCERS_MAX", 40)
    lines = [made.new_client(port) for port in range(10)]

    def beat(port: int, account: str, count: int = 5) -> int:
        groups = [ProducerData(f"of_{port}_{number}") for number in range(count)]
        body = HeartbeatData(f"client@{port}", groups, []).encode()
        command = signed(RemotingCommand(Code.HEART_BEAT, body=body), account)
        return lines[port].request(command).code

    assert [beat(port, "nothing-account") for port in range(8)] == [0] * 4 + [1] * 4
    assert beat(9, "shop-account", 10) == 0
    assert beat(0, "nothing-account") == 0, "a heartbeat again takes no other place"
    assert beat(1, "shop-account") == 0, "a connection may change its account"
    assert beat(8, "nothing-account") == 1, "15, and 15 of the other"
    lines[9].close()
    made.system.drain()
    assert beat(8, "nothing-account") == 0


# --- A56: a request that names two things


TWO = {
    Code.GET_CONSUME_STATS: "consumerGroup",
    Code.QUERY_CONSUME_TIME_SPAN: "group",
    Code.QUERY_CORRECTION_OFFSET: "compareGroup",
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "group",
}


@pytest.mark.parametrize("code", TWO, ids=lambda code: code.name)
def test_a56_a_group_permission_reveals_nothing_about_a_topic(
    made: GuardedBroker, code: Code
) -> None:
    command = RemotingCommand(code, {"topic": "Secret", TWO[code]: "shop"})
    why = refused(made, "shop-account", command)
    assert why == "Secret" or "Need admin permission" in why
    own = RemotingCommand(code, {"topic": "Orders", TWO[code]: "shop"})
    remark = made.ask_as("shop-account", own).remark or ""
    assert not remark.startswith(PREFIX)
    assert not (made.ask(command).remark or "").startswith(PREFIX), "an administrator may"


def test_a56_only_permitted_topics_of_a_group_are_returned(made: GuardedBroker) -> None:
    for topic in ("Orders", "Secret"):
        header = UpdateConsumerOffsetHeader("shop", topic, 0, 0)
        made.ask(RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, header.encode()))

    def told(account: str, topic: str | None) -> set[str]:
        header = GetConsumeStatsHeader("shop", topic)
        answer = made.ask_as(account, RemotingCommand(Code.GET_CONSUME_STATS, header.encode()))
        assert answer.code == 0
        return {queue.topic for queue in ConsumeStatsBody.decode(answer.body).offset_table}

    for every in (None, "", " "):
        assert told("shop-account", every) == {"Orders"}
        assert told("administrator", every) == {"Orders", "Secret"}


def test_a56_an_assignment_is_only_of_permitted_retry_topics(made: GuardedBroker) -> None:
    """Formerly each retry topic passed beside one's own group: the answer had its queues."""

    def asked(topic: str) -> RemotingCommand:
        query = AssignmentQuery("c", "shop", "BROADCASTING", "AVG", topic)
        return RemotingCommand(Code.QUERY_ASSIGNMENT, body=query.encode())

    why = refused(made, "shop-account", asked("%RETRY%strangers"))
    assert why == f"{PREFIX}No default permission for group:strangers"
    assert refused(made, "shop-account", asked("Secret")) == "Secret"
    for topic in ("Orders", "%RETRY%shop", "%RETRY%shop_Orders", "%RETRY%shop+Orders"):
        assert made.ask_as("shop-account", asked(topic)).code == 0


NAMES = {
    *("topic", "originTopic", "group", "groupName", "consumerGroup", "producerGroup"),
    *("srcGroup", "destGroup", "compareGroup"),
}
JUDGED_ELSEWHERE = {
    Code.CONSUMER_SEND_MSG_BACK: "the topic is that of the message; originTopic is for hooks",
    Code.UNREGISTER_CLIENT: "only what its own connection has registered goes",
    Code.QUERY_CONSUME_QUEUE: "the handler shows nothing of a group that is not one's own",
    Code.GET_CONSUME_STATS: "the handler looks at the topics, for it may tell of several",
    Code.ACK_MESSAGE: "the handler, for clients name retry topics that are not here",
    Code.CHANGE_MESSAGE_INVISIBLETIME: "as an acknowledgement",
    Code.RECALL_MESSAGE: "the topic decides; brokers do not look at the producer group",
    Code.END_TRANSACTION: "the topic is that of the half message, the group its own",
}


@pytest.mark.parametrize("code", sorted(BROKER_RIGHTS), ids=lambda code: Code(code).name)
def test_a56_each_name_in_a_header_is_checked(code: Code) -> None:
    """Or it is said where; administrators' codes and sends are judged as a whole."""
    header, right = REQUEST_HEADERS.get(code), BROKER_RIGHTS[code]
    is_send = code in SEND_CODES or right.is_administration
    if header is None or is_send or code in JUDGED_ELSEWHERE or right.level is Level.MONITOR:
        return
    named = {each.metadata["name"] for each in fields(header)} & NAMES
    judged = {name for name, _ in (*right.topics, *right.groups)}
    assert named <= judged


# --- A57: what jobs say


EVERYTHING = {
    "a monitor": (Account("m", (), monitor=True), False),
    "a monitor that reads some topics": (
        Account("m", (), monitor=True, topic_perms={"Orders": SUB}),
        False,
    ),
    "a monitor to whom one topic is denied": (
        Account("m", (), monitor=True, default_topic_perm=SUB, topic_perms={"Secret": DENY}),
        False,
    ),
    "a monitor that reads every topic": (
        Account("m", (), monitor=True, default_topic_perm=PUB | SUB),
        True,
    ),
    "an administrator": (Account("a", (), admin=True), True),
}


@pytest.mark.parametrize("who", EVERYTHING)
def test_a57_job_reports_and_logs_need_permission_for_every_topic(who: str, tmp_path: Path) -> None:
    """A report has samples of dead letters, a log whatever failed."""
    account, sees = EVERYTHING[who]
    log = tmp_path / "run.log"
    log.write_text("ValueError: secret body\n")
    world = World("2026-03-01T00:59")
    report = {"text": "secret"}
    done = JobState("a-1", "archive", "failed", report=report, tail=("secret",), sentence="secret")
    world.jobs.tell(JobChanged(replace(done, log_path=str(log))))
    jobs = Jobs.decode(asked(world, account, Code.GET_JOBS, run="a-1").body)
    (run,) = jobs.runs
    assert (run.run, run.state) == ("a-1", "failed")
    assert (run.report["text"], run.tail) == (
        ("secret", ["secret"]) if sees else (REPORT_HIDDEN, [])
    )
    assert run.sentence == ("secret" if sees else SENTENCE_HIDDEN)
    answer = asked(world, account, Code.GET_JOB_LOG, run="a-1")
    assert (answer.code == 0) == sees
    assert (b"secret body" in bytes(answer.body or b"")) == sees
    assert sees or "Need admin permission" in (answer.remark or "")


def asked(world: World, account: Account, code: Code, **values: str) -> RemotingCommand:
    peer = RecordingPeer()
    refusals = Refusals(lambda: 0, RateLimitedLog(lambda: 0))
    grant = Grant(account, False, account.admin, "192.0.2.1", refusals, "C_REPLY_TOPIC")
    command = RemotingCommand(code, values)
    world.jobs.tell(Request(command, peer, grant=grant))
    world.system.drain()
    (answer,) = peer.received
    return answer


def test_a57_every_path_argument_of_a_job_is_recognized() -> None:
    """A path of the asker's choice is read or written by the broker."""
    named = set()
    for path in Path(jobs_package.__file__).parent.glob("[a-z]*.py"):
        table = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()
        named |= {line.split()[0] for line in table if LEADS_TO_FILES.search(line)}
    assert named == set(PATHS)


LEADS_TO_FILES = re.compile(r"^    \w+ .*(director|storePath|folder|CommitLog|archive of)")
