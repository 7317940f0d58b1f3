"""Log lines of a store's start: the store, then each finding."""

from structlog.testing import capture_logs

from actors.dispatching.recovery_log import LINES_MAX, log_recovery, log_reserve
from storage.config import StoreConfig
from storage.errors import Finding
from storage.recovery.recovery import RecoveryReport
from storage.retention.reserve import Reserve


def test_a_clean_start_is_one_line_and_each_finding_one_more() -> None:
    with capture_logs() as lines:
        log_recovery(RecoveryReport(end_offset=7))
    assert [(line["event"], line["log_level"]) for line in lines] == [("store opened", "info")]
    report = RecoveryReport(clean=False, gaps=[(1, 2, "why")])
    report.findings = [Finding("index", "it is gone"), Finding("store", "fine", is_wrong=False)]
    with capture_logs() as lines:
        log_recovery(report)
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("store recovered", "warning"),
        ("store finding reported", "warning"),
        ("store finding reported", "warning"),
        ("store finding reported", "info"),
    ]
    assert [(line["part"], line["found"]) for line in lines[1:]] == [
        ("commit log", "damaged from 1 to 2: why"),
        ("index", "it is gone"),
        ("store", "fine"),
    ]


def test_only_the_first_findings_are_logged_with_a_count_of_the_rest() -> None:
    findings = [Finding("consume queues", f"queue {number}") for number in range(LINES_MAX + 5)]
    with capture_logs() as lines:
        log_recovery(RecoveryReport(findings=findings))
    assert len(lines) == 1 + LINES_MAX + 1
    assert lines[-1]["found"].startswith("5 more")


def test_required_disk_space_is_one_line_and_a_warning_if_it_is_missing() -> None:
    for missing, level in ((1 << 20, "info"), (3 << 30, "warning")):
        with capture_logs() as lines:
            log_reserve(StoreConfig("/store"), Reserve(2 << 30, missing, 2 << 30))
        (line,) = lines
        assert line["log_level"] == level
    assert "2 GiB are free: make room" in line["found"]
