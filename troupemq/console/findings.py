"""Current problems of a snapshot, as sentences, found by thresholds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from protocol.codes import RequestCode
from troupemq.client.admin import Time
from troupemq.console.parts import Link, Note
from troupemq.console.questions import ACCESS
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot, GroupSummary

ALL_BROKERS = Link("Brokers", "/brokers")
NAMED_MAX = 10
"""Limit of groups named in one kind of finding; the others are counted."""

REFUSED_LATELY_MS = 3_600_000
"""Age up to which refusals of access control are reported."""


@dataclass(frozen=True)
class Thresholds:
    """Values from which a finding is reported; the page Alerts changes them."""

    disk_watch_percent: int = 75
    disk_trouble_percent: int = 85
    """Brokers then delete old files before their retention time; at 90 % they refuse sends."""
    lag_messages: int = 10_000
    lag_minutes: int = 5
    transaction_minutes: int = 60
    replica_mib: int = 256

    @classmethod
    def of(cls, given: Mapping[str, object]) -> "Thresholds":
        """Return thresholds with the valid values of `given`, and defaults for the others.

        A value is valid if it is a whole number above 0.
        """
        known = {each.name for each in fields(cls)}
        usable = {
            name: value
            for name, value in given.items()
            if name in known and type(value) is int and value > 0
        }
        return cls(**usable)


@dataclass(frozen=True)
class Alert:
    """Problem in a snapshot; `key` stays the same while the problem lasts."""

    key: str
    level: str
    text: str
    link: Link | None = None
    is_standing: bool = False
    """Describes a choice of the operator: shown on pages and never sent."""
    since_ms: Time | None = None
    """Begin of the problem; None if it is unknown."""

    @property
    def note(self) -> Note:
        return Note(self.level, self.text, self.link, self.since_ms)


def findings_of(now: ClusterSnapshot, limits: Thresholds) -> list[Alert]:
    """Return all problems, the worst first."""
    found = [
        *_of_brokers(now, limits),
        *_of_groups(now, limits),
        *_of_the_rest(now, limits),
        *_of_access(now),
    ]
    return sorted(found, key=lambda each: each.level != "trouble")


def _of_brokers(now: ClusterSnapshot, limits: Thresholds) -> Iterator[Alert]:
    yield from _of_silence(now)
    if any(ACCESS in each for each in now.missing):
        text = (
            "Access control refuses the console's requests: give it an account, with monitor: true"
            " to view and admin: true to change (--acl-file, docs/console.md)."
        )
        yield Alert("account", "trouble", text, Link("Access", "/access"))
    ends = {each.place.name: each.number("commitLogMaxOffset") for each in now.masters if each.says}
    for each in now.brokers:
        if not each.says:
            continue
        name, place = _name(each), each.place
        link = Link(place.name, "/broker", {"address": place.address})
        yield from _of_disk(each, limits, link)
        yield from _of_damage(each, link)
        end, own = ends.get(place.name), each.number("commitLogMaxOffset")
        if not place.is_master and end is not None and own is not None:
            behind = (end - own) / (1 << 20)
            if behind > limits.replica_mib:
                text = f"{name} lags {behind:,.0f} MiB behind its master."
                yield Alert(f"replica {place.address}", "trouble", text, link)


def _of_silence(now: ClusterSnapshot) -> Iterator[Alert]:
    """Yield brokers that are gone, do not answer, or have no master."""
    if not now.brokers:
        why = now.missing[0] if now.missing else "no broker is registered"
        yield Alert("brokers", "trouble", f"No broker is reachable: {why}.")
    for each in now.gone:
        text = f"{_name(each)} at {each.place.address} is gone: no name server lists it"
        yield Alert(_key("gone", each), "trouble", text + _last_answer(each, now), ALL_BROKERS)
    for each in now.brokers:
        if not each.says:
            text = f"{_name(each)} at {each.place.address} does not answer"
            link = Link(each.place.name, "/broker", {"address": each.place.address})
            yield Alert(_key("silent", each), "trouble", text + _last_answer(each, now), link)
    for name in sorted(
        {each.place.name for each in now.brokers} - {each.place.name for each in now.masters}
    ):
        text = f"{name} has no master: sends to it fail."
        yield Alert(f"master {name}", "trouble", text, Link(name, "/brokers"))


def _key(kind: str, each: BrokerSummary) -> str:
    return f"{kind} {each.place.address}"


def _last_answer(each: BrokerSummary, now: ClusterSnapshot) -> str:
    """Return the end of a sentence about a silent broker."""
    if not each.answered_ms:
        return "."
    return f"; it last answered {spoken(now.taken_ms - each.answered_ms)} ago."


def _of_access(now: ClusterSnapshot) -> Iterator[Alert]:
    """Yield refusals of the last hour, without accounts, and brokers without access control."""
    link = Link("Access", "/access")
    lately = [
        each for each in now.refusals if now.taken_ms - each.last_timestamp < REFUSED_LATELY_MS
    ]
    if lately:
        last = max(lately, key=lambda each: each.last_timestamp)
        accounts = counted(len({each.account for each in lately}), "account")
        what = spoken_code(last.code) + (f" of the group {last.group}" if last.group else "")
        ago = spoken(now.taken_ms - last.last_timestamp)
        text = (
            f"Access control refused requests of {accounts} in the last hour, the last one {ago}"
            f" ago: {what}."
        )
        yield Alert("refusals", "watch", text, link)
    if now.unguarded:
        names = sorted({each.name for each in now.unguarded})
        some = ", ".join(names[:NAMED_MAX]) + (" and others" if len(names) > NAMED_MAX else "")
        text = f"Every client has every permission at {some}: access control is off (aclEnable)."
        yield Alert("unguarded", "watch", text, link, is_standing=True)


def spoken_code(code: int) -> str:
    """Return the name of a request code: `send message (10)`."""
    try:
        return f"{RequestCode(code).name.replace('_', ' ').lower()} ({code})"
    except ValueError:
        return str(code)


def _of_disk(each: BrokerSummary, limits: Thresholds, link: Link) -> Iterator[Alert]:
    ratio = each.disk_ratio
    if ratio is None or ratio < 0:
        return
    percent = ratio * 100
    if percent >= limits.disk_trouble_percent:
        text = (
            f"The disk of {_name(each)} is {percent:.0f} % full: old messages are deleted before"
            " their retention time, and at 90 % sends are refused. Free disk space."
        )
        yield Alert(f"disk {each.place.address}", "trouble", text, link)
    elif percent >= limits.disk_watch_percent:
        text = f"The disk of {_name(each)} is {percent:.0f} % full."
        yield Alert(f"disk {each.place.address}", "watch", text, link)


def _of_damage(each: BrokerSummary, link: Link) -> Iterator[Alert]:
    store, address = each.store, each.place.address
    if store is not None and store.damaged_places:
        text = (
            f"{_name(each)} has damage at {counted(store.damaged_places, 'place')} of its commit"
            " log: the disk fails, or another process wrote to the files."
        )
        yield Alert(f"damage {address}", "trouble", text, link)
    if store is not None and store.damaged_tables:
        tables = counted(len(store.damaged_tables), "table")
        text = f"{_name(each)} found {tables} damaged when it started."
        yield Alert(f"tables {address}", "watch", text, link)


def _name(each: BrokerSummary) -> str:
    if each.place.is_master:
        return f"The broker {each.place.name}"
    return f"The slave {each.place.id} of {each.place.name}"


def _of_groups(now: ClusterSnapshot, limits: Thresholds) -> Iterator[Alert]:
    unattended, stuck, late, differing = [], [], [], []
    for group in sorted(now.groups.values(), key=lambda each: -each.lag):
        if group.lag and group.members == 0:
            unattended.append(group)
        elif group.is_stuck:
            stuck.append(group)
        elif group.lag >= limits.lag_messages or (
            group.lag and (group.late_ms or 0) > limits.lag_minutes * 60_000
        ):
            late.append(group)
        if group.differs:
            differing.append(group)
    yield from _stuck(stuck, now.taken_ms)
    yield from _each(unattended, "unattended", "trouble", _alone)
    yield from _each(late, "late", "trouble", _behind)
    yield from _each(
        differing,
        "differs",
        "trouble",
        lambda g: (
            "has members that subscribe differently: messages are lost. Align their subscriptions."
        ),
    )


def _stuck(groups: list[GroupSummary], now_ms: int) -> Iterator[Alert]:
    """Yield groups that consume nothing, the longest first, with the place where they stand."""
    groups.sort(key=lambda each: each.stuck_since_ms)
    for group in groups[:NAMED_MAX]:
        name, since_ms = group.name, group.stuck_since_ms
        text, link = f"The group {name} is stuck", Link("Verdict", "/group", {"name": name})
        span = spoken(now_ms - since_ms)
        if group.stuck_members:
            member = group.stuck_members[0]
            since_ms, at = member.stuck_since_ms or since_ms, member.current
            span = spoken(now_ms - since_ms)
            text += f": its member {member.client} has finished nothing for {span}"
            text += "" if at is None else f" and stands at {at.place}"
            text += f", message {at.message_id}" if at is not None and at.message_id else ""
            more = len(group.stuck_members) - 1
            text += f"; {counted(more, 'other member')} too" if more else ""
            link = Link("Verdict", "/client", {"group": name, "client": member.client})
        elif group.stuck_queues:
            queue, more = group.stuck_queues[0], len(group.stuck_queues) - 1
            text += f": nothing was consumed for {span} at {queue.place}"
            text += f" and {counted(more, 'other queue')}" if more else ""
        text += f". {counted(group.lag, 'message')} {'waits' if group.lag == 1 else 'wait'}."
        yield Alert(f"stuck {name}", "trouble", text, link, since_ms=Time(since_ms))
    if len(groups) > NAMED_MAX:
        text = f"{len(groups) - NAMED_MAX} more groups are stuck."
        yield Alert("stuck others", "trouble", text, Link("groups", "/groups"))


def _alone(group: GroupSummary) -> str:
    text = f"has a consumer lag of {group.lag:,} messages and no member"
    stuck = group.stuck_queues
    return f"{text}; it stands at {stuck[0].place}." if stuck else f"{text}."


def _behind(group: GroupSummary) -> str:
    text = f"has a consumer lag of {group.lag:,} messages"
    if group.late_ms:
        text += f" and a time lag of up to {spoken(group.late_ms)}"
    return f"{text}; it consumes {group.tps:,.1f} msg/s."


def _each(groups: list[GroupSummary], kind: str, level: str, text: object) -> Iterator[Alert]:
    assert callable(text)
    for group in groups[:NAMED_MAX]:
        link = Link(group.name, "/group", {"name": group.name})
        sentence = f"The group {group.name} {text(group)}"
        is_since = kind == "unattended" and group.stuck_since_ms
        since_ms = Time(group.stuck_since_ms) if is_since else None
        yield Alert(f"{kind} {group.name}", level, sentence, link, since_ms=since_ms)
    rest = len(groups) - NAMED_MAX
    if rest > 0:
        text_of_rest = f"{rest} more groups have the same problem."
        yield Alert(f"{kind} others", level, text_of_rest, Link("groups", "/groups"))


def _of_the_rest(now: ClusterSnapshot, limits: Thresholds) -> Iterator[Alert]:
    for group in sorted(now.groups.values(), key=lambda each: -(each.dead_letters or 0))[
        :NAMED_MAX
    ]:
        if group.dead_letters:
            text = f"The group {group.name} has {group.dead_letters:,} dead letters."
            link = Link(group.name, "/dead-letters/group", {"name": group.name})
            yield Alert(f"dead {group.name}", "watch", text, link)
    for address, ends in now.transactions.items():
        oldest = ends.transactions[0] if ends.transactions else None
        if oldest is not None:
            age_ms = now.taken_ms - oldest.born_timestamp
            if age_ms > limits.transaction_minutes * 60_000:
                text = (
                    f"{ends.count} transactions are open at {address}, the oldest for"
                    f" {spoken(age_ms)}: {oldest.producer_group} neither commits it nor rolls it"
                    " back."
                )
                link = Link("transactions", "/transactions")
                yield Alert(f"transaction {address}", "watch", text, link)
    for address, jobs in now.jobs.items():
        newest = {run.entry or run.job: run for run in jobs.runs}
        for name, run in newest.items():
            if run.state == "failed":
                text = f"The last run of the job {name} at {address} failed: {run.sentence}"
                yield Alert(f"job {address} {name}", "watch", text, Link(name, "/jobs"))


def sentence_of(verdict: str) -> str:
    """Return a verdict as a sentence."""
    return f"{verdict[:1].upper()}{verdict[1:]}."


def counted(count: int, what: str) -> str:
    """Return a count with its noun: `1 place`, `2 places`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def spoken(span_ms: int) -> str:
    """Return a duration in its two greatest units: `2 h 5 min`."""
    seconds = max(0, span_ms) // 1000
    if seconds < 1:
        return f"{max(0, span_ms):d} ms"
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[tuple[int, str]] = []
    for name, size in units:
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append((count, name))
    return " ".join(f"{count} {name}" for count, name in parts[:2] if count)
