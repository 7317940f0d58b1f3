"""The checks of a start before anything is opened: open files, and the clock."""

import resource
from datetime import UTC, datetime

from actors.config import BrokerConfig, NamesrvConfig
from actors.settings.extras import require_extra
from storage.clock import Clock
from storage.config import StoreConfig
from storage.errors import ClockBehind, TooManyFiles, WrongSetting, store_error
from storage.files.disk import Disk
from storage.recovery.checkpoint import newest_ms
from troupemq.console_child import console_is_installed, console_missing

FILES_MIN = 1024
"""Some hundreds for the store, and one for each client: with less nothing goes for long."""


def raise_file_limit() -> int:
    """Takes as many open files as the process may have; gives their number.

    Raises TooManyFiles if those are too few to serve.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # what it has may do
    require_files(soft)
    return soft


def require_files(allowed: int) -> None:
    """Raises TooManyFiles for too few; no limit is -1, or a large number (Python 3.15)."""
    if 0 <= allowed < FILES_MIN:
        raise TooManyFiles(
            f"this process may open {allowed} files, and a broker needs {FILES_MIN} at least:"
            " raise `ulimit -Hn`, or LimitNOFILE of its unit."
        )


def require_extras(config: BrokerConfig | NamesrvConfig) -> None:
    """Raise WrongSetting for a setting that asks for what is not installed."""
    if config.serves_metrics:
        require_extra("metrics", "metricsExporterType=PROM")
    if isinstance(config, BrokerConfig) and config.otel_traces:
        require_extra("otel", "otelTraces=true")
    if config.console_port and not console_is_installed():
        raise WrongSetting(f"consolePort={config.console_port}: {console_missing()}")


def require_clock(config: StoreConfig, disk: Disk, clock: Clock) -> None:
    """Raises ClockBehind where the store has messages of a time that is far from having come.

    Their delays would wait, and old files would stay, until it has.
    """
    try:
        newest = newest_ms(disk, config.checkpoint_path)
    except OSError as error:
        raise store_error("cannot read the checkpoint", error) from error
    now = clock.now_ms()
    if newest - now <= config.clock_behind_max_ms:
        return
    raise ClockBehind(
        f"the clock says {_utc(now)}, and the store {config.root} has messages of {_utc(newest)}:"
        " set the clock, or, if it is right, raise clockBehindMaxMs"
        f" to {newest - now + 1} or more."
    )


def _utc(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms after 1970"
