"""Examination of a machine and of settings before a start.

A problem that would refuse a start has the name and exit code of that refusal (exit_codes.py).
Other findings are advice, for example on kernel settings. Nothing is changed.
"""

import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from tempfile import TemporaryFile
from time import CLOCK_REALTIME, clock_getres

from actors.broker_server import FAST_PORT_BELOW, HA_PORT_ABOVE, open_for_slaves
from actors.config import BrokerConfig, ConfigFindings
from actors.metrics.metrics_server import HOST_NAME as METRICS_HOST
from actors.metrics.metrics_server import PORT_NAME as METRICS_PORT
from actors.network.bind_address import require_listened
from actors.network.connections import PortTaken, open_listener
from actors.network.tls_contexts import tls_contexts
from storage.access.acl_files import parse_texts, read_texts
from storage.child_python import JIT, may_make_code
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.errors import NotPermitted, StoreError, StoreLocked, reason_of
from storage.files.disk import RealDisk
from storage.files.lock_file import lock_owner
from storage.recovery.checkpoint import require_log
from storage.recovery.store_format import (
    STORE_FORMAT,
    format_of,
    require_finished_copy,
    require_known_format,
)
from storage.retention.cleaning import used_ratio
from storage.retention.reserve import require_room
from troupemq.exit_codes import REFUSALS
from troupemq.java import find_java
from troupemq.jobs_beside import scheduled_jobs
from troupemq.jobs_python import NoSpark, find_jobs_python
from troupemq.masters.plan import PORT_STEP
from troupemq.runtime import JIT_OFF, Runtime, this_runtime
from troupemq.start_checks import require_clock, require_extras, require_files

FILES_WISHED = 65_536
CLOCK_YEAR_MS = 1_735_689_600_000
"""Start of 2025; a clock before that was never set."""

BETTER_RUNTIMES = (
    "to save processor time per send, use PyPy 3.11 (about 40 % less) or CPython 3.15 with its JIT"
    " (about 15 % less)"
)
BETTER_BUILD = "; or a build with --enable-optimizations (about 5 % less)"
"""Measured with 64 concurrent sends, against an optimised and a plain build of CPython 3.11."""

Verdict = str
OK, ADVICE, REFUSED = "ok", "advice", "refused"
SYS = Path("/")


@dataclass(frozen=True)
class Diagnosis:
    """One finding: the check's name, what it found, and unless `ok`, what to change and why."""

    name: str
    verdict: Verdict
    found: str
    cure: str = ""

    @property
    def exit_code(self) -> int:
        """Exit code of the refused start; 0 for advice."""
        if self.verdict != REFUSED:
            return 0
        return next(each.code for each in REFUSALS if each.name == self.name)


@dataclass(frozen=True)
class KernelSetting:
    """File below /proc/sys or /sys, a test of its value, and advice if the test fails."""

    path: str
    serves: Callable[[str], bool]
    cure: str


def _at_least(least: int) -> Callable[[str], bool]:
    return lambda text: int(text.split()[0]) >= least


def _at_most(most: int) -> Callable[[str], bool]:
    return lambda text: int(text.split()[0]) <= most


KERNEL = (
    KernelSetting(
        "proc/sys/net/core/somaxconn",
        _at_least(1024),
        "set net.core.somaxconn=1024: all clients reconnect at once after a restart",
    ),
    KernelSetting(
        "proc/sys/net/ipv4/tcp_max_syn_backlog",
        _at_least(1024),
        "set net.ipv4.tcp_max_syn_backlog=4096: all clients reconnect at once after a restart",
    ),
    KernelSetting(
        "proc/sys/vm/max_map_count",
        _at_least(65_530),
        "set vm.max_map_count=655360: the broker maps each commit log and consume queue file",
    ),
    KernelSetting(
        "proc/sys/vm/swappiness",
        _at_most(10),
        "set vm.swappiness=1: swapping delays the broker's answers",
    ),
    KernelSetting(
        "proc/sys/vm/dirty_ratio",
        _at_most(20),
        "set vm.dirty_bytes=536870912 and vm.dirty_background_bytes=67108864: a sync waits for all"
        " unwritten data, which may reach gigabytes",
    ),
    KernelSetting(
        "proc/sys/vm/zone_reclaim_mode",
        _at_most(0),
        "set vm.zone_reclaim_mode=0: the kernel else evicts page cache while memory is free",
    ),
    KernelSetting(
        "sys/kernel/mm/transparent_hugepage/enabled",
        lambda text: "[always]" not in text,
        "write madvise to this file: with always, the kernel pauses processes to merge pages",
    ),
)


