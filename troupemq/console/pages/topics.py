"""Pages of topics: the list, and one topic with queues, groups and producers."""

from dataclasses import replace

from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SYSTEM_TOPICS
from troupemq.client.errors import BrokerError, ClientError
from troupemq.console.asking import (
    NotThere,
    PageRequest,
    failures_of,
    page,
    snapshot_page,
    table_of,
)
from troupemq.console.changes import change_links
from troupemq.console.given import address as address_rule
from troupemq.console.given import legal_name
from troupemq.console.parts import (
    Cells,
    Facts,
    Form,
    Input,
    Link,
    Links,
    Page,
    Part,
    RowTable,
    Span,
)
from troupemq.console.snapshot import ClusterSnapshot, TopicSummary, permission_words

NO_GROUPS = "No group has consumed this topic: start a consumer that subscribes to it."
KINDS = ("own", "all", "retry", "dead letters", "system")
NO_TOPICS = "No topics of this kind: create one, or select another kind."
PERMISSIONS = {2: "write", 4: "read", 6: "read, write"}


def kind_of(name: str) -> str:
    """Return the kind of a topic by its name: one of KINDS, except `all`."""
    if name.startswith(RETRY_TOPIC_PREFIX):
        return "retry"
    if name.startswith(DLQ_TOPIC_PREFIX):
        return "dead letters"
    is_system = name in SYSTEM_TOPICS or name.lower().startswith("rmq_sys_")
    return "system" if is_system else "own"


def _is_made_by_a_broker(name: str, now: ClusterSnapshot) -> bool:
    """Return whether a broker created this topic.

    Each broker and each cluster has a topic of its name, and one for replies.
    """
    names = {each.place.name for each in now.brokers} | set(now.clusters)
    return name in names or name.removesuffix("_REPLY_TOPIC") in names


@page("/topics")
def topics(asked: PageRequest) -> Page:
    """Show the topics with a text in their names, in pages."""
    now = asked.snapshot()
    wanted, kind = asked.text("filter"), asked.text("kind") or "own"
    folded = wanted.casefold()
    found = [
        state
        for name, state in sorted(now.topics.items())
        if folded in name.casefold() and (kind == "all" or kind_here(name, now) == kind)
    ]
    some, pager = asked.rows_of_page("/topics", found, {"filter": wanted, "kind": kind})
    inputs = [
        Input("filter", "Name contains", value=wanted),
        Input("kind", "Topics", "choice", kind, KINDS),
    ]
    nothing = f"No topic contains {wanted!r}: change the filter." if wanted else NO_TOPICS
    parts: list[Part] = [
        Form("", "/topics", inputs, "Filter"),
        RowTable("topics", "", [_row(now, each) for each in some], nothing, pager=pager),
        change_links(asked, [("Create a topic", "topic", {})]),
    ]
    return snapshot_page("Topics", now, parts)


def kind_here(name: str, now: ClusterSnapshot) -> str:
    """Return the kind of a topic of this cluster: one of KINDS, except `all`."""
    return "system" if _is_made_by_a_broker(name, now) else kind_of(name)


def _row(now: ClusterSnapshot, each: TopicSummary) -> Cells:
    newest = Link("Newest", "/messages", {"topic": each.name})
    return {**_facts(now, each), "messages": newest}


def _facts(now: ClusterSnapshot, each: TopicSummary) -> Cells:
    groups = sorted(each.groups, key=lambda name: -each.groups[name])
    return {
        "topic": Link(each.name, "/topic", {"name": each.name}),
        "brokers": each.brokers,
        "read_queues": each.read_queues,
        "write_queues": each.write_queues,
        "may": _permission(now, each),
        "groups": [Link(name, "/group", {"name": name}) for name in groups[:3]],
        "lag": sum(each.groups.values()) if groups else None,
    }


def _permission(now: ClusterSnapshot, each: TopicSummary) -> str:
    found = {config.perm for config in now.topic_at(each.name).values()} or {each.perm}
    if len(found) > 1:
        return "differs by broker"
    return PERMISSIONS.get(each.perm, str(each.perm))


def _by_broker(now: ClusterSnapshot, name: str) -> RowTable:
    """Return the settings of a topic at each master, in words."""
    rows = [
        {
            "broker": broker,
            "read_queues": config.read_queue_nums,
            "write_queues": config.write_queue_nums,
            "permission": permission_words(config.perm),
            "order": "ordered" if config.order else "not ordered",
        }
        for broker, config in sorted(now.topic_at(name).items())
    ]
    return RowTable("at_brokers", "Settings by broker", rows, "No master has answered.")


