"""Pages of consumer groups: the list, and the states of the members of one."""

from troupemq.console.asking import PageRequest, page, snapshot_page
from troupemq.console.changes import change_links
from troupemq.console.given import legal_name
from troupemq.console.pages.overview import group_row, stuck_rows
from troupemq.console.parts import Form, Input, Link, Links, Note, Notes, Page, Part, RowTable
from troupemq.console.snapshot import GroupSummary

NO_GROUPS = "No group has consumed yet: start a consumer, or create a group."
ORDERS = {"late": "time lag", "lag": "consumer lag", "name": "name"}
"""Words for the orders of the list; stuck groups come first in the order by time lag."""

STUCK_FIRST = 1 << 62
"""Sort key of stuck groups, before each time lag."""


@page("/groups")
def groups(asked: PageRequest) -> Page:
    """Show the groups with a text in their names, sorted and in pages."""
    now = asked.snapshot()
    wanted, order = asked.text("filter"), asked.text("order") or "late"
    shows_all = asked.text("which") == "all"
    folded = wanted.casefold()
    found = [
        each
        for each in now.groups.values()
        if folded in each.name.casefold() and (each.topics or each.dead_letters or shows_all)
    ]
    found.sort(key=lambda each: _order(each, order))
    given = {"filter": wanted, "order": order, "which": asked.text("which")}
    some, pager = asked.rows_of_page("/groups", found, given)
    inputs = [
        Input("filter", "Name contains", value=wanted),
        Input("order", "Sort by", "choice", order, [*ORDERS], labels=ORDERS),
        Input("which", "Groups", "choice", "all" if shows_all else "used", ("used", "all")),
    ]
    nothing = f"No group contains {wanted!r}: change the filter." if wanted else NO_GROUPS
    parts: list[Part] = [
        Form("", "/groups", inputs, "Filter"),
        RowTable(
            "groups",
            "",
            [group_row(each) for each in some],
            nothing,
            pager=pager,
            marked=stuck_rows(some),
        ),
        change_links(asked, [("Create a group", "group", {})]),
    ]
    return snapshot_page("Consumer groups", now, parts)


def _order(each: GroupSummary, order: str) -> tuple[int, int, str]:
    if order == "name":
        return 0, 0, each.name
    if order == "lag":
        return -each.lag, 0, each.name
    return -(each.late_ms or 0) if not each.is_stuck else -STUCK_FIRST, -each.lag, each.name


@page("/group/members")
def members(asked: PageRequest) -> Page:
    """Show the state of each member, and whether their subscriptions agree."""
    name = asked.needed("name", legal_name)
    found = asked.cluster.ask(lambda admin: admin.member_states(name), 8.0)
    rows = [
        {
            "client": Link(each.client, "/client", {"group": name, "client": each.client}),
            "version": each.version,
            "model": each.model,
            "subscriptions": list(each.subscriptions),
            "queues": each.queues,
            "waiting_in_it": each.cached,
            "in_flight": each.in_flight,
            "queue_names": list(each.queue_names),
        }
        for each in found.found
    ]
    notes = [Note("trouble", f"{each}.".replace("..", ".")) for each in found.failures]
    if not notes and len(rows) > 1:
        notes = [Note("fine", f"All {len(rows)} members have the same subscriptions.")]
    return Page(
        f"Members of {name}",
        [
            Links([Link(f"Group {name}", "/group", {"name": name})]),
            Notes("agreement", "", notes),
            RowTable("members", "", rows, "No member answers: start a consumer of the group."),
        ],
    )
