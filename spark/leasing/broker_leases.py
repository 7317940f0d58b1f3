"""Leases of brokers, requested and renewed over the network."""

from collections.abc import Mapping
from threading import Event, Lock, Thread
from typing import Any
from uuid import uuid4

from protocol.bodies_own import LeasedQueue, LeasedQueues
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.own import LEASE_TTL_MS, RELEASE, RENEW, TAKE, LeaseHeader
from protocol.signature import Credentials
from remoting.sync_connection import Refused, RemotingFailed, SyncConnection
from spark.leasing.store_lease import Queues, say

RENEW_MS = 20_000
"""A third of what a broker grants."""

_ASK_MS = 5_000
"""A broker that does not answer must not hold up a plan."""
assert RENEW_MS * 3 == LEASE_TTL_MS


class BrokerLease:
    """Lease of one broker, over the network."""

    def __init__(
        self,
        address: str,
        job: str,
        queues: Queues,
        name: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Create a lease. Raises ValueError for an invalid address."""
        self.address, self._job, self._queues = address, job, queues
        self.name = name or uuid4().hex
        self._line = SyncConnection(address, timeout_ms=_ASK_MS, credentials=credentials)
        self._credentials = credentials
        self._is_offered = True
        self._has_told = False

    def acquire(self, queues: Queues | None = None) -> bool:
        """Take or move the lease; return whether there is one.

        Raises nothing: the job continues without one.
        """
        if queues is not None:
            self._queues = queues
        body = LeasedQueues([LeasedQueue(*name, at) for name, at in self._queues.items()])
        return self._ask(LeaseHeader(TAKE, self.name, self._job), body.encode())

    def renew(self) -> bool:
        """Renew the lease; acquire it again if the broker has dropped it."""
        return self._ask(LeaseHeader(RENEW, self.name))

    def release(self) -> None:
        self._ask(LeaseHeader(RELEASE, self.name))
        self.close()

    def close(self) -> None:
        """Close the connection; the lease continues for its time."""
        self._line.close()

    def _ask(self, header: LeaseHeader, body: bytes | None = None) -> bool:
        if not self._is_offered:
            return False
        command = RemotingCommand(RequestCode.LEASE_LOG, header.encode(), body)
        try:
            self._line.ask(command, repeats=True)
            self._has_told = False
            return True
        except Refused as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND and header.action == RENEW:
                return self.acquire()
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._is_offered = False  # an official broker
            self._tell(str(error))
        except RemotingFailed as error:
            self._tell(str(error))
        return False

    def _tell(self, why: str) -> None:
        if not self._has_told:
            say(f"no lease, so this broker may delete files: {why}")
        self._has_told = True

    def as_json(self) -> dict[str, Any]:
        """Return the lease for a keeper, account included, so it must stay secret."""
        queues = [[topic, queue_id, at] for (topic, queue_id), at in self._queues.items()]
        found: dict[str, Any] = {
            "address": self.address,
            "name": self.name,
            "job": self._job,
            "queues": queues,
        }
        shown = self._credentials
        if shown is not None:
            found["account"] = [shown.access_key, shown.secret_key, shown.security_token]
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "BrokerLease":
        queues = {(topic, queue_id): at for topic, queue_id, at in found["queues"]}
        account = Credentials(*found["account"]) if "account" in found else None
        return cls(found["address"], found["job"], queues, found["name"], account)


class Renewing:
    """Leases of several brokers, renewed by a thread until they are released."""

    def __init__(self, job: str, credentials: Credentials | None = None) -> None:
        self._job = job
        self._credentials = credentials
        self._leases: dict[str, BrokerLease] = {}
        self._lock = Lock()
        self._ended = Event()
        self._thread: Thread | None = None

    def move(self, queues: Mapping[str, Queues]) -> None:
        """Set the needed offsets of each broker, by its address."""
        with self._lock:
            for address, wanted in queues.items():
                if address not in self._leases:
                    self._leases[address] = BrokerLease(
                        address, self._job, wanted, credentials=self._credentials
                    )
                self._leases[address].acquire(wanted)
        if self._thread is None and self._leases:
            self._thread = Thread(target=self._renew, name="leases", daemon=True)
            self._thread.start()

    def release(self) -> None:
        self._ended.set()
        with self._lock:
            for lease in self._leases.values():
                lease.release()
            self._leases.clear()

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_MS / 1000):
            with self._lock:
                for lease in self._leases.values():
                    lease.renew()
