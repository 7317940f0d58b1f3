"""A simulated broker with access control: accounts in a file, clients that sign as one of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from actors.config import BrokerConfig
from protocol.frame import RemotingCommand
from protocol.signature import Credentials
from storage.access.acl_files import save_acl_file
from storage.files.disk import Disk
from tests.support.brokers import BROKER, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.virtual_broker import LocalClient

ACL_PATH = "/conf/plain_acl.yml"
WHITE_HOST, SLAVE_HOST, STRANGE_HOST = "192.0.2.7", "192.0.2.8", "198.51.100.1"
ACCOUNTS = """
globalWhiteRemoteAddresses: [192.0.2.7]
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
- {accessKey: shop-account, secretKey: secret-shop, defaultTopicPerm: DENY,
   topicPerms: [Orders=PUB|SUB, Topic=PUB|SUB], groupPerms: [shop=SUB, consumers=SUB]}
- {accessKey: reader-account, secretKey: secret-reader, topicPerms: [Orders=SUB],
   groupPerms: [readers=SUB], whiteRemoteAddress: 192.0.2.9}
- {accessKey: nothing-account, secretKey: secret-nothing}
- {accessKey: broker-account, secretKey: secret-broker, broker: true}
- {accessKey: monitor-account, secretKey: secret-monitor, monitor: true}
"""
SECRETS = {
    "administrator": "secret-admin",
    "shop-account": "secret-shop",
    "reader-account": "secret-reader",
    "nothing-account": "secret-nothing",
    "broker-account": "secret-broker",
    "monitor-account": "secret-monitor",
    "sender-account": "secret-sender",
    "second-monitor": "secret-second",
    "partner-account": "secret-partner",
}
GUARDED = replace(BROKER, acl_enable=True, acl_file=ACL_PATH)


def disk_with(text: str = ACCOUNTS, path: str = ACL_PATH) -> FakeDisk:
    """A disk with these accounts."""
    disk = FakeDisk()
    write_accounts(disk, text, path)
    return disk


def write_accounts(disk: Disk, text: str, path: str = ACL_PATH) -> None:
    """Edit the file, as an operator does."""
    save_acl_file(disk, path, text.encode())


def signed(
    command: RemotingCommand,
    account: str,
    secret: str | None = None,
    *,
    now_ms: int = 1_700_000_000_000,
) -> RemotingCommand:
    """Return the request signed by this account; another secret than its own makes it invalid."""
    found = SECRETS.get(account, "nobody-knows") if secret is None else secret
    Credentials(account, found).sign(command, now_ms)
    return command


@dataclass
class GuardedBroker(SimulatedBroker):
    """Broker with access control; its own requests are the administrator's."""

    disk: Disk = field(default_factory=disk_with)
    config: BrokerConfig = GUARDED
    account: str = "administrator"
    _clients: dict[str, LocalClient] = field(default_factory=dict)

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        return self.ask_as(self.account, command)

    def ask_as(
        self, account: str | None, command: RemotingCommand, *, host: str = "127.0.0.1"
    ) -> RemotingCommand:
        """Return the answer to a request from this address; without a key if it is None."""
        if account is not None:
            signed(command, account, now_ms=self.clock.now_ms())
        return self.client_at(host).request(command, timeout_s=120)

    def send_as(self, account: str, **options: Any) -> RemotingCommand:
        """The answer to a send of that account."""
        before, self.account = self.account, account
        try:
            return self.send(**options)
        finally:
            self.account = before

    def client_at(self, host: str) -> LocalClient:
        """A connection from there, always the same one."""
        if host not in self._clients:
            self._clients[host] = self.new_client(len(self._clients) + 100, host=host)
        return self._clients[host]


def with_accounts(seed: int, text: str, settings: Mapping[str, object] = {}) -> GuardedBroker:
    """A broker with other accounts, or other settings."""
    config = replace(GUARDED, **settings)  # type: ignore[arg-type]
    return GuardedBroker(seed, disk=disk_with(text), config=config)
