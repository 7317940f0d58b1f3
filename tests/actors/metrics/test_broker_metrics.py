"""Tests of actors/metrics/broker_metrics.py and its pages: metric names and values."""

from contextlib import suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from socket import create_connection

import pytest

from actors.broker_server import start_broker
from actors.engine.system import ActorSystem
from actors.jobs.messages import JobFigures, JobState
from actors.metrics.broker_page import regrouped
from actors.metrics.client_figures import ConsumerAnswer
from actors.metrics.sources import FigureSet
from actors.naming.messages import RegistrationFigures
from actors.network.messages import ConnectionFigures
from actors.pulling.messages import HoldFigures
from actors.scrubbing.scrubber import ScrubFigures
from actors.sending.messages import CommitFigures
from actors.sending.replication_progress import FollowFigures, SlaveFigures
from actors.tables.consumer_views import ClientCounts
from actors.transactions.messages import OpenHalves
from protocol.bodies_admin import ConsumeStatsBody
from protocol.bodies_client import ConsumerRunningInfo, ConsumeStatus
from protocol.bodies_tables import KVTable
from protocol.codes import LanguageCode, RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import GetConsumeStatsHeader
from remoting.certificate import not_after_s
from storage.files.disk import RealDisk
from tests.actors.metrics.names import (
    BOARD_10477,
    BOARD_OF_THE_EXPORTER,
    EXPORTER,
    NATIVE,
)
from tests.compat.patience import wait_until
from tests.support.brokers import BROKER, SimulatedBroker, send_command, store_in
from tests.support.certificates import Certificates
from tests.support.metrics import Scraper, families, samples, text_of, value
from tests.support.peers import request
from tests.support.runtimes import IS_PYPY
from tests.support.transacting import COMMIT, ROLLBACK, end_command, half, producing

BILLING = {"topic": "Topic", "consumer_group": "consumers"}


