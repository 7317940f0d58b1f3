"""Tests of actors/metrics/selection.py and actors/settings/telemetry_settings.py: shown topics."""

import pytest

from actors.config import ConfigError, parse_broker_config, parse_namesrv_config
from actors.metrics.page import PART_LINES
from actors.metrics.selection import MetricsSelection, Row, column
from actors.settings.telemetry_settings import MetricsSettings
from storage.errors import StoreError


def selection(**settings: object) -> MetricsSelection:
    return MetricsSelection(MetricsSettings(**settings))  # type: ignore[arg-type]


def test_over_the_limit_the_busiest_are_kept_and_the_rest_summed() -> None:
    rows = [Row(f"T{n}", "g", weight=n % 7, values=(1, n)) for n in range(100)]
    kept = selection(metrics_series_max=10).limited([*rows], greatest=(1,))
    assert len(kept) == 10
    assert min(row.weight for row in kept[:-1]) == 6
    other = kept[-1]
    assert (other.topic, other.group) == ("other", "other")
    assert sum(row.values[0] for row in kept) == 100, "what is added up is still there"
    assert other.values[1] == max(row.values[1] for row in rows if row not in kept)


def test_unselected_rows_are_freed_in_pieces_and_equal_ones_keep_their_order() -> None:
    class Rows(list[Row]):
        def sort(self, **_: object) -> None:
            raise AssertionError("30,000 at once hold the loop up")

        def __delitem__(self, which: object) -> None:
            before = len(self)
            super().__delitem__(which)  # type: ignore[arg-type]
            freed.append(before - len(self))

    freed: list[int] = []
    rows = Rows(Row(f"T{n}", "g", 1, (n,)) for n in range(2 * PART_LINES + 10))
    kept = selection(metrics_series_max=10).limited(rows)
    assert [row.topic for row in kept] == [*(f"T{n}" for n in range(9)), "other"]
    assert rows == [] and freed == [PART_LINES, PART_LINES, 10]


def test_families_with_many_lines_are_limited_by_lines() -> None:
    rows = [Row(f"T{n}", "", n, (n,)) for n in range(100)]
    assert len(selection(metrics_series_max=90).limited(rows, series_of_one=9)) == 10


def test_patterns_match_whole_names_and_system_topics_are_optional() -> None:
    chosen = selection(metrics_topic_pattern="Orders.*|Bills", metrics_group_pattern="team-[ab]")
    assert [chosen.shows_topic(name) for name in ("Orders", "Orders2", "Bills", "Bills2")] == [
        *(True, True, True),
        False,
    ]
    assert [chosen.shows_group(name) for name in ("team-a", "team-c")] == [True, False]
    for topic in ("SCHEDULE_TOPIC_XXXX", "%RETRY%g", "RMQ_SYS_TRACE_TOPIC"):
        assert not selection().shows_topic(topic)
        assert selection(metrics_system_topics=True).shows_topic(topic)
    assert not selection().shows_group("CID_RMQ_SYS_TRANS")
    assert selection().shows_topic("%DLQ%g"), "dead letters are the user's"


def test_labels_identify_a_row() -> None:
    (row,) = selection().limited([Row("%RETRY%g", "g", 1, (5,))])
    assert row.text == 'topic="%RETRY%g",consumer_group="g",is_retry="true",is_system="true"'
    assert [*column([row], 0)] == [(row.text, 5)]


@pytest.mark.parametrize("pattern", ["(a+)+", "(?=x)", "a\\1", "[", "x" * 257, "(a|b)*"])
def test_a_pattern_with_superlinear_matching_is_refused(pattern: str) -> None:
    with pytest.raises(StoreError, match="metricsTopicPattern"):
        parse_broker_config("", {"metricsTopicPattern": pattern})


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("metricsExporterType", "OTLP_GRPC", "it may be DISABLE or PROM"),
        ("metricsPromExporterPort", "65536", "it must be 0 to 65535"),
        ("metricsOtelCardinalityLimit", "9", "it must be 10 or more"),
        ("metricsPromExporterHost", "a b", "write a host's name or address"),
    ],
)
def test_an_impossible_setting_is_refused(key: str, value: str, why: str) -> None:
    for parse in (parse_broker_config, parse_namesrv_config):
        with pytest.raises((ConfigError, StoreError), match=why):
            parse("", {key: value})


def test_broker_and_name_server_have_separate_ports() -> None:
    broker, _, _ = parse_broker_config("")
    namesrv, _ = parse_namesrv_config("")
    assert (broker.metrics_port, namesrv.metrics_port) == (5557, 5558)
    assert broker.metrics_host == namesrv.metrics_host == "127.0.0.1"
    assert not broker.serves_metrics and not namesrv.serves_metrics
