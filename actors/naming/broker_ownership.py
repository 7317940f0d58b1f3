"""The holders of live brokers: who registered them, so that nobody else takes their places.

With access control only: without it anybody may, and is told of in the log. While a broker is alive
its name and id, and its address, are its holder's: the account's, or, where it has none, the
machine's that it came from. Nobody else registers there, asks whether it is known, which keeps it
alive, or says goodbye for it; an administrator may say that. The routes remember the holder as long
as the broker, and no longer. 4.9.7 lets anybody (H15 of docs/security.md).
"""

from re import ASCII
from re import compile as compile_pattern

from actors.access.grant import Grant
from actors.engine.rate_limited_log import RateLimitedLog
from actors.naming.ceilings import check_names, refuse
from actors.naming.route_table import Holder, RouteTable
from actors.network.request import Request
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.headers.namesrv import BrokerIdentityHeader, RegisterBrokerHeader

_ADDRESS = compile_pattern(r"(?:[\w.-]+|\[?[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]?):[0-9]{1,5}", ASCII)

Broker = RegisterBrokerHeader | BrokerIdentityHeader


def warn_of_rival(rarely: RateLimitedLog, header: RegisterBrokerHeader, rival: str) -> None:
    """A broker registers with the name and id of one that is alive there."""
    rarely.warn(
        "two brokers have one name and id: clients see them in turn; give one another"
        " brokerName or brokerId",
        names=[header.broker_name],
        broker=header.broker_name,
        id=header.broker_id,
        addresses=[rival, header.broker_address],
    )


def holder_of(grant: Grant | None) -> Holder | None:
    """Whose a broker is that comes with this; None without access control."""
    if grant is None:
        return None
    name = grant.account.access_key
    return (name, "") if name else ("", grant.address)


def check_place(routes: RouteTable, request: Request, broker: RegisterBrokerHeader) -> None:
    """Raises RemoteError for a broker that cannot be where it says, or is one too many."""
    if not _ADDRESS.fullmatch(broker.broker_address):
        refuse("a broker's address is none", "brokerAddr is no host:port")
    check_names(broker)
    routes.check_room(broker, request.peer.peer_id)
    check_holder(routes, request.grant, broker)


def check_goodbye(routes: RouteTable, grant: Grant | None, broker: BrokerIdentityHeader) -> None:
    """Raises RemoteError for another's broker."""
    if grant is None or not grant.is_admin:
        check_holder(routes, grant, broker)


def check_holder(routes: RouteTable, grant: Grant | None, broker: Broker) -> None:
    """Raises RemoteError for what another's broker is, or where it is, while that is alive."""
    if grant is None:
        return
    asker, name, broker_id = holder_of(grant), broker.broker_name, broker.broker_id
    at = routes.live_address(name, broker_id)
    if at is not None and routes.holder(at) != asker:
        raise RemoteError(
            ResponseCode.SYSTEM_ERROR,
            f"the broker {name} with the id {broker_id} is alive at {at}, and another"
            " account's: give this one another brokerName or brokerId",
        )
    if routes.holder(broker.broker_address) not in (None, asker):
        raise RemoteError(
            ResponseCode.SYSTEM_ERROR,
            f"the broker at {broker.broker_address} is alive, and another account's: give this"
            " one another brokerIP1 or listenPort",
        )
