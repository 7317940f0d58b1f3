"""The examination of a machine and of settings before a start: what to change, and why.

What would refuse a start has the name and exit code of that refusal (exit_codes.py); the rest are
pieces of advice, for limits and kernel settings that serve a broker badly. Nothing is changed.
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
from time import CLOCK_REALTIME, clock_getres

from actors.broker_server import FAST_PORT_BELOW, HA_PORT_ABOVE, open_for_slaves
from actors.config import BrokerConfig, ConfigFindings
from actors.network.bind_address import require_listened
from actors.network.connections import PortTaken, open_listener
from actors.network.tls_contexts import tls_contexts
from storage.access.acl_files import parse_texts, read_texts
from storage.child_python import JIT, may_make_code
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.errors import NotPermitted, StoreError, StoreLocked
from storage.files.disk import RealDisk
from storage.files.lock_file import lock_owner
from storage.recovery.store_format import STORE_FORMAT, format_of, require_known_format
from storage.recovery.unfinished_copy import require_finished_copy
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
"""2025 began: a clock that says less was never set."""

BETTER_RUNTIMES = (
    "take PyPy 3.11, which needs some 40 % less processor time for a send, or CPython 3.15 with its"
    " JIT: some 15 % less"
)
BETTER_BUILD = "; or a build with --enable-optimizations: some 5 % less"
"""64 sends at a time, beside an optimised CPython 3.11 and beside one that is not."""

Verdict = str
OK, ADVICE, REFUSED = "ok", "advice", "refused"
SYS = Path("/")


@dataclass(frozen=True)
class Diagnosis:
    """One line: what was looked at, what was found, and, unless that is ok, what to do and why."""

    name: str
    verdict: Verdict
    found: str
    cure: str = ""

    @property
    def exit_code(self) -> int:
        """That of the start which it would be the end of; 0 for what only serves badly."""
        if self.verdict != REFUSED:
            return 0
        return next(each.code for each in REFUSALS if each.name == self.name)


@dataclass(frozen=True)
class KernelSetting:
    """A file below /proc/sys or /sys, the values that serve, and why others do not."""

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
        "set net.core.somaxconn=1024: after a restart all clients connect at once",
    ),
    KernelSetting(
        "proc/sys/net/ipv4/tcp_max_syn_backlog",
        _at_least(1024),
        "set net.ipv4.tcp_max_syn_backlog=4096: after a restart all clients connect at once",
    ),
    KernelSetting(
        "proc/sys/vm/max_map_count",
        _at_least(65_530),
        "set vm.max_map_count=655360: each file of log and queues that is read is mapped",
    ),
    KernelSetting(
        "proc/sys/vm/swappiness",
        _at_most(10),
        "set vm.swappiness=1: a broker that is swapped out answers late",
    ),
    KernelSetting(
        "proc/sys/vm/dirty_ratio",
        _at_most(20),
        "set vm.dirty_bytes=536870912 and vm.dirty_background_bytes=67108864: gigabytes that gather"
        " are what one sync then waits for",
    ),
    KernelSetting(
        "proc/sys/vm/zone_reclaim_mode",
        _at_most(0),
        "set vm.zone_reclaim_mode=0: else the page cache of one node is thrown away early",
    ),
    KernelSetting(
        "sys/kernel/mm/transparent_hugepage/enabled",
        lambda text: "[always]" not in text,
        "write madvise there: the kernel stops processes to put pages together",
    ),
)


def examine_machine(environment: Mapping[str, str], root: Path = SYS) -> Iterator[Diagnosis]:
    """What does not depend on settings: Python, limits, kernel, clock."""
    yield python_of(this_runtime(), environment)
    yield _files()
    yield from (_kernel(each, root) for each in KERNEL)
    yield _set_clock()


def examine_broker(
    config: BrokerConfig, store: StoreConfig, findings: ConfigFindings | None = None
) -> Iterator[Diagnosis]:
    """What a start with these settings would find, as far as it can be seen from outside."""
    yield _settings(config, store, findings or ConfigFindings())
    yield from _extras(config)
    yield from _ports(config)
    for look in (_advertised, _accounts, _certificates, _schedule):
        found = _refusal("settings", partial(look, config))
        if found.verdict != OK:
            yield found
    disk = RealDisk()
    yield _refusal("permissions", lambda: _writable(store.root))
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
        cure = "correct these keys or take them out: neither 4.9.7 nor this broker reads them"
        return Diagnosis("settings", ADVICE, found, cure)
    return Diagnosis("settings", OK, found)


def _extras(config: BrokerConfig) -> Iterator[Diagnosis]:
    try:
        require_extras(config)
    except StoreError as error:
        yield Diagnosis("settings", REFUSED, "a library is not installed", str(error))


def examine_jobs(named: str, environment: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Yield what runs Spark jobs, a Python and a Java; `named` is the setting jobsPython."""
    try:
        python = find_jobs_python(named)
    except NoSpark as error:
        if named:
            yield Diagnosis("jobs", ADVICE, "a broker starts, its jobs do not", f"{error}.")
        else:
            yield Diagnosis("jobs", OK, f"none can run, and a broker needs none. {error}.")
        yield Diagnosis("java", OK, "not looked for: only Spark jobs need one")
        return
    yield Diagnosis("jobs", OK, f"{python.runtime}, {python.path}")
    try:
        found = find_java(environment, package=python.java_package)
        yield Diagnosis("java", OK, found)
    except StoreError as error:
        yield Diagnosis("java", ADVICE, "none: a broker starts, its jobs do not", f"{error}.")


