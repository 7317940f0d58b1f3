"""The holders of broker names: who registered a name and id, so that nobody else takes them over.

With access control only: without it anybody may, and is told of in the log. While a broker is alive
another one may take its name and id only with the same account, or, where neither has one, from the
same machine; the same holds for the goodbye of a broker, which an administrator may say, too.
4.9.7 lets anybody (H15 of docs/security.md).
"""

from re import ASCII
from re import compile as compile_pattern

from actors.access.grant import Grant
from actors.engine.rarely import Rarely
from actors.naming.ceilings import refuse
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.headers.namesrv import RegisterBrokerHeader

_ADDRESS = compile_pattern(r"(?:[\w.-]+|\[?[0-9A-Fa-f:.]+\]?):[0-9]{1,5}", ASCII)
_HOLDERS_MAX = 100_000

Holder = tuple[str, str]
"""Account and host; of an account the host does not count."""


class Holders:
    """Owned by one actor."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Holder] = {}

    def claim(self, grant: Grant | None, name: str, broker_id: int, rival: str | None) -> None:
        """A broker registers; `rival`: where one like it is alive. Raises RemoteError."""
        if grant is None:
            return
        key, holder = (name, broker_id), _holder(grant)
        if rival is not None and self._found.get(key, holder) != holder:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"the broker {name} with the id {broker_id} is alive at {rival}, and another"
                " account's: give this one another brokerName or brokerId",
            )
        if len(self._found) >= _HOLDERS_MAX:
            self._found.clear()
        self._found[key] = holder

    def leave(self, grant: Grant | None, name: str, broker_id: int) -> None:
        """A broker says goodbye. Raises RemoteError for another's."""
        if grant is None or grant.is_admin:
            return
        holder = _holder(grant)
        if self._found.get((name, broker_id), holder) != holder:
            remark = f"the broker {name} with the id {broker_id} is another account's"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)


def check_address(address: str) -> None:
    """Raises RemoteError for what no client could connect to."""
    if not _ADDRESS.fullmatch(address):
        refuse("a broker's address is none", "brokerAddr is no host:port")


def warn_of_rival(rarely: Rarely, header: RegisterBrokerHeader, rival: str) -> None:
    """A broker registers with the name and id of one that is alive there."""
    rarely.warn(
        "two brokers have one name and id: clients see them in turn; give one another"
        " brokerName or brokerId",
        names=[header.broker_name],
        broker=header.broker_name,
        id=header.broker_id,
        addresses=[rival, header.broker_address],
    )


def _holder(grant: Grant) -> Holder:
    name = grant.account.access_key
    return (name, "") if name else ("", grant.address)