def examine_machine(environment: Mapping[str, str], root: Path = SYS) -> Iterator[Diagnosis]:
    """Examine what does not depend on settings: Python, open files, kernel, clock."""
    yield python_of(this_runtime(), environment)
    yield _files()
    yield from (_kernel(each, root) for each in KERNEL)
    yield _set_clock()


def examine_broker(
    config: BrokerConfig, store: StoreConfig, findings: ConfigFindings | None = None
) -> Iterator[Diagnosis]:
    """Examine settings, ports, store and disk for a broker with these settings."""
    yield _settings(config, store, findings or ConfigFindings())
    yield from _extras(config)
    yield from _ports(config)
    disk = RealDisk()
    looks = [partial(each, config) for each in (_advertised, _accounts, _certificates, _schedule)]
    for look in (*looks, partial(_logged, store, disk)):
        found = _refusal("settings", look)
        if found.verdict != OK:
            yield found
    places = {store.root: "storePathRootDir"}
    if not store.commit_log_dir.startswith(f"{store.root}/"):
        places[store.commit_log_dir] = "storePathCommitLog"
    for path, setting in places.items():
        yield _refusal("permissions", partial(_writable, path, setting))
    yield _refusal("lock", lambda: _unlocked(store))
    yield _refusal("format", lambda: _format(store, disk))
    yield _refusal("copy", lambda: _finished(store, disk))
    yield _refusal("clock", lambda: _after_the_store(store, disk))
    yield _refusal("disk", lambda: _room(store, disk))
    yield _usage(store, disk)


def _settings(config: BrokerConfig, store: StoreConfig, findings: ConfigFindings) -> Diagnosis:
    found = f"{config.broker_name}, store in {store.root}"
    if findings:
        found += f"; {findings.sentence()}"
    if findings.unknown or findings.old_spelling:
        cure = "correct or remove these keys: neither RocketMQ 4.9.7 nor this broker reads them"
        return Diagnosis("settings", ADVICE, found, cure)
    return Diagnosis("settings", OK, found)


def _extras(config: BrokerConfig) -> Iterator[Diagnosis]:
    try:
        require_extras(config)
    except StoreError as error:
        yield Diagnosis("settings", REFUSED, "a library is not installed", str(error))


