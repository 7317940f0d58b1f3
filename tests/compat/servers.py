"""Name servers and brokers as processes: the official 4.9.7 ones and ours, behind the same methods.

Every case and every bench load is written against `NameServer` and `Broker`; it runs against both.
"""

import json
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from random import SystemRandom
from ssl import SSLContext
from typing import Any, Self

from tests.compat.child import Child
from tests.compat.patience import wait_until
from tests.compat.remoting import knows_broker
from tests.compat.toolchain import Java

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
START_DEADLINE_S = 120.0
CLUSTER = "DefaultCluster"
BROKER_NAME = "broker-a"

SERVER_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""One that starts soon: most servers of the suite live for seconds."""

# 4.9.7 reflects into packages that newer Javas have closed: to unmap its files.
OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
]
LOGBACK = """<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""
IDENTITY = {
    "brokerClusterName": CLUSTER,
    "brokerName": BROKER_NAME,
    "brokerId": "0",
    "brokerIP1": HOST,
    "brokerIP2": HOST,
}
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 3000),
    "maxHashSlotNum": "20000",
    "maxIndexNum": "80000",
}
PROPERTY_FILTER = {"enablePropertyFilter": "true"}
BIT_MAPS = {"enableConsumeQueueExt": "true", "enableCalcFilterBitMap": "true"}


class Server(ABC):
    """One server process with a scratch folder of its own."""

    kind: str

    def __init__(self, scratch: Path, settings: Mapping[str, str] | None = None) -> None:
        self.scratch = scratch
        self.settings = dict(settings or {})
        self.address = ""  # host:port once it runs
        self.start_deadline_s = START_DEADLINE_S
        self._child: Child | None = None

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    def start(self) -> Self:
        """Starts it and waits until it serves."""
        self.launch()
        try:
            what = f"{self.kind} {type(self).__name__} serves"
            wait_until(self._is_ready, what, self.start_deadline_s)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> int | None:
        """Stop with SIGTERM and return the exit code; None if it had to be killed."""
        return self.child.stop() if self._child else None

    @abstractmethod
    def launch(self) -> None:
        """Starts the process and does not wait."""

    @abstractmethod
    def _serves(self) -> bool: ...

    def raise_if_ended(self) -> None:
        """AssertionError with its last words, where it does not run any more."""
        if self.child.exit_code() is not None:
            raise AssertionError(f"{self.kind} server ended:\n{self.child.last_words()}")

    def _is_ready(self) -> bool:
        self.raise_if_ended()
        return self._serves()

    def _write_config(self, config: Mapping[str, str]) -> Path:
        self.scratch.mkdir(parents=True, exist_ok=True)
        path = self.scratch / "server.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        return path

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class NameServer(Server, ABC):
    """A name server."""

    def _config(self, port: int) -> dict[str, str]:
        place = {"listenPort": str(port), "kvConfigPath": str(self.scratch / "kvConfig.json")}
        return shipped_config("namesrv.conf") | place | self.settings


class Broker(Server, ABC):
    """A broker that registers at one name server.  `store` may be shared, to see who is refused."""

    def __init__(
        self,
        scratch: Path,
        name_server: NameServer,
        settings: Mapping[str, str] | None = None,
        store: Path | None = None,
    ) -> None:
        super().__init__(scratch, settings)
        self.name_server = name_server
        self.store = store or scratch / "store"
        self.asked_as: tuple[str, str] | None = None
        """Key and secret for a name server with access control."""
        self.asked_over: SSLContext | None = None
        """For a name server that wants TLS."""

    def _config(self, port: int) -> dict[str, str]:
        place = {
            "listenPort": str(port),
            "namesrvAddr": self.name_server.address,
            "storePathRootDir": str(self.store),
        }
        return shipped_config("broker.conf") | IDENTITY | place | self.settings

    def _serves(self) -> bool:
        return bool(self.address) and knows_broker(
            self.name_server.address, self.address, self.asked_as, self.asked_over
        )


def shipped_config(name: str) -> dict[str, str]:
    """The settings of conf/`name`, without its places: both kinds start from the files we ship."""
    shipped = ROOT / "conf" / name
    lines = shipped.read_text().splitlines() if shipped.exists() else []
    pairs = (line.split("=", 1) for line in lines if "=" in line and line.lstrip()[0] not in "#!")
    settings = {key.strip(): value.strip() for key, value in pairs}
    return {key: value for key, value in settings.items() if not key.startswith("storePath")}


class OfficialProcess(Server, ABC):
    """Base of the two official servers: a home folder, free ports and a JVM."""

    kind = "official"
    jvm_options: tuple[str, ...] = SERVER_JVM
    java: Java

    def _run(self, main_class: str, config: Path) -> None:
        home = official_home(self.scratch)
        self._child = Child(
            [
                self.java.executable,
                *self.jvm_options,
                *OPENS,
                f"-Drocketmq.home.dir={home}",
                f"-Drmq.logback.configurationFile={home / 'conf' / 'logback_broker.xml'}",  # 5.x
                f"-Duser.home={self.scratch}",
                "-cp",
                self.java.class_path,
                main_class,
                "-c",
                str(config),
            ],
            self.scratch / "server.log",
        )


