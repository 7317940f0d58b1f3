"""`rebalances`: who joined a consumer group, who left it and why, who subscribes differently."""

from typing import Any

import click

from protocol.bodies_own import GroupChanges
from protocol.codes import RequestCode
from protocol.headers.admin import ConsumerGroupHeader
from troupemq.cli.admin.command import BROKER, command
from troupemq.cli.admin.output import Output, Time
from troupemq.cli.admin.session import Session


@command("rebalances", "Consumer groups", click.Argument(["group"]), BROKER)
def rebalances(session: Session, out: Output, *, group: str, broker_addr: str | None) -> None:
    """Show what has happened to GROUP lately: each change makes its members share out anew.

    Of our brokers only: RocketMQ does not remember it. Exit code 1 if the members of the
    group subscribe differently.
    """
    if broker_addr is not None:
        addresses = [broker_addr]
    else:
        addresses = [place.address for place in session.group_brokers(group)]
    rows: list[dict[str, Any]] = []
    differing: set[str] = set()
    for address in addresses:
        found = GroupChanges(group)
        with out.attempt():
            header = ConsumerGroupHeader(group)
            found = session.read(GroupChanges, address, RequestCode.GET_GROUP_CHANGES, header)
        rows += (
            {
                "time_ms": Time(each.timestamp),
                "what": each.kind,
                "client": each.client_id,
                "address": each.client_addr,
                "why": each.why,
                "members": each.members,
                "broker": address,
            }
            for each in found.changes
        )
        differing |= {
            f"{mismatch.topic}: {wanted.expression or 'nothing'} by {', '.join(wanted.client_ids)}"
            for mismatch in found.mismatches
            for wanted in mismatch.wanted
        }
    rows.sort(key=lambda row: row["time_ms"])
    out.table(rows, f"Nothing has happened to {group} since its brokers were started.")
    if differing:
        out.fail(f"The members of {group} subscribe differently. {'; '.join(sorted(differing))}.")