def examine_jobs(named: str, environment: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Examine the Python and Java of Spark jobs; `named` is the setting jobsPython."""
    try:
        python = find_jobs_python(named)
    except NoSpark as error:
        if named:
            yield Diagnosis("jobs", ADVICE, "the broker starts, but no Spark jobs", f"{error}.")
        else:
            yield Diagnosis("jobs", OK, f"Spark jobs are unavailable (optional). {error}.")
        yield Diagnosis("java", OK, "not checked: only Spark jobs need Java")
        return
    yield Diagnosis("jobs", OK, f"{python.runtime}, {python.path}")
    try:
        found = find_java(environment, package=python.java_package)
        yield Diagnosis("java", OK, found)
    except StoreError as error:
        found = "not found: the broker starts, but no Spark jobs"
        yield Diagnosis("java", ADVICE, found, f"{error}.")


def examine_namesrv(port: int, bind_address: str) -> Diagnosis:
    return _port(port, "listenPort of the name server", bind_address)


def verdict_of(found: Sequence[Diagnosis]) -> Diagnosis:
    """Return the last line: ready, or the number of problems."""
    problems = [each.name for each in found if each.verdict == REFUSED]
    advice = sum(each.verdict == ADVICE for each in found)
    if not problems:
        more = f"; advice: {advice}" if advice else ""
        return Diagnosis("verdict", OK, f"ready: a start would succeed{more}")
    count = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
    names = ", ".join(dict.fromkeys(problems))
    return Diagnosis("verdict", REFUSED, f"{count}, a start would fail: {names}")


def python_of(runtime: Runtime, environment: Mapping[str, str]) -> Diagnosis:
    """Examine the interpreter; advise on faster ones."""
    found = f"{runtime}, {sys.executable}"
    if runtime.compiles:
        return Diagnosis("python", OK, found)
    if runtime.jit == JIT_OFF:
        if not environment.get(JIT):
            if may_make_code():
                found += "; a start switches it on unless pythonJit is false"
                return Diagnosis("python", OK, found)
            cure = "allow the process to make code (MemoryDenyWriteExecute=no in its unit)"
        else:
            cure = f"unset {JIT}"
        cure += ": the JIT saves about 15 % of the processor time of a send"
        return Diagnosis("python", ADVICE, found, cure)
    cure = BETTER_RUNTIMES if runtime.is_optimised else BETTER_RUNTIMES + BETTER_BUILD
    return Diagnosis("python", ADVICE, found, cure)


def _files() -> Diagnosis:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = "no limit" if hard == resource.RLIM_INFINITY else f"{hard} at most"
    try:
        require_files(hard)
    except StoreError as error:
        return Diagnosis("files", REFUSED, found, str(error))
    if 0 <= hard < FILES_WISHED:
        cure = f"raise it to {FILES_WISHED} or more: each client needs one, the store some hundreds"
        return Diagnosis("files", ADVICE, found, cure)
    return Diagnosis("files", OK, found)


def _kernel(setting: KernelSetting, root: Path) -> Diagnosis:
    name = setting.path.removeprefix("proc/sys/").replace("/", ".")
    try:
        text = (root / setting.path).read_text(encoding="ascii").strip()
        serves = setting.serves(text)
    except (OSError, ValueError, IndexError):
        return Diagnosis(name, OK, "not readable here")
    return Diagnosis(name, OK, text) if serves else Diagnosis(name, ADVICE, text, setting.cure)


def _set_clock() -> Diagnosis:
    now_ms = SystemClock().now_ms()
    found = f"{now_ms} ms since 1970, steps of {clock_getres(CLOCK_REALTIME) * 1e9:.0f} ns"
    if now_ms < CLOCK_YEAR_MS:
        cure = "set the clock, for example with NTP: delays and file retention depend on it"
        return Diagnosis("clock of the machine", ADVICE, found, cure)
    return Diagnosis("clock of the machine", OK, found)


def _ports(config: BrokerConfig) -> Iterator[Diagnosis]:
    names = {0: "listenPort", -FAST_PORT_BELOW: "listenPort - 2", HA_PORT_ABOVE: "listenPort + 1"}
    if config.is_slave:
        del names[HA_PORT_ABOVE]
    wanted = []
    for number in range(config.masters):
        step = PORT_STEP * number
        wanted += [(config.listen_port + step + at, name) for at, name in names.items()]
        wanted.append((config.health_port and config.health_port + step, "healthPort"))
        if config.serves_metrics and config.metrics_port not in (0, config.health_port):
            port = config.metrics_port + step
            yield _port(port, METRICS_PORT, config.metrics_host, setting=METRICS_HOST)
    is_free = config.listen_port == 0
    if is_free:
        yield _port(0, "listenPort", config.bind_address)
    for port, name in wanted:
        if port <= 0 or (is_free and name != "healthPort"):
            continue
        if name == names.get(HA_PORT_ABOVE):
            yield _port(port, name, config.bind_address, partial(open_for_slaves, config))
        else:
            yield _port(port, name, config.bind_address)


def _port(
    port: int,
    name: str,
    bind_address: str,
    open_there: Callable[[int, str], socket] | None = None,
    setting: str = "bindAddress",
) -> Diagnosis:
    try:
        open_port = open_there or partial(open_listener, bind_address, setting=setting)
        open_port(port, name).close()
    except PortTaken as error:
        return Diagnosis("port", REFUSED, f"{name} {port}", str(error))
    return Diagnosis("port", OK, f"{name} {port} is free")


def _advertised(config: BrokerConfig) -> str:
    require_listened(config)
    config.store_address()
    return f"{config.broker_ip1} for clients, {config.broker_ip2} for slaves"


def _accounts(config: BrokerConfig) -> str:
    """Read the accounts as a start does; a start makes a missing file."""
    if not config.acl_enable:
        return "no access control"
    path, disk = config.acl_path(config.config_path), RealDisk()
    if disk.exists(path):
        parse_texts(read_texts(disk, path), takes_samples=config.takes_samples)
    return path


def _certificates(config: BrokerConfig) -> str:
    tls_contexts(config)
    return f"TLS is {config.tls_mode}"


def _schedule(_: BrokerConfig) -> str:
    return f"{len(scheduled_jobs(None))} scheduled jobs"


def _refusal(name: str, look: Callable[[], str]) -> Diagnosis:
    """Return what `look` finds, or the StoreError that would end a start."""
    try:
        return Diagnosis(name, OK, look())
    except StoreError as error:
        return Diagnosis(name, REFUSED, "a start would fail", str(error))


def _writable(root: str, setting: str) -> str:
    """Check the files of a store or log, or if it is missing, the folder to create it in."""
    path = _existing(root)
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        raise NotPermitted(
            f"{path} is not a folder that this user can write to: change its owner or mode, or"
            f" choose another {setting}."
        )
    try:
        TemporaryFile(dir=path).close()  # it has no name where the file system can do that
    except OSError as error:
        raise NotPermitted(
            f"no file can be made in {path}: {reason_of(error)}; choose another {setting}."
        ) from error
    for folder, _, names in os.walk(root):
        for name in names:
            each = f"{folder}/{name}"
            if not os.access(each, os.R_OK | os.W_OK):
                raise NotPermitted(f"cannot read and write {each}: change its owner or mode.")
    return f"{path} is writable"


def _unlocked(store: StoreConfig) -> str:
    owner = lock_owner(store.lock_path)
    if owner:
        raise StoreLocked(
            f"the store {store.root} is in use by process {owner}: stop that broker, or choose"
            " another storePathRootDir."
        )
    return f"not in use: {store.root}"


def _format(store: StoreConfig, disk: RealDisk) -> str:
    require_known_format(store, disk)
    return f"{format_of(store, disk)}; this version supports up to {STORE_FORMAT}"


def _finished(store: StoreConfig, disk: RealDisk) -> str:
    require_finished_copy(store, disk)
    return "not an unfinished copy"


def _logged(store: StoreConfig, disk: RealDisk) -> str:
    require_log(store, disk)
    return "not without its commit log"


def _after_the_store(store: StoreConfig, disk: RealDisk) -> str:
    require_clock(store, disk, SystemClock())
    return "not behind the newest message"


def _existing(path: str) -> str:
    """Return the absolute path, or the nearest folder above that exists."""
    path = os.path.abspath(path)
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _room(store: StoreConfig, disk: RealDisk) -> str:
    require_room(store, disk)
    return f"{shutil.disk_usage(_existing(store.root)).free >> 20} MiB are free"


def _usage(store: StoreConfig, disk: RealDisk) -> Diagnosis:
    ratio = max(used_ratio(disk, _existing(path)) for path in (store.commit_log_dir, store.root))
    found = f"{ratio:.0%} are used"
    if ratio > store.disk_warning_ratio:
        cure = f"free some space: above {store.disk_warning_ratio:.0%} sends are refused"
        return Diagnosis("disk use", ADVICE, found, cure)
    if ratio > store.disk_clean_forcibly_ratio:
        limit = f"{store.disk_clean_forcibly_ratio:.0%}"
        cure = f"free some space: above {limit} old files are deleted before they expire"
        return Diagnosis("disk use", ADVICE, found, cure)
    return Diagnosis("disk use", OK, found)


def exit_code_of_all(found: Sequence[Diagnosis]) -> int:
    """Return the exit code of the first problem; 0 if a start would succeed."""
    with suppress(StopIteration):
        return next(each.exit_code for each in found if each.exit_code)
    return 0