@page("/topic")
def topic(asked: PageRequest) -> Page:
    name = asked.needed("name", legal_name)
    now = asked.snapshot()
    state = now.topics.get(name)
    if state is None:
        raise NotThere(f"Topic {name} not found at any broker that answers.")
    queues = asked.cluster.ask(lambda admin: admin.queue_states(name, with_times=True))
    no_queues = "No queues." if queues.failures else f"The topic {name} has no queues."
    rows = [
        {
            **row,
            "newest": Link(
                "Show",
                "/messages",
                {"topic": name, "broker": row["broker"], "queue": row["queue_id"]},
            ),
        }
        for row in queues.rows
    ]
    groups = [
        {
            "group": Link(group, "/group", {"name": group}),
            "lag": lag,
            "late_at_most_ms": _late(now, group),
            "members": now.groups[group].members,
        }
        for group, lag in sorted(state.groups.items(), key=lambda item: -item[1])
    ]
    parts: list[Part] = [
        Links(
            [
                Link("Messages", "/messages", {"topic": name}),
                Link("Live messages", "/tail", {"topic": name}),
            ]
        ),
        _changes(asked, name),
        Facts("topic", "", {**_facts(now, state), **_rates(asked, now, name)}),
        RowTable("groups", "Consumer groups", groups, NO_GROUPS),
        _by_broker(now, name),
        *failures_of(queues.failures, "queues"),
        RowTable("queues", "Queues", rows, no_queues),
        *_route(asked, name),
        _producers(asked, name),
    ]
    return snapshot_page(f"Topic {name}", now, parts)


def _changes(asked: PageRequest, name: str) -> Links:
    return change_links(
        asked,
        [
            ("Send a message", "send", {"topic": name}),
            ("Change queues", "topic", {"topic": name}),
            ("Change permission", "topic-permission", {"topic": name}),
            ("Delete", "delete-topic", {"topic": name}),
        ],
    )


def _route(asked: PageRequest, name: str) -> list[Part]:
    found = asked.cluster.ask(lambda admin: admin.topic_route(name).places)
    parts = table_of(found, "route", "Route", f"No broker has the topic {name}.")
    return [
        replace(each, folded=True) if isinstance(each, RowTable) and each.rows else each
        for each in parts
    ]


def _late(now: ClusterSnapshot, group: str) -> Span | None:
    late_ms = now.groups[group].late_ms
    return None if late_ms is None else Span(late_ms)


def _rates(asked: PageRequest, now: ClusterSnapshot, name: str) -> Cells:
    """Return messages and bytes per second in the last minute, summed over the masters."""
    sums = {"in_tps": 0.0, "in_bytes_a_second": 0.0}
    counters = {"in_tps": "TOPIC_PUT_NUMS", "in_bytes_a_second": "TOPIC_PUT_SIZE"}
    session = asked.cluster.session
    with session.within():
        for each in now.masters:
            for key, counter in counters.items():
                try:
                    found = session.counter(each.place.address, counter, name)
                except BrokerError:
                    continue  # the broker has no such counter yet
                except ClientError:
                    break
                sums[key] += found.stats_minute.tps
    return sums


def _producers(asked: PageRequest, name: str) -> Form:
    """Return the form for a producer group, because brokers do not list the groups."""
    inputs = [Input("topic", "", "hidden", name), Input("group", "Producer group", needed=True)]
    return Form("Producers", "/producers", inputs, "Show", folded=True)


@page("/producers")
def producers(asked: PageRequest) -> Page:
    """Show the producers of a group at a topic's brokers, or all of one broker."""
    if address := asked.text("broker", address_rule):
        if all(each.place.address != address for each in asked.snapshot().brokers):
            raise NotThere(f"No broker is registered with the address {address}.")
        at_broker = asked.cluster.ask(lambda admin: admin.producers_at(address))
        nothing = f"No producer is connected to {address}: start one that sends to it."
        back = Links([Link(f"Broker {address}", "/broker", {"address": address})])
        return Page(
            f"Producers at {address}", [back, *table_of(at_broker, "producers", "", nothing)]
        )
    name, group = asked.needed("topic"), asked.needed("group")
    found = asked.cluster.ask(lambda admin: admin.producers_of(group, name))
    title = f"Producers of the group {group}"
    back = Links([Link(f"Topic {name}", "/topic", {"name": name})])
    nothing = f"The producer group {group} is not connected: start a producer, or check the name."
    return Page(title, [back, *table_of(found, "producers", "", nothing)])
