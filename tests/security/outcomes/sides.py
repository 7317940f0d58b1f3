"""Sides: the servers of one kind, official or ours, as attempts find them."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import CERT_NONE, PROTOCOL_TLS_CLIENT, SSLContext, TLSVersion

from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.signature import Credentials
from tests.compat.servers import (
    PROPERTY_FILTER,
    SMALL_FILES,
    Broker,
    NameServer,
    OfficialBroker,
    OfficialNameServer,
    OurBroker,
    OurNameServer,
    official_home,
)
from tests.compat.toolchain import Java
from tests.security.outcomes.peers import Answer, Peer

TOPIC, FOREIGN = "Orders", "Secrets"
AUTO_TOPICS = 200
SECRETS = {
    "administrator": "secret-admin",
    "reader-account": "secret-reader",
    "nothing-account": "secret-nothing",
    "owner-account": "secret-owner",
}
ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
- {accessKey: reader-account, secretKey: secret-reader, topicPerms: [Orders=SUB],
   groupPerms: [readers=SUB]}
- {accessKey: owner-account, secretKey: secret-owner, topicPerms: [Orders=PUB|SUB, Secrets=PUB|SUB],
   groupPerms: [owners=SUB]}
- {accessKey: nothing-account, secretKey: secret-nothing,
   topicPerms: [DefaultCluster_REPLY_TOPIC=DENY]}
"""
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "plain": {"maxAutoTopics": str(AUTO_TOPICS), "maxConnectionsPerAddress": "1000"},
    "accounts": {"aclEnable": "true"},
    "sync": {"aclEnable": "true", "brokerRole": "SYNC_MASTER"},
    "tls": {},
    "store": {},
}
TEST_MODE = {"tls.test.mode.enable": "true"}
ENFORCING = {"tls.server.mode": "enforcing"}

JVM = ("-Xms512m", "-Xmx512m")
"""With all its compilers, as people run it: how long it takes is told too."""


@dataclass
class Side:
    """A broker and its name server."""

    kind: str
    broker: Broker
    names: NameServer
    tls: SSLContext | None = None

    @property
    def is_ours(self) -> bool:
        return self.kind == "ours"

    @property
    def ha_port(self) -> int:
        """The port behind the broker's own."""
        return int(self.broker.address.rsplit(":", 1)[1]) + 1

    def peer(self) -> Peer:
        return Peer(self.broker.address, self.tls)

    def ask(self, command: RemotingCommand, account: str = "") -> Answer:
        """On a connection of its own, signed by an account."""
        with self.peer() as peer:
            return peer.ask(self.signed(command, account))

    def signed(self, command: RemotingCommand, account: str) -> RemotingCommand:
        if account:
            Credentials(account, SECRETS[account]).sign(command, 1)
        return command

    def make_topic(self, topic: str, account: str = "") -> None:
        header = CreateTopicHeader(topic, "TBW102", 4, 4, 6, "SINGLE_TAG")
        made = RemotingCommand(Code.UPDATE_AND_CREATE_TOPIC, header.encode())
        answer = self.ask(made, account)
        assert not isinstance(answer, str) and answer.code == 0, answer

    def memory_bytes(self, of_names: bool = False) -> int:
        """Return the anonymous memory, without maps of files."""
        server = self.names if of_names else self.broker
        text = Path(f"/proc/{server.pid}/status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("RssAnon:")]
        return int(line.split()[1]) << 10

    def more_mib(self, before: int, of_names: bool = False) -> str:
        return f"memory + {max(self.memory_bytes(of_names) - before, 0) >> 20} MiB"

    def log(self) -> str:
        """Everything that the broker has written into its logs."""
        return self.broker.child.log.read_text(errors="replace")


def believing() -> SSLContext:
    """Return a client context that accepts any certificate."""
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, CERT_NONE
    context.minimum_version = TLSVersion.TLSv1_2
    return context


@contextmanager
def started(kind: str, mode: str, java: Java, scratch: Path) -> Iterator[Side]:
    """The servers of a mode, one of SETTINGS."""
    folder = scratch / f"{kind}-{mode}"
    folder.mkdir(parents=True)
    settings = {**SMALL_FILES, **PROPERTY_FILTER, **SETTINGS[mode]}
    with ExitStack() as stack:
        names: NameServer
        broker: Broker
        if kind == "ours":
            names = OurNameServer(folder / "names")
            broker = OurBroker(folder, names, settings)
            if mode == "tls":
                names.settings |= TEST_MODE
                broker.settings |= TEST_MODE | ENFORCING
        else:
            names = OfficialNameServer(java, folder / "names")
            official = OfficialBroker(java, folder, names, settings)
            official.jvm_options = names.jvm_options = JVM
            if mode == "tls":
                official.jvm_options += ("-Dtls.server.mode=enforcing",)
            broker = official
        if "aclEnable" in SETTINGS[mode]:
            for place in (folder, official_home(folder) / "conf"):
                (place / "plain_acl.yml").write_text(ACCOUNTS)
                (place / "plain_acl.yml").chmod(0o600)
        stack.enter_context(names)
        stack.enter_context(broker)
        side = Side(kind, broker, names, believing() if mode == "tls" else None)
        if mode in ("plain", "store"):
            side.make_topic(TOPIC)
        if "aclEnable" in SETTINGS[mode]:
            for topic in (TOPIC, FOREIGN):
                side.make_topic(topic, "administrator")
        yield side