class OfficialNameServer(OfficialProcess, NameServer):
    """The name server of the release."""

    def __init__(self, java: Java, scratch: Path) -> None:
        super().__init__(scratch)
        self.java = java

    def launch(self) -> None:
        port = free_port()
        self.address = f"{HOST}:{port}"
        self._run(
            "org.apache.rocketmq.namesrv.NamesrvStartup", self._write_config(self._config(port))
        )

    def _serves(self) -> bool:
        return accepts(self.address)


class OfficialBroker(OfficialProcess, Broker):
    """The broker of the release."""

    def __init__(
        self,
        java: Java,
        scratch: Path,
        name_server: NameServer,
        settings: Mapping[str, str] | None = None,
        store: Path | None = None,
    ) -> None:
        super().__init__(scratch, name_server, settings, store)
        self.java = java

    def launch(self) -> None:
        port = free_port()
        self.address = f"{HOST}:{port}"
        self._run(
            "org.apache.rocketmq.broker.BrokerStartup", self._write_config(self._config(port))
        )


class OurProcess(Server, ABC):
    """Base of our two servers: the command, port 0, and a ready file."""

    kind = "ours"
    wrapped_in: tuple[str, ...] = ()
    """A command that becomes ours, as `nsenter … --` does."""
    program: tuple[str, ...] = ("-m", "troupemq")
    checkout: Path = ROOT
    """Checkout whose code it runs."""
    python: str = sys.executable
    """The interpreter of the server."""

    def _run(self, command: str, config: Path, *options: str) -> None:
        self._command = command
        self._ready = self.scratch / "ready"
        self._ready.unlink(missing_ok=True)
        front_door = [*self.wrapped_in, self.python, *self.program, command]
        arguments = ["-c", str(config), "--ready-file", str(self._ready), *options]
        places = filter(None, [str(self.checkout), os.environ.get("PYTHONPATH")])
        environment = {"PYTHONPATH": os.pathsep.join(places)}
        if self.checkout != ROOT:
            environment["PYTHONSAFEPATH"] = "1"  # or what lies here would be found first
        self._child = Child(front_door + arguments, self.scratch / "server.log", environment)

    def _read_address(self) -> bool:
        if not self.address and self._ready.exists() and self._ready.read_text().strip():
            self.address = f"{HOST}:{json.loads(self._ready.read_text())[self._command]}"
        return bool(self.address)


class OurNameServer(OurProcess, NameServer):
    """Process of our name server."""

    def launch(self) -> None:
        self._run("namesrv", self._write_config(self._config(0)))

    def _serves(self) -> bool:
        return self._read_address() and accepts(self.address)


class OurBroker(OurProcess, Broker):
    """Process of our broker."""

    more_options: tuple[str, ...] = ()

    def launch(self) -> None:
        config = self._write_config(self._config(0))
        self._run("broker", config, "-n", self.name_server.address, *self.more_options)

    def _serves(self) -> bool:
        return self._read_address() and super()._serves()


class OurMasters(OurBroker):
    """`troupemq broker --masters N`; what is asked of one broker is asked of the first.

    With one it is that broker, without a supervisor.
    """

    def __init__(
        self,
        scratch: Path,
        name_server: NameServer,
        count: int,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(scratch, name_server, settings)
        self.settings.setdefault("listenPort", str(free_port(count)))
        self.more_options = ("--masters", str(count))

    def pids(self) -> dict[str, int]:
        """Return the process ids of the serving brokers, by name, from the ready file."""
        return {each["name"]: each["pid"] for each in self._masters()}

    def addresses(self) -> dict[str, str]:
        """Return the address of each broker, by name."""
        return {each["name"]: f"{HOST}:{each['broker']}" for each in self._masters()}

    def _masters(self) -> list[Any]:
        found = json.loads(self._ready.read_text())
        masters: list[Any] = found.get("masters", [{"name": BROKER_NAME, **found}])
        return masters

    def _serves(self) -> bool:
        return super()._serves() and all(
            knows_broker(self.name_server.address, address) for address in self.addresses().values()
        )


def official_home(scratch: Path) -> Path:
    """A home folder with the log settings without which the official programs do not start."""
    conf = scratch / "home" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for program in ("broker", "namesrv", "tools"):
        (conf / f"logback_{program}.xml").write_text(LOGBACK)
    return conf.parent


def free_port(masters: int = 1) -> int:
    """A port whose neighbours -2 (fast port) and +1 (replication) are free too.

    With more masters so are those of each, ten further on. Below those that the system gives away
    by itself: one of these could be a client's by the time a server asks for it.
    """
    steps = [10 * number + step for number in range(masters) for step in (-2, 0, 1)]
    while True:
        port = SystemRandom().randrange(10_000, 32_000)
        if all(_is_free(port + step) for step in steps):
            return port


def accepts(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
