"""Leases of a read or a stream of the data source, from its plan on (spark/leasing/)."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark.leasing.keeper import start_keeper
from spark.leasing.store_lease import Queues, StoreLease
from spark.source.offsets import Bounds
from spark.source.options import Options, QueueName
from spark.source.origin import Origin
from storage.retention.leases import holder_text

if TYPE_CHECKING:
    from spark.leasing.broker_leases import Renewing


def _job(options: Options, kind: str, process_id: int | None = None) -> str:
    topics = options.topics or ([options.topic_pattern.pattern] if options.topic_pattern else [])
    return holder_text(f"{kind} of {', '.join(sorted(topics)) or 'all topics'}", process_id)


def in_spark() -> bool:
    """Return whether Spark started this process for planning.

    Elsewhere the plan is not read, or its reader holds a lease of its own.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and str(main.name).startswith("pyspark.")


def by_address(
    needed: Mapping[QueueName, int], addresses: Mapping[str, str]
) -> Mapping[str, Queues]:
    """Return the needed offsets of each known broker, by address."""
    found: dict[str, dict[tuple[str, int], int]] = {}
    for name, first in needed.items():
        broker = name[2] if len(name) == 3 else ""
        if broker in addresses:
            found.setdefault(addresses[broker], {})[name[0], name[1]] = first
    return found


def of_store(needed: Mapping[QueueName, int]) -> Queues:
    """Return the first needed offset of each queue, without the broker's name."""
    return {(name[0], name[1]): first for name, first in needed.items()}


class PlannedRead:
    """Lease of one batch read, held during its planning."""

    def __init__(self, options: Options, *, is_wanted: bool) -> None:
        self._options = options
        self._is_wanted = is_wanted and options.lease_timeout_ms > 0
        self._job = _job(options, "a read", os.getppid())  # Spark's Java process
        self._lease: StoreLease | None = None
        if self._is_wanted and not options.name_servers:
            # All there is, until the plan says what is needed.
            self._lease = StoreLease(options.store, options.commit_log, self._job)

    def hand_over(self, origin: Origin, wanted: Mapping[QueueName, Bounds]) -> None:
        """Start processes that hold the leases which the plan needs after this process ends.

        Raises nothing.
        """
        needed = {name: part.first for name, part in wanted.items() if part.first < part.end}
        told = {"timeout_ms": self._options.lease_timeout_ms}
        if not needed:
            return
        if self._lease is not None and self._lease.is_held:
            try:
                offset = self._lease.lowest(of_store(needed))
            except OSError:
                offset = 0
            start_keeper(
                {
                    **told,
                    "store": self._options.store,
                    "commit_log": self._options.commit_log,
                    "job": self._job,
                    "offset": offset,
                }
            )
        if self._options.name_servers and self._is_wanted:
            # Only here: readers of files need no package for JSON.
            from spark.leasing.broker_leases import BrokerLease

            leases = [
                BrokerLease(address, self._job, queues, credentials=self._options.credentials)
                for address, queues in by_address(needed, origin.addresses).items()
            ]
            taken = [lease for lease in leases if lease.acquire()]
            if taken:
                start_keeper({**told, "brokers": [lease.as_json() for lease in taken]})
            for lease in leases:
                lease.close()

    def release(self) -> None:
        """Release the leases of this process; those handed over continue."""
        if self._lease is not None:
            self._lease.release()


@contextmanager
def planned_read(options: Options) -> Iterator[PlannedRead]:
    """Hold a lease on the store while a read is planned."""
    plan = PlannedRead(options, is_wanted=in_spark())
    try:
        yield plan
    finally:
        plan.release()


class StreamLease:
    """The lease of a stream: from its first batch on, moved by each commit."""

    def __init__(self, options: Options, *, is_wanted: bool | None = None) -> None:
        """Initialize the lease; by default it is wanted in Spark's own processes only."""
        self._options = options
        self._is_wanted = in_spark() if is_wanted is None else is_wanted
        self._store: StoreLease | None = None
        self._brokers: Renewing | None = None
        self._addresses: dict[str, str] = {}
        self._is_held = False

    def begin(self, origin: Origin, begun: Mapping[QueueName, int]) -> None:
        """Take the lease, unless it is held already."""
        self._addresses.update(origin.addresses)
        if self._is_held or not self._is_wanted or not self._options.lease_timeout_ms:
            return
        self._is_held = True
        job = _job(self._options, "a stream")
        if self._options.name_servers:
            from spark.leasing.broker_leases import Renewing

            self._brokers = Renewing(job, self._options.credentials)
        else:
            self._store = StoreLease(self._options.store, self._options.commit_log, job)
        self.move(begun)

    def move(self, needed: Mapping[QueueName, int]) -> None:
        """Release everything before these offsets."""
        if self._store is not None:
            self._store.move(of_store(needed))
        if self._brokers is not None:
            self._brokers.move(by_address(needed, self._addresses))

    def release(self) -> None:
        if self._store is not None:
            self._store.release()
        if self._brokers is not None:
            self._brokers.release()
