"""Sentences about problems: each kind with its level, and none without a problem."""

import pytest

from protocol.bodies import MessageQueue
from protocol.bodies_admin import ClientConnection
from protocol.bodies_own import (
    AclRefusal,
    JobRun,
    Jobs,
    OffsetProgress,
    OpenTransaction,
    OpenTransactions,
    ProgressStats,
    StoreState,
)
from troupemq.client.admin import BrokerPlace
from troupemq.client.admin.members import ClientInfo
from troupemq.client.admin.progress import AskedMember, group_of, members_of_group, queues_of
from troupemq.console.findings import Thresholds, findings_of, spoken
from troupemq.console.parts import Notes, Page, Span, as_json
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot, GroupSummary

NOW_MS = 1_700_000_000_000
MASTER = BrokerPlace("C", "broker-a", 0, "h:1")
SLAVE = BrokerPlace("C", "broker-a", 1, "h:2")
WELL = {"commitLogDiskRatio": "0.5", "commitLogMaxOffset": str(1 << 40)}


def snapshot(*groups: GroupSummary, **more: object) -> ClusterSnapshot:
    found = ClusterSnapshot(NOW_MS, brokers=[BrokerSummary(MASTER, WELL)], **more)  # type: ignore[arg-type]
    found.groups = {each.name: each for each in groups}
    return found


def said(now: ClusterSnapshot, limits: Thresholds | None = None) -> list[tuple[str, str]]:
    found = findings_of(now, limits or Thresholds())
    assert len({each.key for each in found}) == len(found)
    return [(each.level, each.text) for each in found]


def test_a_healthy_cluster_has_no_findings() -> None:
    assert said(snapshot(GroupSummary("g", 100, 60_000, 5.0, members=2))) == []


def test_an_unreachable_cluster_is_a_finding() -> None:
    found = said(ClusterSnapshot(NOW_MS, missing=["no name server answers: h:9: refused"]))
    assert found == [("trouble", "No broker is reachable: no name server answers: h:9: refused.")]


def test_silent_and_masterless_brokers_are_findings() -> None:
    now = snapshot()
    now.brokers = [BrokerSummary(SLAVE)]
    assert said(now) == [
        ("trouble", "The slave 1 of broker-a at h:2 does not answer."),
        ("trouble", "broker-a has no master: sends to it fail."),
    ]


@pytest.mark.parametrize(
    ("ratio", "level"), [("0.74", None), ("0.75", "watch"), ("0.85", "trouble"), ("-1.0", None)]
)
def test_a_full_disk_is_a_finding(ratio: str, level: str | None) -> None:
    now = snapshot()
    now.brokers[0].says = {"commitLogDiskRatio": "-1.0", "consumeQueueDiskRatio": ratio}
    assert [each for each, _ in said(now)] == ([] if level is None else [level])


def test_a_lagging_slave_is_a_finding() -> None:
    now = snapshot()
    behind = {**WELL, "commitLogMaxOffset": str((1 << 40) - (300 << 20))}
    now.brokers.append(BrokerSummary(SLAVE, behind))
    assert said(now) == [("trouble", "The slave 1 of broker-a lags 300 MiB behind its master.")]


def test_lagging_and_memberless_groups_are_findings() -> None:
    late = GroupSummary("late", 12, 600_000, 1.5, members=1)
    far = GroupSummary("far", 20_000, 1000, 1.5, members=1)
    alone = GroupSummary("alone", 3, 1000, members=0)
    level = GroupSummary("level", 0, members=0)
    assert said(snapshot(late, far, alone, level)) == [
        ("trouble", "The group alone has a consumer lag of 3 messages and no member."),
        (
            "trouble",
            "The group far has a consumer lag of 20,000 messages and a time lag of up to 1 s;"
            " it consumes 1.5 msg/s.",
        ),
        (
            "trouble",
            "The group late has a consumer lag of 12 messages and a time lag of up to 10 min;"
            " it consumes 1.5 msg/s.",
        ),
    ]
    patient = Thresholds.of({"lag_minutes": 60, "lag_messages": 30_000, "disk": 1, "x": "y"})
    assert len(said(snapshot(late, far, alone), patient)) == 1


def test_many_groups_are_named_in_part_and_counted() -> None:
    many = [GroupSummary(f"g{number:03}", 10 + number, 1, members=0) for number in range(25)]
    found = said(snapshot(*many))
    assert len(found) == 11 and "g024" in found[0][1]
    assert found[-1][1] == "15 more groups have the same problem."


def test_mismatches_dead_letters_transactions_and_jobs_are_findings() -> None:
    group = GroupSummary("g", members=2, differs=True, dead_letters=7)
    half = OpenTransaction("shop", "T", "id", "oid", 1, NOW_MS - 7_200_000, NOW_MS, "h")
    now = snapshot(
        group,
        transactions={"h:1": OpenTransactions(4, [half])},
        jobs={"h:1": Jobs(runs=[JobRun("r-1", "audit", "failed", sentence="No disk.")])},
    )
    assert said(now) == [
        (
            "trouble",
            "The group g has members that subscribe differently: messages are lost."
            " Align their subscriptions.",
        ),
        ("watch", "The group g has 7 dead letters."),
        (
            "watch",
            "4 transactions are open at h:1, the oldest for 2 h: shop neither commits it nor rolls"
            " it back.",
        ),
        ("watch", "The last run of the job audit at h:1 failed: No disk."),
    ]