def examine_namesrv(port: int, bind_address: str) -> Diagnosis:
    """What a name server would find that listens there."""
    return _port(port, "listenPort of the name server", bind_address)


def verdict_of(found: Sequence[Diagnosis]) -> Diagnosis:
    """The last line: ready, or how many problems there are."""
    problems = [each.name for each in found if each.verdict == REFUSED]
    advice = sum(each.verdict == ADVICE for each in found)
    if not problems:
        more = f"; advice: {advice}" if advice else ""
        return Diagnosis("verdict", OK, f"ready: a start would not be refused{more}")
    count = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
    names = ", ".join(dict.fromkeys(problems))
    return Diagnosis("verdict", REFUSED, f"{count}, a start would be refused: {names}")


def python_of(runtime: Runtime, environment: Mapping[str, str]) -> Diagnosis:
    """Return what is found of an interpreter, and what another one would give."""
    found = f"{runtime}, {sys.executable}"
    if runtime.compiles:
        return Diagnosis("python", OK, found)
    if runtime.jit == JIT_OFF:
        if not environment.get(JIT):
            if may_make_code():
                found += "; a start switches it on, unless pythonJit is false"
                return Diagnosis("python", OK, found)
            cure = "let the system allow it to make code (MemoryDenyWriteExecute=no)"
        else:
            cure = f"unset {JIT}"
        cure += ": with its JIT a send takes some 15 % less processor time"
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
        cure = f"raise it to {FILES_WISHED} or more: each client takes one, the store some hundreds"
        return Diagnosis("files", ADVICE, found, cure)
    return Diagnosis("files", OK, found)


def _kernel(setting: KernelSetting, root: Path) -> Diagnosis:
    name = setting.path.removeprefix("proc/sys/").replace("/", ".")
    try:
        text = (root / setting.path).read_text(encoding="ascii").strip()
        serves = setting.serves(text)
    except (OSError, ValueError, IndexError):
        return Diagnosis(name, OK, "cannot be seen here")
    return Diagnosis(name, OK, text) if serves else Diagnosis(name, ADVICE, text, setting.cure)


def _set_clock() -> Diagnosis:
    now_ms = SystemClock().now_ms()
    found = f"{now_ms} ms since 1970, steps of {clock_getres(CLOCK_REALTIME) * 1e9:.0f} ns"
    if now_ms < CLOCK_YEAR_MS:
        cure = "set it, and keep it by NTP: delays and the age of files follow it"
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
    is_free = config.listen_port == 0
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
) -> Diagnosis:
    try:
        open_port = open_there or partial(open_listener, bind_address)
        open_port(port, name).close()
    except PortTaken as error:
        return Diagnosis("port", REFUSED, f"{name} {port}", str(error))
    return Diagnosis("port", OK, f"{name} {port} is free")


def _advertised(config: BrokerConfig) -> str:
    require_listened(config)
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
    """A line of what `look` finds, or of the StoreError with which a start would end."""
    try:
        return Diagnosis(name, OK, look())
    except StoreError as error:
        return Diagnosis(name, REFUSED, "a start would be refused", str(error))


def _writable(root: str) -> str:
    """Of a store that is not there yet, the folder that it will be made in."""
    path = root
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        raise NotPermitted(
            f"{path} is no folder that this user may write: let it, or choose another"
            " storePathRootDir."
        )
    for folder, _, names in os.walk(root):
        for name in names:
            each = f"{folder}/{name}"
            if not os.access(each, os.R_OK | os.W_OK):
                raise NotPermitted(f"{each} may not be read and written by this user: let it.")
    return f"{path} can be written"


def _unlocked(store: StoreConfig) -> str:
    owner = lock_owner(store.lock_path)
    if owner:
        raise StoreLocked(
            f"the store {store.root} is in use by process {owner}: stop that broker, or choose"
            " another storePathRootDir."
        )
    return f"nobody has {store.root}"


def _format(store: StoreConfig, disk: RealDisk) -> str:
    require_known_format(store, disk)
    return f"{format_of(store, disk)}; this version opens those up to {STORE_FORMAT}"


def _finished(store: StoreConfig, disk: RealDisk) -> str:
    require_finished_copy(store, disk)
    return "no copy that is being made"


def _after_the_store(store: StoreConfig, disk: RealDisk) -> str:
    require_clock(store, disk, SystemClock())
    return "not behind the newest message"


def _room(store: StoreConfig, disk: RealDisk) -> str:
    require_room(store, disk)
    path = store.root
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return f"{shutil.disk_usage(path).free >> 20} MiB are free"


def _usage(store: StoreConfig, disk: RealDisk) -> Diagnosis:
    path = store.commit_log_dir
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    ratio = used_ratio(disk, path)
    found = f"{ratio:.0%} are used"
    if ratio > store.disk_warning_ratio:
        cure = f"make room: beyond {store.disk_warning_ratio:.0%} sends are refused"
        return Diagnosis("disk use", ADVICE, found, cure)
    if ratio > store.disk_clean_forcibly_ratio:
        cure = "make room: beyond this old files go whatever their age"
        return Diagnosis("disk use", ADVICE, found, cure)
    return Diagnosis("disk use", OK, found)


def exit_code_of_all(found: Sequence[Diagnosis]) -> int:
    """That of the first refusal; 0 where a start would not be refused."""
    with suppress(StopIteration):
        return next(each.exit_code for each in found if each.exit_code)
    return 0
