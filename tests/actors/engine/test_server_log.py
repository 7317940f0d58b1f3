"""Loggers of the servers: structlog's, with its set-up, which is imported for the first line."""

import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from actors.engine.server_log import dropping, get_logger

ROOT = Path(__file__).resolve().parents[3]
LEVELS = ("debug", "info", "warning", "error", "critical")
PROGRAM = """
import sys
from actors.engine.server_log import dropping, get_logger

log = get_logger("actors.somewhere")
with dropping(lambda level, event: level == "info" or event == "slow handler"):
    log.info("started")
    log.warning("slow handler", ms=60)
    assert "structlog" not in sys.modules
    log.warning("disk is full", ratio=0.9)
log.info("stopped")
"""


def test_lines_reach_structlog_with_their_level_and_fields() -> None:
    log = get_logger(__name__)
    with capture_logs() as lines:
        for level in LEVELS:
            getattr(log, level)("noted", count=2)
        try:
            raise ValueError("wrong")
        except ValueError:
            log.exception("failed", name="x")
    noted, (failed,) = lines[:-1], lines[-1:]
    assert noted == [{"event": "noted", "count": 2, "log_level": level} for level in LEVELS]
    assert failed["event"] == "failed" and failed["exc_info"]


def test_a_program_that_has_configured_structlog_gets_all_lines() -> None:
    with capture_logs() as lines, dropping(lambda level, event: True):
        get_logger(__name__).info("started")
    assert [each["event"] for each in lines] == ["started"]


@pytest.mark.slow
def test_lines_that_are_dropped_do_not_import_structlog() -> None:
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stderr == ""
    assert [word in ran.stdout for word in ("started", "slow", "disk is full", "stopped")] == [
        False,
        False,
        True,
        True,
    ]