def commit(
    made: SimulatedBroker,
    offset: int,
    queue_id: int = 0,
    topic: str = "Topic",
    group: str = "consumers",
) -> None:
    """Commit a consumer offset."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    fields["commitOffset"] = str(offset)
    assert made.ask(request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


def busy_broker(seed: int = 1) -> SimulatedBroker:
    """Five messages in two queues, three of them pulled by a group and one consumed."""
    made = SimulatedBroker(seed)
    made.make_topic(queues=2)
    made.make_group()
    made.subscribe()
    for queue_id in (0, 0, 0, 1, 1):
        made.send(b"x" * 100, queue_id=queue_id)
        made.system.advance(1000)
    made.pull(0, queue_id=0)
    commit(made, 1)
    return made


def test_every_name_of_other_tools_is_declared() -> None:
    made = busy_broker()
    scraper = Scraper(made)
    assert NATIVE - families(scraper.text()) == set()
    assert len(EXPORTER) == 89
    told = families(text_of(scraper.metrics.pages["/metrics/exporter"]("", FigureSet({}))))
    assert EXPORTER - told == set()
    assert {name for name in told if name.startswith("rocketmq_")} - EXPORTER == {
        "rocketmq_message_accumulation"  # which its documents name, and a console asks for
    }


def test_message_and_byte_counts_equal_the_brokers_statistics() -> None:
    made = busy_broker()
    found = Scraper(made).found()
    made.system.advance(2000)
    figures = KVTable.decode(made.ask(request(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    topic = {"topic": "Topic", "message_type": "normal"}
    assert value(found, "rocketmq_messages_in_total", **topic) == 5
    size = value(found, "rocketmq_throughput_in_total", **topic)
    assert size == float(figures["putMessageSizeTotal"])
    assert value(found, "rocketmq_message_size_count", **topic) == 5
    assert value(found, "rocketmq_message_size_sum", **topic) == size
    assert value(found, "rocketmq_messages_out_total", **BILLING) == 3
    assert value(found, "rocketmq_storage_size_bytes") == float(figures["commitLogMaxOffset"])
    sends = {"request_code": "SEND_MESSAGE_V2"}
    assert value(found, "rocketmq_rpc_latency_milliseconds_count", **sends) == 5
    beats = {"request_code": "HEART_BEAT", "response_code": "SUCCESS"}
    assert value(found, "rocketmq_rpc_latency_milliseconds_count", **beats) == 1
    old = Scraper(made).for_exporter()
    for name, own in (
        ("putmessage_times_total", "putMessageTimesTotal"),
        ("commitlog_maxoffset", "commitLogMaxOffset"),
        ("msg_gettotal_today_now", "msgGetTotalTodayNow"),
        ("earliest_message_timestamp", "earliestMessageTimeStamp"),
    ):
        assert value(old, f"rocketmq_brokeruntime_{name}") == float(figures[own])


def test_lag_equals_consumerprogress_and_has_a_time_lag() -> None:
    made = busy_broker()
    scraper = Scraper(made)
    found = scraper.found()
    header = GetConsumeStatsHeader("consumers", "Topic")
    answer = made.ask(RemotingCommand(RequestCode.GET_CONSUME_STATS, header.encode()))
    table = ConsumeStatsBody.decode(answer.body).offset_table
    behind = sum(each.broker_offset - each.consumer_offset for each in table.values())
    assert behind == value(found, "rocketmq_consumer_lag_messages", **BILLING) == 4
    assert value(found, "rocketmq_consumer_inflight_messages", **BILLING) == 2
    assert value(found, "rocketmq_consumer_ready_messages", **BILLING) == 2
    # sent at 0, 1, 2 s into queue 0 and at 3, 4 s into queue 1; it is 5 s now
    for name, age_ms in (("lag", 4000), ("queueing", 2000)):
        for suffix in ("_milliseconds", ""):
            said = value(found, f"rocketmq_consumer_{name}_latency{suffix}", **BILLING)
            assert abs(said - age_ms) <= 50
    assert abs(value(found, "troupemq_lag_seconds", **BILLING) - 4) <= 0.05
    old = scraper.for_exporter()
    labels = {"topic": "Topic", "group": "consumers"}
    assert value(old, "rocketmq_group_diff", **labels, msgModel="1") == 4
    assert value(old, "rocketmq_producer_offset", topic="Topic") == 5
    assert value(old, "rocketmq_consumer_offset", **labels) == 1
    commit(made, 3)
    commit(made, 2, queue_id=1)
    level = scraper.found()
    assert value(level, "rocketmq_consumer_lag_messages", **BILLING) == 0
    assert value(level, "rocketmq_consumer_lag_latency_milliseconds", **BILLING) == 0
    assert value(scraper.for_exporter(), "rocketmq_group_diff", **labels) == 0


def test_a_queue_is_stuck_once_messages_wait_and_no_offset_moves() -> None:
    made = busy_broker()
    scraper, moved_s = Scraper(made), made.system.clock.now_ms() / 1000
    assert value(scraper.found(), "troupemq_stuck_queues", **BILLING) == 0
    made.system.advance(31_000)
    commit(made, 1, queue_id=1)
    found = scraper.found()
    assert value(found, "troupemq_stuck_queues", **BILLING) == 1
    assert abs(value(found, "troupemq_stalled_seconds", **BILLING) - 31) <= 0.05
    assert value(found, "troupemq_consumed_total", **BILLING) == 2
    last_s = value(found, "troupemq_last_consumed_timestamp_seconds", **BILLING)
    assert abs(last_s - moved_s - 31) <= 0.05
    commit(made, 3)
    commit(made, 2, queue_id=1)
    level = scraper.found()
    assert value(level, "troupemq_stuck_queues", **BILLING) == 0
    assert value(level, "troupemq_stalled_seconds", **BILLING) == 0


def test_a_deleted_topic_or_group_is_missing_in_the_next_scrape() -> None:
    made = busy_broker()
    scraper = Scraper(made)
    assert 'topic="Topic"' in scraper.text() and 'consumer_group="consumers"' in scraper.text()
    fields = {"groupName": "consumers", "removeOffset": "true"}
    made.ask(request(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields))
    made.system.drain()  # the offsets go behind the answer
    found = scraper.found()
    assert found.get("rocketmq_messages_out_total", []) == []
    assert found.get("rocketmq_consumer_lag_messages", []) == []
    made.ask(request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Topic"}))
    assert 'topic="Topic"' not in scraper.text()


def test_delayed_messages_count_once_for_their_real_topic() -> None:
    made = SimulatedBroker(2)
    made.make_topic()
    made.send(properties="DELAY\x011\x02")
    made.system.drain()
    scraper = Scraper(made)
    found = scraper.found()
    delayed = {"topic": "Topic", "message_type": "delay"}
    assert value(found, "rocketmq_messages_in_total", **delayed) == 1
    assert value(found, "troupemq_delayed_messages", level="1") == 1
    made.system.advance(3000)
    found = scraper.found()
    assert value(found, "rocketmq_messages_in_total", **delayed) == 1
    plain = {**delayed, "message_type": "normal"}
    assert value(found, "rocketmq_messages_in_total", **plain) == 0, "the delivery is no send"
    assert value(found, "troupemq_delayed_messages", level="1") == 0
    assert value(found, "troupemq_delay_late_seconds", level="1") == 0


def test_transactions_are_counted_from_half_message_to_their_end() -> None:
    made = SimulatedBroker(3)
    made.make_topic()
    scraper = Scraper(made)
    first, second, third = (half(made, f"K{n}") for n in range(3))
    made.system.advance(2000)
    found = scraper.found()
    assert value(found, "rocketmq_half_messages", topic="Topic") == 3
    assert value(found, "troupemq_transactions_open") == 3
    assert 1.9 < value(found, "troupemq_transaction_oldest_seconds") < 2.5
    made.ask(end_command(first, COMMIT))
    made.ask(end_command(second, ROLLBACK))
    made.system.advance(500)
    found = scraper.found()
    assert value(found, "rocketmq_commit_messages_total", topic="Topic") == 1
    assert value(found, "rocketmq_rollback_messages_total", topic="Topic") == 1
    assert value(found, "rocketmq_half_messages", topic="Topic") == 1
    seconds = "rocketmq_finish_message_latency_milliseconds"
    assert value(found, f"{seconds}_count", topic="Topic") == 1
    assert 1.9 < value(found, f"{seconds}_sum", topic="Topic") < 3
    assert third.physical_offset


def test_dead_letters_of_a_group_are_counted() -> None:
    made = busy_broker()
    (record, *_) = made.records()
    fields = {"offset": str(record.physical_offset), "group": "consumers", "delayLevel": "-1"}
    assert made.ask(request(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    made.system.drain()  # a scrape may come before the record is in its consume queue
    scraper = Scraper(made)
    assert value(scraper.found(), "rocketmq_send_to_dlq_messages_total", **BILLING) == 1
    old = scraper.for_exporter()
    assert value(old, "rocketmq_topic_dlq_offset", group="consumers") == 1
    assert value(old, "rocketmq_group_dlqdiff", group="consumers") == 1


def test_connections_are_counted_by_language() -> None:
    made = busy_broker()
    found = Scraper(made).found()
    consumer = {"consumer_group": "consumers", "consume_mode": "push", "language": "PYTHON"}
    assert value(found, "rocketmq_consumer_connections", **consumer) == 1
    assert value(found, "troupemq_rebalances_total", consumer_group="consumers") == 1
    old = Scraper(made).for_exporter()
    assert value(old, "rocketmq_group_count", group="consumers") == 1


def test_actors_are_exposed_with_inbox_depth_and_restarts() -> None:
    made = busy_broker()
    made.system.address("pull_hold").tell(object())  # it fails at it
    made.system.advance(5000)
    found = Scraper(made).found()
    restarts = dict((own["actor"], count) for own, count in found["troupemq_actor_restarts_total"])
    assert restarts["pull_hold"] == 1 and restarts["put_message"] == 0
    assert value(found, "troupemq_actor_inbox_messages", actor="put_message") == 0
    assert value(found, "troupemq_actor_handled_total", actor="put_message") >= 5


def test_topics_beyond_the_limit_are_one_sum() -> None:
    made = SimulatedBroker(4, config=replace(BROKER, metrics_series_max=10))
    for n in range(30):
        made.make_topic(f"T{n}", queues=1)
        for _ in range(1 + n % 3):
            made.send(topic=f"T{n}")
    found = Scraper(made).found()
    counts = found["rocketmq_messages_in_total"]
    assert len(counts) == 10
    assert sum(number for _, number in counts) == 60
    assert sum(own["topic"] == "other" for own, _ in counts) == 1
    assert value(found, "troupemq_series", family="rocketmq_messages_in_total") == 10


def test_metrics_of_boards_for_the_official_exporter_have_values() -> None:
    """And whatever else a board of that family may ask for."""
    made = busy_broker()
    producing(made)
    status = ConsumeStatus(pull_rt=1.5, consume_ok_tps=7.0)
    body = ConsumerRunningInfo(status_table={"Topic": status, "x" * 10_000: status}).encode()
    client = ConsumerAnswer("192.0.2.7:1", "c", "consumers", body)
    (record, *_) = made.records()
    for level in ("-1", "1"):  # a dead letter, and one for the retry topic
        fields = {"offset": str(record.physical_offset), "group": "consumers", "delayLevel": level}
        assert made.ask(request(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    made.system.advance(3000)
    commit(made, 0, topic="%RETRY%consumers", group="late")
    found = Scraper(made).for_exporter(client)
    assert BOARD_10477 | BOARD_OF_THE_EXPORTER <= EXPORTER
    assert {name for name in EXPORTER if not found.get(name)} == set()
    assert value(found, "rocketmq_client_consumer_pull_rt", clientId="c", topic="Topic") == 1.5
    assert value(found, "rocketmq_client_consume_ok_msg_tps", group="consumers") == 7
    # sum(rocketmq_producer_offset) by (topic) - … sum(rocketmq_consumer_offset) by (group,topic)
    assert all("topic" in own for own, _ in found["rocketmq_producer_offset"])
    assert all({"group", "topic"} <= own.keys() for own, _ in found["rocketmq_consumer_offset"])


def test_refused_sends_and_sizes_are_in_their_buckets() -> None:
    made = SimulatedBroker(5)
    made.make_topic()
    for size in (10, 3000, 9000):
        made.send(b"x" * size)
    assert made.ask(send_command(topic="no such name!")).code != 0
    found = Scraper(made).found()
    buckets = {
        own["le"]: number
        for own, number in found["rocketmq_message_size_bucket"]
        if own["topic"] == "Topic"
    }
    assert [buckets[le] for le in ("1024", "4096", "524288", "+Inf")] == [1, 2, 3, 3]
    assert value(found, "troupemq_puts_failed_total") == 1


@pytest.mark.parametrize(
    ("counts", "wanted"), [((1, 2, 3, 4), [3, 0, 7]), ((0, 0, 0, 0), [0, 0, 0])]
)
def test_histogram_buckets_are_merged(counts: tuple[int, ...], wanted: list[int]) -> None:
    assert regrouped(counts, (1, 2, 50), (2, 10)) == wanted


def test_the_text_is_parsed_by_the_prometheus_library() -> None:
    made = busy_broker()
    text = Scraper(made).text()
    shown = samples(text).keys()
    assert "process_cpu_seconds_total" in shown
    assert ("python_gc_collections_total" in shown) is not IS_PYPY
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines), "a series stands twice"


def test_a_broker_with_sockets_serves_both_pages(tmp_path: Path) -> None:
    config = replace(BROKER, listen_port=0, metrics_type="PROM", metrics_port=0)
    store = store_in(tmp_path / "store")
    running = start_broker(config, store, system=ActorSystem.real(disk=RealDisk()))
    try:
        for path, name in (
            ("/metrics", "rocketmq_topic_number"),
            ("/metrics/exporter?collect=client", "rocketmq_brokeruntime_put_tps10"),
        ):
            connection = HTTPConnection("127.0.0.1", running.metrics_port, timeout=30)
            connection.request("GET", path)
            found = samples(connection.getresponse().read().decode())
            connection.close()
            assert len(found[name]) == 1
    finally:
        assert running.stop(30)


def test_tls_handshakes_are_counted_and_certificate_expiry_is_exposed(tmp_path: Path) -> None:
    made = Certificates(tmp_path / "tls")
    files = made.files()
    config = replace(
        BROKER,
        listen_port=0,
        metrics_type="PROM",
        metrics_port=0,
        tls_metrics_mode="enforcing",
        tls_server_certificate=files.cert_path,
        tls_server_key=files.key_path,
    )
    store = store_in(tmp_path / "store")
    running = start_broker(config, store, system=ActorSystem.real(disk=RealDisk()))
    context = made.calls()
    try:
        with (
            create_connection(("127.0.0.1", running.ports.main), 30) as plain,
            create_connection(("127.0.0.1", running.ports.main), 30) as wrong,
            create_connection(("127.0.0.1", running.ports.main), 30) as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1"),
        ):
            plain.sendall(b"\0\0")
            wrong.sendall(b"\x16nonsense")
            with suppress(ConnectionError):
                assert not wrong.recv(1)
            tls = running.broker.tls
            assert tls is not None
            wait_until(lambda: tls.handshakes.total() == 2, "both are counted")
            connection = HTTPSConnection(
                "127.0.0.1", running.metrics_port, timeout=30, context=context
            )
            connection.request("GET", "/metrics")
            found = samples(connection.getresponse().read().decode())
            connection.close()
    finally:
        assert running.stop(30)
    name = "troupemq_tls_handshakes_total"
    assert {labels["result"]: number for labels, number in found[name]} == {
        **{"success": 1, "failed": 1},
        **{"too_late": 0, "too_many": 0, "plain": 0},
    }
    assert value(found, "troupemq_connections", port="main", tls="true") == 1
    assert value(found, "troupemq_connections", port="main", tls="false") == 1
    end_s = value(found, "troupemq_tls_certificate_not_after_seconds", use="server")
    assert end_s == not_after_s(Path(files.cert_path).read_text(encoding="ascii"))


def test_timers_count_where_they_wait_and_when_they_are_delivered() -> None:
    made = SimulatedBroker(2)
    made.make_topic()
    scraper = Scraper(made)
    assert not [name for name in scraper.found() if name.startswith("troupemq_timer")]
    made.send(properties="TIMER_DELAY_MS\x013000")
    made.send(properties="TIMER_DELAY_SEC\x019000")
    made.system.drain()
    found = scraper.found()
    assert value(found, "troupemq_timers_pending", level="2") == 1
    assert value(found, "troupemq_timers_pending", level="18") == 1
    assert value(found, "rocketmq_timer_enqueue_total") == 2
    assert value(found, "rocketmq_timer_dequeue_latency") == 0
    made.system.advance(3100)
    found = scraper.found()
    assert value(found, "troupemq_timers_pending", level="2") == 0
    assert value(found, "rocketmq_timer_dequeue_total") == 1
    assert value(found, "troupemq_timer_late_max_seconds", level="2") < 0.1


ACTORS_TEXT = """\
rocketmq_producer_connections{language="PYTHON",version="407",protocol_type="remoting"} 2
troupemq_group_commit_waiting{} 3
troupemq_connections_refused_total{reason="maxConnections"} 4
troupemq_connections{port="main",tls="false"} 5
troupemq_connections{port="main",tls="true"} 0
troupemq_connections{port="fast",tls="false"} 0
troupemq_connections{port="fast",tls="true"} 6
troupemq_unsent_bytes{} 7
troupemq_held_pulls{} 8
troupemq_scrub_progress_ratio{} 0.25
troupemq_scrub_last_end_timestamp_seconds{} 9.5
troupemq_config_files_damaged_total{} 3
troupemq_replica_lag_bytes{slave="192.0.2.7"} 40
troupemq_replica_last_ack_seconds{slave="192.0.2.7"} 1.5
troupemq_slave_follows{} 1
troupemq_transactions_open{} 10
troupemq_rebalances_total{consumer_group="consumers"} 11
troupemq_registered{namesrv="192.0.2.1:9876"} 1
troupemq_registered{namesrv="192.0.2.2:9876"} 0
troupemq_spark_job_state{spark_job="nightly",state="finished"} 1
troupemq_spark_job_last_success_timestamp_seconds{spark_job="nightly"} 7.0
troupemq_spark_job_duration_seconds{spark_job="nightly"} 2.0
"""
"""Written by the page when it still read the actors themselves."""


def test_figures_of_actors_have_exactly_this_text() -> None:
    made = busy_broker()
    end = made.broker.store.commit_log.end_offset
    slaves = SlaveFigures([("192.0.2.7", end - 40, 1500.0), ("192.0.2.7", end - 90, 9.0)])
    done = JobState("nightly-5", "lag", "finished", started_ms=5000, ended_ms=7000, entry="nightly")
    open_ones = {(False, False): 5, (True, True): 6}
    figures = (
        ClientCounts({(LanguageCode.PYTHON, 407): 2}, {"consumers": 11, "unknown": 1}),
        CommitFigures(3),
        ConnectionFigures(open_ones, {"maxConnections": 4}, 7),
        *(HoldFigures(8), slaves, FollowFigures(True), OpenHalves(10), JobFigures([done])),
        RegistrationFigures({"192.0.2.1:9876": True, "192.0.2.2:9876": False}),
    )
    made.broker.scrubbed.value = ScrubFigures(0.25, 9500)
    made.broker.tables.damaged_files.value = {"a.json": 2, "b.json": 1}
    reading = FigureSet({type(each): each for each in figures})
    text = text_of(Scraper(made).metrics.pages["/metrics"]("", reading))
    base = 'cluster="DefaultCluster",node_type="broker",node_id="broker-a"'
    lines = [line.replace(f"{base},", "").replace(base, "") for line in text.splitlines(True)]
    names = {line.partition("{")[0] for line in ACTORS_TEXT.splitlines()}
    found = [line for line in lines if line.partition("{")[0] in names]
    others = [line for line in found if "spark_job_state" in line and line.endswith(" 0\n")]
    assert "".join(line for line in found if line not in others) == ACTORS_TEXT
    assert len(others) == 5