def test_a_job_that_succeeded_since_is_not_a_finding() -> None:
    runs = [JobRun("r-1", "audit", "failed"), JobRun("r-2", "audit", "finished")]
    assert said(snapshot(jobs={"h:1": Jobs(runs=runs)})) == []


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0 ms"),
        (-5, "0 ms"),
        (999, "999 ms"),
        (Span(3), "3 ms"),
        (1000, "1 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (90_061_000, "1 d 1 h"),
    ],
)
def test_a_duration_is_shown_in_two_units(span_ms: int, text: str) -> None:
    assert spoken(span_ms) == text


def test_store_damage_is_an_error_and_table_damage_a_warning() -> None:
    now = snapshot()
    now.brokers[0].store = StoreState(damaged_places=2, damaged_bytes=30, damaged_tables=["x"])
    assert said(now) == [
        (
            "trouble",
            "The broker broker-a has damage at 2 places of its commit log: the disk fails, or"
            " another process wrote to the files.",
        ),
        ("watch", "The broker broker-a found 1 table damaged when it started."),
    ]
    now.brokers[0].store = StoreState()
    assert said(now) == []


def test_a_console_without_the_needed_account_names_its_permissions() -> None:
    now = snapshot()
    now.missing.append("h:1 refuses: org.apache.rocketmq.acl.common.AclException: No accessKey")
    ((level, text),) = said(now)
    assert level == "trouble" and "monitor: true" in text and "--acl-file" in text


def test_a_broker_that_is_gone_is_said_first_with_its_last_answer() -> None:
    now = snapshot(GroupSummary("alone", 3, 1000, members=0))
    now.gone = [BrokerSummary(BrokerPlace("C", "broker-b", 0, "h:3"), answered_ms=NOW_MS - 90_000)]
    now.brokers.append(BrokerSummary(SLAVE, answered_ms=NOW_MS - 5000))
    assert [text for _, text in said(now)] == [
        "The broker broker-b at h:3 is gone: no name server lists it; it last answered"
        " 1 min 30 s ago.",
        "The slave 1 of broker-a at h:2 does not answer; it last answered 5 s ago.",
        "The group alone has a consumer lag of 3 messages and no member.",
    ]


def test_refusals_of_the_last_hour_and_missing_access_control_are_warnings() -> None:
    """Accounts are not named, because every viewer sees the sentence."""
    old = AclRefusal("secret-one", "g", 11, 3, NOW_MS - 3_600_000, "no", "h:9")
    new = AclRefusal("secret-two", "shop", 10, 3, NOW_MS - 4000, "no", "h:9")
    now = snapshot(refusals=[new, old], unguarded=[MASTER])
    assert said(now) == [
        (
            "watch",
            "Access control refused requests of 1 account in the last hour, the last one 4 s ago:"
            " send message (10) of the group shop.",
        ),
        (
            "watch",
            "Every client has every permission at broker-a: access control is off (aclEnable).",
        ),
    ]


def waiting(stuck_s: int, *queues: int) -> GroupSummary:
    """Return a group that waits for 5 messages in each queue since `stuck_s` ago."""
    came_ms = NOW_MS - stuck_s * 1000
    table = {
        MessageQueue("Orders", "broker-a", number): OffsetProgress(
            9, 4, came_ms - number, waiting_timestamp=came_ms + number
        )
        for number in queues
    }
    stats = ProgressStats(table, 0.0, NOW_MS - 900_000, NOW_MS)
    progress = group_of("billing", queues_of([stats]), tps=0.0)
    return GroupSummary("billing", 5 * len(queues), waiting=[stats], progress=progress)


def test_a_stuck_group_is_named_with_its_queue_before_groups_without_members() -> None:
    found = findings_of(
        snapshot(waiting(180, 0, 1), GroupSummary("alone", 90, members=0)), Thresholds()
    )
    assert [each.text for each in found] == [
        "The group billing is stuck: nothing was consumed for 3 min at offset 4 of Orders,"
        " broker-a, queue 0 and 1 other queue. 10 messages wait.",
        "The group alone has a consumer lag of 90 messages and no member.",
    ]
    assert (found[0].since_ms, found[0].key) == (NOW_MS - 180_000, "stuck billing")
    assert as_json(Page("x", [Notes("n", "", [found[0].note])]))["n"][0]["since_ms"] > 0
    assert said(snapshot(waiting(29, 0))) == []


def test_a_stuck_member_is_named_with_its_message_and_leads_to_its_verdict() -> None:
    group = waiting(180, 0)
    call = {"msgId": "M-1", "queueOffset": 4, "since": NOW_MS - 170_000}
    held = {"lastConsumeTimestamp": NOW_MS - 200_000, "cachedMsgCount": 1, "inHand": [call]}
    asked = AskedMember(
        ClientConnection("c@1", "h:1", "PYTHON", 407),
        ClientInfo({"mqTable": {"Orders@broker-a:0": held}}),
    )
    group.members = 2
    group.stuck_members = members_of_group(
        "billing", [asked, asked], queues_of(group.waiting, members=[asked]), now_ms=NOW_MS
    )
    (found,) = findings_of(snapshot(group), Thresholds())
    assert found.text == (
        "The group billing is stuck: its member c@1 has finished nothing for 3 min and stands at"
        " offset 4 of Orders, broker-a, queue 0, message M-1; 1 other member too."
        " 5 messages wait."
    )
    assert found.link is not None and found.link.href == "/client?group=billing&client=c%401"


def test_a_group_of_official_brokers_is_not_called_stuck_without_knowledge() -> None:
    group = waiting(180, 0)
    (stats,) = group.waiting
    stats.observed_since = 0
    group.progress = group_of("billing", queues_of([stats]), tps=0.0)
    assert group.is_stuck is None and said(snapshot(group)) == []
