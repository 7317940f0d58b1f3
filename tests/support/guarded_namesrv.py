"""A name server with access control, without sockets, and what a broker registers at it."""

from actors.access.refusals import Refusals
from actors.config import NamesrvConfig
from actors.namesrv_server import children, service
from actors.network.start_access import opened_acl
from protocol.bodies_tables import RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerHeader
from tests.support.guarded import ACCOUNTS, ACL_PATH, disk_with, signed
from troupemq.testing.simulation import SimulatedSystem
from troupemq.testing.virtual_broker import LocalClient

MORE = "- {accessKey: other-broker, secretKey: secret-other, broker: true}\n"
WHITE, OTHER_WHITE = "192.0.2.7", "192.0.2.8"
TWO_WHITE = ACCOUNTS.replace(f"[{WHITE}]", f"[{WHITE}, {OTHER_WHITE}, 'fd00::7']")
HERE = "10.0.0.1:10911"


class GuardedNamesrv:
    """A name server with access control, without sockets."""

    def __init__(self, config: NamesrvConfig | None = None) -> None:
        config = config or NamesrvConfig(
            acl_enable=True, acl_file=ACL_PATH, kv_config_path="/names/kv.json"
        )
        self.system = SimulatedSystem(1, disk_with(TWO_WHITE + MORE), 1_700_000_000_000)
        acl = opened_acl(self.system, config, "")
        refusals = Refusals(self.system.clock.now_ms, self.system.rarely)
        self._service = service(self.system, config, acl, refusals)
        specs = [each for each in children(self.system, config, [], acl, None, refusals)]
        self.system.start(*(each for each in specs if each.name != "namesrv_acceptor"))

    def client(self, host: str = "192.0.2.50") -> LocalClient:
        return LocalClient(self.system, self._service, host=host)

    def ask(
        self, account: str | None, command: RemotingCommand, *, host: str = "192.0.2.50"
    ) -> RemotingCommand:
        return self.client(host).request(as_account(command, account))


def as_account(command: RemotingCommand, account: str | None) -> RemotingCommand:
    if account is not None:
        signed(command, account, "secret-other" if account == "other-broker" else None)
    return command


def registration(
    address: str = HERE,
    name: str = "broker-a",
    broker_id: int = 0,
    topics: int = 1,
    perm: int = 6,
) -> RemotingCommand:
    header = RegisterBrokerHeader(name, address, "DefaultCluster", address, broker_id)
    more = {f"more-{number}": TopicConfig(f"more-{number}") for number in range(1, topics)}
    body = RegisterBrokerBody(
        TopicConfigTable({"Orders": TopicConfig("Orders", perm=perm), **more})
    )
    return RemotingCommand(Code.REGISTER_BROKER, header.encode(), body.encode())
