"""Sentences about problems: each kind with its level, and none without a problem."""

import pytest

from protocol.bodies_own import JobRun, Jobs, OpenTransaction, OpenTransactions, StoreState
from troupemq.client.admin import BrokerPlace
from troupemq.console.findings import Thresholds, findings_of, spoken
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
    now.brokers[0].says = {"commitLogDiskRatio": ratio}
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
