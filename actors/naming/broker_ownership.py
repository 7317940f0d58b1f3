"""Ownership of live brokers: which account registered them, so that no other can.

Without access control there is no owner: any client may register a broker, and a log line tells.
With it, a live broker's name, id and address belong to its account. If the account has no name,
they belong to the host that registered. No other client may register there, unregister it, or query
its data version, which keeps it alive. An administrator may unregister it. The route table drops
the owner together with the broker.

4.9.7 has no owners (H15 of docs/security.md).
"""

from re import ASCII
from re import compile as compile_pattern

from actors.access.grant import Grant
from actors.engine.server_log import RateLimitedLog
from actors.naming.route_table import Holder, RouteTable
from actors.naming.table_limits import check_names, refuse
from actors.network.messages import Request
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.headers.namesrv import BrokerIdentityHeader, RegisterBrokerHeader

_ADDRESS = compile_pattern(r"(?:[\w.-]+|\[?[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]?):[0-9]{1,5}", ASCII)

Broker = RegisterBrokerHeader | BrokerIdentityHeader


def warn_of_rival(rarely: RateLimitedLog, header: RegisterBrokerHeader, rival: str) -> None:
    """Warn of a broker that registers with the name and id of a live one elsewhere."""
    rarely.warn(
        "broker identity duplicated",
        hint="clients see the brokers in turn: give one another brokerName or brokerId",
        names=[header.broker_name],
        broker=header.broker_name,
        id=header.broker_id,
        addresses=[rival, header.broker_address],
    )


def holder_of(grant: Grant | None) -> Holder | None:
    """Return the owner that a registration with this grant has; None without access control."""
    if grant is None:
        return None
    name = grant.account.access_key
    return (name, "") if name else ("", grant.address)


def check_place(routes: RouteTable, request: Request, broker: RegisterBrokerHeader) -> None:
    """Raise RemoteError if a broker's address, name or owner is invalid, or a limit is reached."""
    if not _ADDRESS.fullmatch(broker.broker_address):
        refuse("broker address rejected", "brokerAddr must be host:port")
    check_names(broker)
    routes.check_room(broker, request.peer.peer_id)
    check_holder(routes, request.grant, broker)


def check_goodbye(routes: RouteTable, grant: Grant | None, broker: BrokerIdentityHeader) -> None:
    """Raise RemoteError if the broker belongs to another account."""
    if grant is None or not grant.is_admin:
        check_holder(routes, grant, broker)


def check_holder(routes: RouteTable, grant: Grant | None, broker: Broker) -> None:
    """Raise RemoteError if the live broker of this name and id, or address, has another owner."""
    if grant is None:
        return
    asker, name, broker_id = holder_of(grant), broker.broker_name, broker.broker_id
    at = routes.live_address(name, broker_id)
    if at is not None and routes.holder(at) != asker:
        raise RemoteError(
            ResponseCode.SYSTEM_ERROR,
            f"broker {name} with id {broker_id} is alive at {at} and belongs to another account:"
            " use another brokerName or brokerId",
        )
    if routes.holder(broker.broker_address) not in (None, asker):
        raise RemoteError(
            ResponseCode.SYSTEM_ERROR,
            f"the broker at {broker.broker_address} is alive and belongs to another account:"
            " use another brokerIP1 or listenPort",
        )
