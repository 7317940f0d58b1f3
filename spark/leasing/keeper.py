"""The keeper of leases: a process that holds them for a read until its job ends.

A batch read is planned in a process that ends with the planning, and Spark does not report the end
of its job. So the plan starts a keeper. It holds the leases until Spark's Java process, which
started the planner, ends, or until a timeout. A stream's reader lives as long as its query and
holds them itself.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, TextIO

from spark.leasing.broker_leases import RENEW_MS, BrokerLease
from spark.leasing.store_lease import StoreLease, say
from storage.child_python import child_command, child_environment, process_descriptor
from storage.errors import reason_of

MODULE = __name__
"""Module name, the same in a clone and in the installed package."""

KEEPER_START_MS = 10_000
"""A Python process begins within a second; on a busy machine it may take some."""

_POLL_MS = 1_000


def start_keeper(wanted: Mapping[str, Any], parent: int | None = None) -> bool:
    """Start a process that holds leases; return whether it does.

    `wanted` has store, commit_log, job and offset of a store's lease, or brokers as BrokerLease
    returns them, and timeout_ms. It ends with the process `parent`, by default the one that started
    this.
    """
    told = {"parent": parent or os.getppid(), **wanted}
    try:
        process = subprocess.Popen(
            child_command(MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(os.environ),
            start_new_session=True,  # Ctrl-C in a notebook ends a job, not what others still read
            text=True,
        )
    except OSError as error:
        say(f"no lease: its keeper did not start: {reason_of(error)}")
        return False
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.close()
        ready, _, _ = select.select([process.stdout], [], [], KEEPER_START_MS / 1000)
        is_held = bool(ready) and process.stdout.readline() == "held\n"
    except OSError:
        is_held = False
    process.stdout.close()
    process.returncode = 0  # the keeper outlives this process and is not awaited
    return is_held


def keep(told: Mapping[str, Any], output: TextIO) -> None:
    """Hold the leases until the watched process ends."""
    ends_at_s = monotonic() + told["timeout_ms"] / 1000
    watched = _Watched(told["parent"])
    brokers = _brokers(told["brokers"]) if "brokers" in told else []
    lease = None
    if "store" in told:
        lease = StoreLease(told["store"], told["commit_log"], told["job"], told["offset"])
        if not lease.is_held:
            return
    output.write("held\n")
    output.flush()
    renew_at_s = monotonic()
    while (left_s := ends_at_s - monotonic()) > 0:
        if brokers and monotonic() >= renew_at_s:
            renew_at_s = monotonic() + RENEW_MS / 1000
            for broker in brokers:
                broker.renew()
        wait_s = min(left_s, renew_at_s - monotonic()) if brokers else left_s
        if watched.has_ended(max(0.0, wait_s)):
            break
    for broker in brokers:
        broker.release()
    if lease is not None:
        lease.release()


def _brokers(told: Sequence[Mapping[str, Any]]) -> list[BrokerLease]:
    return [BrokerLease.from_json(each) for each in told]


class _Watched:
    """A process that another one started."""

    def __init__(self, process_id: int) -> None:
        self._process_id = process_id
        self._fd = -1
        self._is_gone = False
        try:
            self._fd = process_descriptor(process_id)
        except ProcessLookupError:
            self._is_gone = True
        except (AttributeError, OSError):
            pass  # no Linux of these years: it is looked for again and again

    def has_ended(self, wait_s: float) -> bool:
        """Wait for the end for at most this time."""
        if self._is_gone:
            return True
        if self._fd >= 0:
            return bool(select.select([self._fd], [], [], wait_s)[0])
        select.select([], [], [], min(wait_s, _POLL_MS / 1000))
        try:
            os.kill(self._process_id, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


if __name__ == "__main__":
    keep(json.loads(sys.stdin.readline()), sys.stdout)
