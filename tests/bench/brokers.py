"""The brokers of the benchmark, each with the settings and the store that its loads need.

    async     ASYNC_FLUSH, an empty store
    sync      SYNC_FLUSH
    acl       ASYNC_FLUSH and access control; all clients are one account
    tls       ASYNC_FLUSH; all clients come with TLS, as it is in test mode
    replica   SYNC_MASTER under ASYNC_FLUSH, with a slave of the same kind
    topics    10,000 more topics, many-0 and so on, of one queue each
    large     a store of so many GiB, none of it in memory, and a limit to the memory for files

Where this machine's cgroups cannot be written the large store's limit is the machine's own memory.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from shutil import rmtree

from protocol.bodies_tables import DataVersion, TopicConfig, TopicConfigTable
from storage.tables.topics import format_topics
from tests.bench.big_store import make_store, mark_followed
from tests.bench.loads import CLIENT_JVM, MANY, TLS
from tests.compat.servers import (
    Broker,
    NameServer,
    OfficialBroker,
    OfficialNameServer,
    OurBroker,
    OurNameServer,
    official_home,
    shipped_config,
)
from tests.compat.toolchain import Java

OFFICIAL, OFFICIAL_5 = "official", "official-5.5"
OFFICIALS = (OFFICIAL, OFFICIAL_5)
"""Kinds of broker: 4.9.7, and 5.5 with the settings that 4.9.7 has and its own defaults."""

# The release's own options, on a heap that fits beside the client.
OFFICIAL_JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:+AlwaysPreTouch",
    "-XX:-UseLargePages",
)
SETTINGS = {
    "async": {"flushDiskType": "ASYNC_FLUSH"},
    "sync": {"flushDiskType": "SYNC_FLUSH"},
    "acl": {"aclEnable": "true"},
    TLS: {"tls.test.mode.enable": "true"},
    "replica": {"brokerRole": "SYNC_MASTER"},
    "topics": {"flushDiskType": "ASYNC_FLUSH"},
    "large": {"flushDiskType": "ASYNC_FLUSH"},
}
ACCOUNT = ("bench-account", "secret-of-the-bench")
ACCOUNTS = f"""
accounts:
- {{accessKey: {ACCOUNT[0]}, secretKey: {ACCOUNT[1]}, admin: true}}
"""
TOPICS = 10_000
FILE_MEMORY_BYTES = 2 << 30
"""File pages that the broker with the large store may cache, besides its heap."""
CGROUPS = Path("/sys/fs/cgroup")
DEADLINE_S = 900.0

_numbers = count(1)


def changed(names: Iterable[str], official_heap: str) -> list[str]:
    """Return the settings of these brokers that differ from conf/broker.conf, limits first.

    Each is one line, to be read beside the figures.
    """
    shipped = shipped_config("broker.conf")
    found = {
        name: {key: value for key, value in SETTINGS[name].items() if shipped.get(key) != value}
        for name in names
    }
    limits = sorted(
        f"{name}: {key}={value}"
        for name, settings in found.items()
        for key, value in settings.items()
        if key.startswith("max")
    )
    said = [
        f"limits changed: {', '.join(limits) or 'none (maxConnections and all others as shipped)'}"
    ]
    said += [
        f"settings of {name}: {', '.join(f'{key}={value}' for key, value in settings.items())}"
        for name, settings in found.items()
        if settings
    ]
    files, _ = getrlimit(RLIMIT_NOFILE)
    heaps = f"heaps: official broker {official_heap}, client {CLIENT_JVM[-1].removeprefix('-Xmx')}"
    said.append(f"{heaps}; open files of a process: {files:,}")
    if "large" in found:
        said.append(f"memory for files of large: {FILE_MEMORY_BYTES >> 30} GiB")
    return said


@dataclass(frozen=True)
class Opponents:
    """Maker of the brokers of a run. A kind that is not official is the name of a Python."""

    java: Java
    scratch: Path
    official_heap: str = "2g"
    store_gib: int = 20
    ours: Callable[[Path, NameServer, dict[str, str]], OurBroker] = OurBroker
    pythons: Mapping[str, str] = field(default_factory=dict)
    """Path of the interpreter by kind; this process's own for any other kind."""
    java_5: Java | None = None
    """For the official 5.5 broker and its name server."""

    @contextmanager
    def started(self, kind: str, name: str) -> Iterator[tuple[Broker, Broker | None]]:
        """A broker for that name of the table above, beside a name server; and its slave."""
        scratch = self.scratch / f"{name}-{next(_numbers)}"
        scratch.mkdir(parents=True)
        with ExitStack() as stack:
            stack.callback(rmtree, scratch, ignore_errors=True)  # five rounds fill a disk
            names = self.name_server(kind, scratch / "names")
            if name == TLS and isinstance(names, OurNameServer):
                names.settings |= SETTINGS[TLS]
            stack.enter_context(names)
            if name == "topics":
                _write_topics(scratch / "store")
            if name == "large":
                make_store(scratch / "store", self.store_gib)
                mark_followed(scratch / "store", self.store_gib)
                forget(scratch / "store")
            master = self.broker(kind, scratch, names, SETTINGS[name])
            if name == "acl":
                master.asked_as = ACCOUNT
                for folder in (scratch, official_home(scratch) / "conf"):
                    (folder / "plain_acl.yml").write_text(ACCOUNTS)
                    (folder / "plain_acl.yml").chmod(0o600)
            stack.enter_context(master)
            stack.callback(master.raise_if_ended)  # its words then, below those of the client
            if name == "large":
                stack.enter_context(confined(master.pid, FILE_MEMORY_BYTES))
            if name != "replica":
                yield master, None
                return
            settings = {"brokerRole": "SLAVE", "brokerId": "1"}
            slave = stack.enter_context(self.broker(kind, scratch / "slave", names, settings))
            yield master, slave

    def name_server(self, kind: str, scratch: Path) -> NameServer:
        """Return a name server of that kind, not started."""
        if kind in OFFICIALS:
            return OfficialNameServer(self._java_of(kind), scratch)
        names = OurNameServer(scratch)
        names.python = self.pythons.get(kind, names.python)
        return names

    def broker(
        self, kind: str, scratch: Path, names: NameServer, settings: dict[str, str]
    ) -> Broker:
        """Return a broker of that kind, not started."""
        broker: Broker
        if kind in OFFICIALS:
            broker = official = OfficialBroker(self._java_of(kind), scratch, names, settings)
            heap = f"-Xms{self.official_heap}", f"-Xmx{self.official_heap}"
            official.jvm_options = (*heap, *OFFICIAL_JVM)
        else:
            broker = ours = self.ours(scratch, names, settings)
            ours.python = self.pythons.get(kind, ours.python)
        broker.start_deadline_s = DEADLINE_S
        return broker

    def _java_of(self, kind: str) -> Java:
        java = self.java_5 if kind == OFFICIAL_5 else self.java
        assert java is not None, f"{kind} is not built"
        return java


def _write_topics(store: Path) -> None:
    configs = {
        name: TopicConfig(name, 1, 1) for name in (f"{MANY}-{number}" for number in range(TOPICS))
    }
    folder = store / "config"
    folder.mkdir(parents=True)
    table = TopicConfigTable(configs, DataVersion(1_700_000_000_000, 1))
    (folder / "topics.json").write_text(format_topics(table))


def forget(folder: Path) -> None:
    """Takes the files out of the page cache, once they are on the disk."""
    for path in (each for each in folder.rglob("*") if each.is_file()):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


@contextmanager
def confined(pid: int, limit_bytes: int) -> Iterator[None]:
    """Limit the memory that the process requests from now on, where cgroups can be created."""
    unified = (CGROUPS / "cgroup.controllers").exists()
    group = (CGROUPS if unified else CGROUPS / "memory") / f"troupemq-bench-{pid}"
    limit = group / ("memory.max" if unified else "memory.limit_in_bytes")
    try:
        group.mkdir()
        limit.write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        print(f"no limit to the memory for files: {error.strerror}")
    try:
        yield
    finally:
        if (group / "cgroup.procs").exists():
            (group.parent / "cgroup.procs").write_text(str(pid))
            group.rmdir()
