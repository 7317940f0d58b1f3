"""Checks before a start opens anything: open files, extras, clock."""

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
"""Minimum of open files: some hundreds for the store, and one per client."""


def raise_file_limit() -> int:
    """Raise the limit of open files as far as allowed, and return it.

    Raises TooManyFiles if it is below FILES_MIN.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # the present limit may suffice
    require_files(soft)
    return soft


def require_files(allowed: int) -> None:
    """Raise TooManyFiles for too few files; no limit is -1 or, in Python 3.15, a large number."""
    if 0 <= allowed < FILES_MIN:
        raise TooManyFiles(
            f"the limit of open files is {allowed}, but a broker needs at least {FILES_MIN}:"
            " raise `ulimit -Hn`, or LimitNOFILE of its unit."
        )


def require_extras(config: BrokerConfig | NamesrvConfig) -> None:
    """Raise WrongSetting for a setting that needs an extra that is not installed."""
    if config.serves_metrics:
        require_extra("metrics", "metricsExporterType=PROM")
    if isinstance(config, BrokerConfig) and config.otel_traces:
        require_extra("otel", "otelTraces=true")
    if config.console_port and not console_is_installed():
        raise WrongSetting(f"consolePort={config.console_port}: {console_missing()}")


def require_clock(config: StoreConfig, disk: Disk, clock: Clock) -> None:
    """Raise ClockBehind if the store's newest message is far in the future.

    Until the clock reached that time, delayed messages and file retention would stall.
    """
    try:
        newest = newest_ms(disk, config.checkpoint_path)
    except OSError as error:
        raise store_error("cannot read the checkpoint", error) from error
    now = clock.now_ms()
    if newest - now <= config.clock_behind_max_ms:
        return
    raise ClockBehind(
        f"the clock is at {_utc(now)}, but the store {config.root} has messages of {_utc(newest)}:"
        " set the clock, or, if it is right, raise clockBehindMaxMs"
        f" to {newest - now + 1} or more."
    )


def _utc(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms after 1970"
