"""The files of conf/grafana/: boards and alert rules, against a scrape and by Prometheus' tool."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.brokers import SimulatedBroker
from tests.support.metrics import Scraper, families
from troupemq.masters.monitoring import UP

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "conf" / "grafana"
BOARDS = sorted(FOLDER.glob("*.json"))
RULES = FOLDER / "alerts.yml"
OF_PROMETHEUS = {"up"}
_NAME = re.compile(r"\b(?:rocketmq|troupemq|process|python)_\w+")
_PARTS = re.compile(r"_(?:bucket|sum|count)$")

FREE, DISK = 'troupemq_disk_free_bytes{node_id="b"}', 'troupemq_disk_bytes{node_id="b"}'
LATE = 'rocketmq_consumer_lag_latency_milliseconds{topic="T",consumer_group="g",is_system="false"}'

FIRING: Mapping[str, tuple[int, Mapping[str, str]]] = {
    "NotScraped": (3, {'up{job="troupemq",instance="b"}': "1 0x9"}),
    "MasterDown": (3, {'troupemq_master_up{node_id="b"}': "1 0x9"}),
    "NotRegistered": (5, {'troupemq_registered{node_id="b",namesrv="n"}': "1 0x9"}),
    "DiskNearlyFull": (
        9,
        {
            'troupemq_disk_free_bytes{node_id="b"}': "12x20",
            'troupemq_disk_bytes{node_id="b"}': "100x20",
        },
    ),
    "DiskFull": (
        9,
        {
            'troupemq_disk_free_bytes{node_id="b"}': "9x20",
            'troupemq_disk_bytes{node_id="b"}': "100x20",
        },
    ),
    "DiskFullWithinADay": (500, {'troupemq_disk_free_bytes{node_id="b"}': "1000-1x600"}),
    "GroupLate": (
        9,
        {LATE: "300001x20"},
    ),
    "ConsumerStuck": (3, {'troupemq_stuck_queues{topic="T",consumer_group="g"}': "0 2x9"}),
    "LagGrows": (
        70,
        {
            'rocketmq_consumer_lag_messages{topic="T",consumer_group="g"}': "10001+1x100",
            'rocketmq_consumer_connections{consumer_group="g"}': "1x100",
        },
    ),
    "MessagesWillBeLostUnread": (
        9,
        {
            'troupemq_lag_seconds{node_id="b",topic="T",consumer_group="g"}': "81x20",
            'troupemq_retention_seconds{node_id="b"}': "100x20",
        },
    ),
    "BacklogAndNobodyThere": (
        15,
        {
            'rocketmq_consumer_lag_messages{topic="T",consumer_group="g"}': "1x30",
            'rocketmq_consumer_connections{consumer_group="h"}': "1x30",
        },
    ),
    "DeadLetters": (
        5,
        {'rocketmq_send_to_dlq_messages_total{topic="T",consumer_group="g"}': "0 0 1x20"},
    ),
    "SyncSlow": (
        30,
        {
            'troupemq_sync_seconds_bucket{le="0.1"}': "0x40",
            'troupemq_sync_seconds_bucket{le="0.2"}': "0+10x40",
            'troupemq_sync_seconds_bucket{le="+Inf"}': "0+10x40",
        },
    ),
    "LoopHeld": (
        9,
        {'troupemq_handler_longest_seconds{node_id="b",actor="a",message="M"}': "0.6x20"},
    ),
    "ActorRestarted": (5, {'troupemq_actor_restarts_total{node_id="b",actor="a"}': "0 0 1x20"}),
    "ActorKeepsRestarting": (
        9,
        {'troupemq_actor_restarts_total{node_id="b",actor="a"}': "0+2x20"},
    ),
    "RequestHandlerFailed": (
        5,
        {'troupemq_request_handler_failures_total{node_id="b",actor="a"}': "0 0 1x20"},
    ),
    "SlaveBehind": (5, {'troupemq_slave_follows{node_id="b"}': "0x20"}),
    "Damage": (2, {'troupemq_damaged_ranges{node_id="b"}': "0 1x20"}),
    "AccessRefusedOften": (6, {'troupemq_auth_failures_total{node_id="b",reason="r"}': "0+50x20"}),
    "CertificateEnds": (
        9,
        {'troupemq_tls_certificate_not_after_seconds{node_id="b",use="server"}': "1209000x20"},
    ),
    "TransactionsOpen": (15, {'troupemq_transaction_oldest_seconds{node_id="b"}': "3601x20"}),
    "SubscriptionsDiffer": (
        15,
        {'troupemq_groups_subscribing_differently{node_id="b"}': "1x20"},
    ),
    "JobOverdue": (
        4000,
        {'troupemq_spark_job_last_success_timestamp_seconds{spark_job="archive"}': "0x5000"},
    ),
}
"""After so many minutes of these series, one value a minute, the alert is there."""

ALSO = {"DiskFull": {"DiskNearlyFull"}, "ActorKeepsRestarting": {"ActorRestarted"}}
"""Alerts that fire together with an alert."""

CALM = {
    'up{job="troupemq",instance="b"}': "1x600",
    'troupemq_master_up{node_id="b"}': "1x600",
    'troupemq_registered{node_id="b",namesrv="n"}': "1x600",
    'troupemq_disk_free_bytes{node_id="b"}': "50x600",
    'troupemq_disk_bytes{node_id="b"}': "100x600",
    LATE: "1x600",
    'rocketmq_consumer_lag_messages{topic="T",consumer_group="g"}': "5x600",
    'rocketmq_consumer_connections{consumer_group="g"}': "1x600",
    'troupemq_lag_seconds{node_id="b",topic="T",consumer_group="g"}': "1x600",
    'troupemq_retention_seconds{node_id="b"}': "100x600",
    'rocketmq_send_to_dlq_messages_total{topic="T",consumer_group="g"}': "7x600",
    'troupemq_handler_longest_seconds{node_id="b",actor="a",message="M"}': "0.01x600",
    'troupemq_actor_restarts_total{node_id="b",actor="a"}': "3x600",
    'troupemq_request_handler_failures_total{node_id="b",actor="a"}': "2x600",
    'troupemq_slave_follows{node_id="b"}': "1x600",
    'troupemq_replica_lag_bytes{node_id="b",slave="s"}': "1000x600",
    'troupemq_damaged_ranges{node_id="b"}': "0x600",
    'troupemq_auth_failures_total{node_id="b",reason="r"}': "0+1x600",
    'troupemq_tls_certificate_not_after_seconds{node_id="b",use="server"}': "1800000x600",
    'troupemq_transaction_oldest_seconds{node_id="b"}': "10x600",
    'troupemq_groups_subscribing_differently{node_id="b"}': "0x600",
    'troupemq_spark_job_last_success_timestamp_seconds{spark_job="archive"}': "0+60x600",
}
"""All is well."""


@cache
def declared() -> frozenset[str]:
    """Every name of a scrape of a broker, or of several masters."""
    made = SimulatedBroker(1)
    made.make_topic()
    made.send()
    found = families(Scraper(made).text())
    made.stop()
    return frozenset({*found, UP})


def names_in(expression: str) -> set[str]:
    """The metrics that an expression asks for."""
    found = set(_NAME.findall(expression))
    return {each if each in declared() else _PARTS.sub("", each) for each in found}


def board(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def expressions(path: Path) -> Iterator[str]:
    """Return the expressions of all panels and variables."""
    found = board(path)
    for panel in found["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in found["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_each_of_three_boards_has_a_data_source_choice() -> None:
    assert [path.stem for path in BOARDS] == ["actors", "groups", "overview"]
    assert len({board(path)["uid"] for path in BOARDS}) == 3
    for path in BOARDS:
        found = board(path)
        panels = found["panels"]
        assert found["templating"]["list"][0]["type"] == "datasource"
        assert len({panel["id"] for panel in panels}) == len(panels)
        assert all(
            target["datasource"]["uid"] == "${datasource}"
            for panel in panels
            for target in panel.get("targets", ())
        )
        places = [tuple(panel["gridPos"].values()) for panel in panels]
        assert len(set(places)) == len(places), "two lie in one place"


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_metric_of_a_board_is_in_a_scrape(path: Path) -> None:
    asked = [(each, names_in(each)) for each in expressions(path)]
    assert [each for each, names in asked if not names] == []
    assert {name for _, names in asked for name in names} - declared() == set()


def test_every_metric_of_the_rules_is_in_a_scrape_and_documented() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    anchors = {heading.lower() for heading in re.findall(r"^### (\w+)$", text, re.MULTILINE)}
    for rule in rules():
        names = names_in(rule["expr"])
        assert names - declared() == set(), rule["alert"]
        assert names or "up" in rule["expr"]
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (page, anchor in anchors) == ("docs/metrics.md", True), rule["alert"]
    assert {rule["alert"] for rule in rules()} == FIRING.keys()


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus' tool for rules; where everything is wanted, it has to be there."""
    found = shutil.which("promtool")
    if found is None:
        sentence = "promtool is not here (Debian, Ubuntu: apt install prometheus)"
        if "TROUPEMQ_CI" in os.environ:
            pytest.fail(sentence)
        pytest.skip(f"the alert rules are not tried: {sentence}")
    return found


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_prometheus_accepts_rules_and_expressions(promtool: str, tmp_path: Path) -> None:
    run(promtool, "check", "rules", str(RULES))
    replaced = {"$__rate_interval": "5m", "$cluster": ".*", "$broker": ".*", "$topic": ".*"}
    replaced |= {"$group": ".*", "$actor": ".*"}
    asked = {each for path in BOARDS for each in expressions(path)}
    for name, text in replaced.items():
        asked = {each.replace(name, text) for each in asked}
    recording = [{"record": f"r{n}", "expr": each} for n, each in enumerate(sorted(asked))]
    file = tmp_path / "expressions.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": recording}]}))
    run(promtool, "check", "rules", str(file))


@pytest.mark.slow
def test_each_alert_fires_exactly_when_it_should(promtool: str, tmp_path: Path) -> None:
    cases = [
        case(minutes, series, {name} | ALSO.get(name, set()))
        for name, (minutes, series) in FIRING.items()
    ]
    cases += [case(minutes, CALM, set()) for minutes in (1, 40, 590)]
    file = tmp_path / "alerts_test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": cases}))
    run(promtool, "test", "rules", str(file))


def case(minutes: int, series: Mapping[str, str], alerts: set[str]) -> dict[str, Any]:
    """Return a test for promtool: alerts that fire after a number of minutes."""
    there = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alerts)]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minutes}m",
                "exp_samples": there,
            }
        ],
    }
