"""Metrics beside official tools and brokers: what the exporter would show, what mqadmin prints.

The exporter's names are compared with the requests that it makes for them, at our broker and at an
official one with the same life; what time alone moves, at ours.
"""

import re
from collections.abc import Iterator

import pytest

from actors.metrics.exporter_page import PLAIN, PUT_CLASSES, RATES, RUNTIME, WINDOWS
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tests.actors.metrics.names import EXPORTER
from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.exporter_values import (
    COUNT,
    GROUP,
    LATE,
    QUEUES,
    SAME_EVERYWHERE,
    TOPIC,
    as_the_exporter_reads,
    figures_of,
    lived_in,
    scraped,
    shown_of,
)
from tests.compat.patience import wait_until
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker
from tests.compat.test_administration import FIGURE
from tests.compat.toolchain import Java
from tests.support.metrics import Found, value
from troupemq.client.admin import Admin

MOVING = ("pageCacheLockTimeMills", "putLatency99", "putLatency999", "dispatchBehindBytes")
"""Figures of code 28 that are another one each time."""


@pytest.fixture(scope="module")
def ours(
    tmp_path_factory: pytest.TempPathFactory,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[Broker]:
    """With metrics, and with a life."""
    folder = tmp_path_factory.mktemp("metrics")
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
    with (
        make_name_server("ours", folder / "names") as names,
        make_broker("ours", folder / "broker", names, **settings) as broker,
        lived_in(broker),
    ):
        yield broker


@pytest.fixture(scope="module")
def official(
    tmp_path_factory: pytest.TempPathFactory,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[Broker]:
    """With an official name server, and with the same life."""
    folder = tmp_path_factory.mktemp("official")
    with (
        make_name_server("official", folder / "names") as names,
        make_broker("official", folder / "broker", names) as broker,
        lived_in(broker),
    ):
        yield broker


@pytest.fixture(scope="module")
def both(ours: Broker, official: Broker) -> tuple[Broker, Broker]:
    return ours, official


@pytest.fixture(scope="module")
def run(java_tools: Java, ours: Broker) -> Iterator[Shell]:
    """The official mqadmin at ours."""
    with admin_shell(java_tools, ours.scratch, ours.name_server.address) as shell:
        yield shell


def test_the_exporters_values_equal_those_of_its_requests(
    both: tuple[Broker, Broker],
) -> None:
    ours, official = both

    def page() -> Found:
        return scraped(ours, "/metrics/exporter?collect=client")

    def all_have_values() -> bool:
        found = page()
        return all(found.get(name) for name in EXPORTER)

    wait_until(all_have_values, "a value of each name", 20.0)
    with Admin(ours.name_server.address) as session:
        wanted = as_the_exporter_reads(session, ours)
    assert len(wanted) >= 10
    wait_until(lambda: shown_of(page(), wanted) == wanted, "the same on the page", 20.0)
    with Admin(official.name_server.address) as session:
        wait_until(lambda: as_the_exporter_reads(session, official) == wanted, "the same there")
    cluster = {"cluster": CLUSTER, "broker": BROKER_NAME}
    assert value(page(), "rocketmq_producer_offset", topic=TOPIC, **cluster) == COUNT


def test_runtime_figures_have_the_keys_of_an_official_broker(
    both: tuple[Broker, Broker],
) -> None:
    """Whatever the same traffic determines."""
    ours, official = both
    there, page = figures_of(official), scraped(ours, "/metrics/exporter")
    shown = {name: value(page, RUNTIME + name) for name in SAME_EVERYWHERE}
    told = {name: float(there[PLAIN[name]]) for name in SAME_EVERYWHERE}
    assert shown == told
    average = shown["put_message_size_total"] / shown["putmessage_times_total"]
    assert value(page, f"{RUNTIME}put_message_average_size") == pytest.approx(average)


def test_runtime_figures_are_those_of_broker_status(ours: Broker, run: Shell) -> None:

    def differences() -> dict[str, tuple[float, str]]:
        status = dict(FIGURE.findall(run("brokerStatus", "-b", ours.address)))
        page = scraped(ours, "/metrics/exporter")
        found = {}
        for name, own in PLAIN.items():
            number = value(page, RUNTIME + name)
            if own not in MOVING and number != float(status[own]):
                found[name] = number, status[own]
        for name, own in RATES.items():
            for window, text in zip(WINDOWS, status[own].split(), strict=True):
                number = value(page, RUNTIME + name + window)
                if abs(number - float(text)) > 0.2 + 0.2 * number:
                    found[name + window] = number, text
        counts = re.findall(r"\]:(\d+)", status["putMessageDistributeTime"])
        for name, text in zip(PUT_CLASSES, counts or ["0"] * len(PUT_CLASSES), strict=True):
            if (number := value(page, RUNTIME + name)) != float(text):
                found[name] = number, text
        return found

    wait_until(lambda: differences() == {}, f"the figures of one moment: {differences()}", 20.0)


def test_offsets_lags_and_rates_equal_those_of_mqadmin(ours: Broker, run: Shell) -> None:
    rows = [line.split() for line in run("topicStatus", "-t", TOPIC).splitlines()[1:]]
    old, native = scraped(ours, "/metrics/exporter"), scraped(ours, "/metrics")
    assert value(old, "rocketmq_producer_offset", topic=TOPIC) == sum(int(row[3]) for row in rows)
    assert value(native, "rocketmq_messages_in_total", topic=TOPIC, message_type="normal") == COUNT
    for group, lag in ((GROUP, 0), (LATE, COUNT - QUEUES)):
        printed = run("consumerProgress", "-g", group)
        total = re.search(r"Diff Total: (\d+)", printed)
        shown = [
            number
            for labels, number in native["rocketmq_consumer_lag_messages"]
            if labels["consumer_group"] == group
        ]
        assert total and sum(shown) == int(total[1]) == lag
        assert value(old, "rocketmq_group_diff", group=group, topic=TOPIC) == lag

    def rates() -> bool:
        row = next(line for line in run("statsAll", "-t", TOPIC).splitlines() if GROUP in line)
        in_tps, out_tps = map(float, row.split()[3:5])
        page = scraped(ours, "/metrics/exporter")
        shown_in = value(page, "rocketmq_producer_tps", topic=TOPIC)
        shown_out = value(page, "rocketmq_consumer_tps", topic=TOPIC, group=GROUP)
        return abs(shown_in - in_tps) < 0.01 and abs(shown_out - out_tps) < 0.01

    wait_until(rates, "the rates of one moment", 20.0)


def test_a_dead_letter_and_a_retry_are_counted_as_mqadmin_finds_them(
    ours: Broker, run: Shell
) -> None:
    native, old = scraped(ours, "/metrics"), scraped(ours, "/metrics/exporter")
    for prefix, name, labels in (
        (DLQ_TOPIC_PREFIX, "topic_dlq_offset", {"group": GROUP}),
        (RETRY_TOPIC_PREFIX, "topic_retry_offset", {"topic": RETRY_TOPIC_PREFIX + GROUP}),
    ):
        rows = run("topicStatus", "-t", prefix + GROUP).splitlines()[1:]
        ends = sum(int(line.split()[3]) for line in rows)
        assert value(old, f"rocketmq_{name}", **labels) == ends == 1
    dead = "rocketmq_send_to_dlq_messages_total"
    assert value(native, dead, consumer_group=GROUP, topic=TOPIC) == 1
