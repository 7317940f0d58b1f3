"""Pages of brokers: the list, and one broker in tabs.

Only TroupeMQ brokers report actors and damage.

Settings have their meanings, values in plain words, and the way to change them. Meanings are those
of TroupeMQ, which agree with RocketMQ for keys of both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time_ns

from protocol.bodies_own import ActorLine, ActorList, StoreState
from protocol.codes import RequestCode, ResponseCode
from troupemq.client.admin import Time
from troupemq.client.admin.brokers import StoreReport
from troupemq.client.errors import BrokerError, ClientError
from troupemq.console.asking import NotThere, PageRequest, failures_of, page, snapshot_page
from troupemq.console.changes import change_link
from troupemq.console.findings import counted, findings_of, spoken
from troupemq.console.pages.overview import NO_BROKERS, REFRESH_S, broker_row
from troupemq.console.parts import (
    Cells,
    Facts,
    Form,
    Input,
    Link,
    Links,
    Note,
    Notes,
    Page,
    Part,
    RowTable,
    Size,
    Span,
    Tabs,
)
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot
from troupemq.numbers import finite
from troupemq.setting_meanings import SettingMeaning, broker_settings, in_words

WHICH = {
    "all": "all",
    "changed": "changed from the default",
    "live": "changeable without a restart",
}


def settings_parts(asked: PageRequest, address: str, is_ours: bool) -> list[Part]:
    """Return the settings of a broker that match the filter of the query."""
    settings = asked.cluster.ask(lambda admin: admin.broker_settings(broker=address))
    values = settings.found[0].values if settings.found else {}
    known = broker_settings()
    wanted, which = asked.text("filter").casefold(), asked.text("which") or "all"
    rows = [
        _setting_row(asked, address, name, value, known.get(name), is_ours)
        for name, value in values.items()
        if _is_wanted(name, value, known.get(name), wanted, which)
    ]
    about = (
        "Meanings are those of conf/broker.conf."
        if is_ours
        else "Meanings are those of TroupeMQ's conf/broker.conf, for keys of both brokers."
    )
    inputs = [
        Input("address", "", "hidden", address),
        Input("tab", "", "hidden", "settings"),
        Input("filter", "Name or meaning contains", value=asked.text("filter")),
        Input("which", "Settings", "choice", which, tuple(WHICH), labels=WHICH),
    ]
    nothing = "The broker reports no settings." if not values else "No match: change the filter."
    parts: list[Part] = [
        *failures_of(settings.failures, "settings"),
        Form("Settings", "/broker", inputs, "Filter"),
        RowTable("settings", "", rows, nothing, about),
    ]
    if asked.viewer.may("admin"):
        change = [
            Input("address", "", "hidden", address),
            Input("key", "Setting", needed=True),
            Input("value", "Value", needed=True),
        ]
        parts.append(Form("Change a setting", "/change/setting", change, "Preview", True, True))
    return parts


def _is_wanted(
    name: str, value: str, meaning: SettingMeaning | None, wanted: str, which: str
) -> bool:
    words = "" if meaning is None else meaning.words
    if wanted not in name.casefold() and wanted not in words.casefold():
        return False
    if which == "changed":
        return meaning is not None and _is_changed(value, meaning)
    return which != "live" or (meaning is not None and meaning.is_live)


def _is_changed(value: str, meaning: SettingMeaning) -> bool:
    return bool(meaning.default) and value != meaning.default


def _setting_row(
    asked: PageRequest,
    address: str,
    name: str,
    value: str,
    meaning: SettingMeaning | None,
    is_ours: bool,
) -> Cells:
    holds = None
    if is_ours and meaning is not None:
        holds = "at once" if meaning.is_live else "after a restart"
    is_secret = meaning is not None and meaning.is_secret
    given = {"address": address, "key": name, "value": value}
    change = None if is_secret else change_link(asked, name, "setting", given)
    return {
        "setting": name if change is None else change,
        "value": "is set" if is_secret and value else value,
        "in_words": None if meaning is None or is_secret else in_words(value, meaning.words),
        "default": None if meaning is None else meaning.default or None,
        "holds": holds,
        "means": None if meaning is None else meaning.words or None,
    }


TABS = ("health", "traffic", "store", "settings", "actors")
INBOX_LARGE = 1_000
"""Inbox depth from which an actor counts as unwell."""

_STATES = ("down", "up", "not started")
NO_ACTORS = "This broker reports no actors, because it is a RocketMQ broker."
NO_DAMAGE = "This broker reports no damage, because RocketMQ brokers do not look for it."


@page("/brokers")
def brokers(asked: PageRequest) -> Page:
    now = asked.snapshot()
    rows = [broker_row(each) for each in now.brokers]
    names = ({key: row[key] for key in ("broker", "role")} for row in rows)
    work = [{**name, **_work(each)} for name, each in zip(names, now.brokers, strict=True)]
    parts: list[Part] = [
        RowTable("brokers", "", rows, NO_BROKERS),
        *([RowTable("work", "Load and uptime", work)] if work else []),
    ]
    return snapshot_page("Brokers", now, parts, REFRESH_S)


def _work(each: BrokerSummary) -> Cells:
    store, put_ms = each.store, each.number("putLatency99")
    return {
        "waiting_sends": _whole(each.number("sendThreadPoolQueueSize")),
        "put_p99_ms": None if put_ms is None else Span(put_ms),
        "unflushed": each.says.get("remainHowManyDataToFlush"),
        "not_dispatched": _size(each.number("dispatchBehindBytes")),
        "damaged_places": None if store is None else store.damaged_places,
        "up_ms": _up(each),
    }


def _up(each: BrokerSummary) -> Span | str | None:
    """Return the uptime; some official brokers report it as text only."""
    boot_ms = each.number("bootTimestamp")
    if boot_ms is None or boot_ms <= 0:
        return each.says.get("runtime", "").strip("[ ]") or None
    return Span(max(0, time_ns() // 1_000_000 - int(boot_ms)))


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _size(number: float | None) -> Size | None:
    return None if number is None else Size(number)


@page("/broker")
def broker(asked: PageRequest) -> Page:
    """Show one section of a broker, or all of them to a program."""
    address = asked.needed("address")
    now = asked.snapshot()
    state = next((each for each in now.brokers if each.place.address == address), None)
    if state is None:
        raise NotThere(f"No broker is registered with the address {address}.")
    tab = asked.text("tab")
    if tab not in TABS:  # addresses of a filter may be older than the tabs
        tab = "settings" if asked.text("filter") or asked.text("which") else "health"
    wanted = TABS if asked.is_api and not asked.text("tab") else (tab,)
    parts: list[Part] = [
        Tabs(
            [Link(each.title(), "/broker", {"address": address, "tab": each}) for each in TABS],
            TABS.index(tab),
        ),
        Facts("broker", "", {**broker_row(state), **_work(state)}),
    ]
    actors = _actors(asked, address)
    is_ours = actors.is_ours
    sections: dict[str, Callable[[], Sequence[Part]]] = {
        "health": lambda: [
            *_problems(asked, now, state),
            *([] if "actors" in wanted else actors.problems),
            *_relatives(now, state),
            *_damage_of(state, is_ours),
        ],
        "traffic": lambda: _traffic(state),
        "store": lambda: _store(state),
        "settings": lambda: settings_parts(asked, address, is_ours),
        "actors": lambda: actors.parts,
    }
    for each in wanted:
        parts += sections[each]()
    return snapshot_page(f"Broker {state.place.name}", now, parts)


def _problems(asked: PageRequest, now: ClusterSnapshot, state: BrokerSummary) -> list[Part]:
    """Return the current problems of this broker alone."""
    place = state.place
    notes = [
        Note(each.level, each.text)
        for each in findings_of(now, asked.console.alerts.thresholds)
        if (each.link is not None and each.link.query.get("address") == place.address)
        or each.key == f"master {place.name}"
    ]
    if not notes and state.says:
        notes = [Note("fine", "No problems: it answers, and exceeds no threshold.")]
    return [Notes("problems", "Current problems", notes)]


def _relatives(now: ClusterSnapshot, state: BrokerSummary) -> list[Part]:
    """Return master and slaves of the same name, with their replication lag."""
    family = [each for each in now.brokers if each.place.name == state.place.name]
    if len(family) < 2:
        return []
    ends = [each.number("commitLogMaxOffset") for each in family if each.place.is_master]
    end = ends[0] if ends else None
    rows = [
        {
            "broker": Link(
                "master" if each.place.is_master else f"slave {each.place.id}",
                "/broker",
                {"address": each.place.address},
            ),
            "address": each.place.address,
            "log_end": _whole(own),
            "behind": None if own is None or end is None else Size(max(0.0, end - own)),
        }
        for each in family
        for own in [each.number("commitLogMaxOffset")]
    ]
    return [RowTable("family", "Master and slaves", rows)]


@dataclass
class ActorParts:
    """Parts about the actors of a broker; `problems` without the healthy ones."""

    is_ours: bool
    """Whether it is a TroupeMQ broker."""
    parts: Sequence[Part]
    problems: Sequence[Part] = ()


def _actors(asked: PageRequest, address: str) -> ActorParts:
    """Ask a broker for its actors."""
    session = asked.cluster.session
    try:
        with session.within():
            found = session.read(ActorList, address, RequestCode.GET_ACTORS)
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            missing = Notes("actors_missing", "Actors", [Note("fine", NO_ACTORS)])
            return ActorParts(False, [missing])
        failures = failures_of([str(error)], "actors")
        return ActorParts(True, failures, failures)
    except ClientError as error:
        failures = failures_of([str(error)], "actors")
        return ActorParts(False, failures, failures)
    lines = sorted(
        found.actors,
        key=lambda each: (_STATES.index(_state(each)), -each.restarts, -each.inbox, each.name),
    )
    notes = _actor_notes(found)
    unwell = [_actor_row(each) for each in lines if _is_unwell(each)]
    title = f"All {len(lines)} actors"
    table = RowTable("actors", title, [_actor_row(each) for each in lines], folded=not unwell)
    bad = [each for each in notes if each.level != "fine"]
    few = [RowTable("unwell", "Actors with problems", unwell)] if unwell else []
    problems: list[Part] = [Notes("actor_problems", "Actors", bad), *few] if bad or few else []
    return ActorParts(True, [Notes("loop", "Actors", notes), *few, table], problems)


def _actor_row(each: ActorLine) -> Cells:
    return {
        "actor": each.name,
        "state": _state(each),
        "inbox": each.inbox,
        "restarts": each.restarts,
        "handled": each.handled,
    }


def _is_unwell(each: ActorLine) -> bool:
    return _state(each) == "down" or each.restarts > 0 or each.inbox >= INBOX_LARGE


def _actor_notes(found: ActorList) -> list[Note]:
    waiting = sum(each.inbox for each in found.actors)
    restarts = sum(each.restarts for each in found.actors)
    count = len(found.actors)
    notes = [Note("fine", f"The inboxes of {count} actors hold {waiting:,} messages.")]
    if restarts:
        sentence = (
            f"Actors were restarted {restarts:,} times: see the broker's log for the reasons."
        )
        notes.append(Note("watch", sentence))
    if found.longest_actor:
        notes.append(
            Note(
                "watch" if found.longest_ms > 50 else "fine",
                f"The longest handler took {spoken(found.longest_ms)}: {found.longest_actor} with"
                f" {found.longest_message}; {found.slow_handlers:,} took more than 50 ms.",
            )
        )
    return notes


def _state(actor: ActorLine) -> str:
    if actor.is_up:
        return "up"
    return "down" if actor.handled else "not started"


def _store(state: BrokerSummary) -> list[Part]:
    """Return the sizes and offsets of the store; TroupeMQ brokers report more."""
    found = state.store
    if found is None:
        first, end = state.number("commitLogMinOffset"), state.number("commitLogMaxOffset")
        facts: dict[str, object] = {
            "log_start": _whole(first),
            "log_end": _whole(end),
            "log_size": None if first is None or end is None else Size(end - first),
            "not_flushed": state.says.get("remainHowManyDataToFlush"),
            "not_dispatched": _size(state.number("dispatchBehindBytes")),
            "disk": state.says.get("commitLogDirCapacity"),
        }
        return [Facts("store", "Store", {**facts, **_oldest(state)})]
    row = StoreReport.of("", found).row()
    for name in ("not_flushed", "not_dispatched", "disk_bytes", "disk_free_bytes"):
        row[name] = Size(int(str(row[name])))
    for name in (*("broker_address", "damage", "damaged_tables", "found_at_start"), "verified_ms"):
        del row[name]
    for name in ("damaged_places", "damaged_bytes", "verified_percent"):
        del row[name]
    facts = {
        "log_size": Size(max(0, found.log_end - found.log_start)),
        **row,
        "size_of_a_file": Size(found.log_file_bytes),
        **_oldest(state),
    }
    return [Facts("store", "Store", facts)]


def _damage_of(state: BrokerSummary, is_ours: bool) -> list[Part]:
    if state.store is not None:
        return _damage(state.store)
    if state.says and not is_ours:
        return [Notes("damage", "Damage", [Note("fine", NO_DAMAGE)])]
    return []


def _oldest(state: BrokerSummary) -> Cells:
    return {"oldest_message_ms": Time(int(state.number("earliestMessageTimeStamp") or 0))}


def _damage(found: StoreState) -> list[Part]:
    """Return the damage as sentences and as a table."""
    notes = []
    if found.damaged_places:
        sentence = (
            f"The commit log is damaged at {counted(found.damaged_places, 'place')},"
            f" {counted(found.damaged_bytes, 'byte')} in all. Only the messages there are lost."
            " The disk fails, or another process wrote to the files."
        )
        notes.append(Note("trouble", sentence))
    for path in found.damaged_tables:
        sentence = f"{path} was damaged at the start; it was renamed to {path}.broken."
        notes.append(Note("trouble", sentence))
    notes += [Note("watch", f"Found at the start: {each}.") for each in found.found_at_start]
    if found.verified_percent < 100:
        how_far = f"Verification is running: {found.verified_percent} % of the commit log are done."
    elif found.verified_ms:
        how_far = "Verification of all messages found at the start is complete."
    else:
        how_far = "Nothing was verified since the start: the commit log was empty, or"
        how_far += " verification is off (scrubEnable)."
    if not found.damaged_places and not found.damaged_tables:
        notes.insert(0, Note("fine", "No damage is known."))
    notes.append(Note("fine", how_far))
    places = [
        {
            "from_offset": each.start,
            "to_offset": each.end,
            "bytes": each.end - each.start,
            "why": each.why,
        }
        for each in found.damage
    ]
    parts: list[Part] = [Notes("damage", "Damage", notes)]
    if found.verified_ms:
        parts.append(Facts("verified", "", {"looked_through_ms": Time(found.verified_ms)}))
    if places:
        about = "" if len(places) == found.damaged_places else f"The first {len(places)} only."
        parts.append(
            RowTable("damaged_places", "Damaged places of the commit log", places, about=about)
        )
    return parts


_RATES = (
    ("messages in", "putTps"),
    ("messages out", "getTransferedTps"),
    ("pulls that found messages", "getFoundTps"),
    ("pulls that found none", "getMissTps"),
)
"""Rates of a broker, each reported as averages of 10 s, 1 minute and 10 minutes."""


def _traffic(state: BrokerSummary) -> list[Part]:
    """Return rates, backlogs and latencies, from the runtime figures of any broker."""
    rows = []
    for name, figure in _RATES:
        values = [finite(each) for each in state.says.get(figure, "").split()[:3]]
        ten_s, minute, ten_minutes = (*values, None, None, None)[:3]
        rows.append(
            {"rate": name, "ten_s": ten_s, "one_minute": minute, "ten_minutes": ten_minutes}
        )
    put_ms, size = state.number("putLatency99"), state.number("putMessageAverageSize")
    facts = {
        "in_today": _today(state, "msgPutTotal"),
        "out_today": _today(state, "msgGetTotal"),
        "average_size": _size(size),
        "put_p99_ms": None if put_ms is None else Span(put_ms),
        "waiting_sends": _whole(state.number("sendThreadPoolQueueSize")),
        "waiting_pulls": _whole(state.number("pullThreadPoolQueueSize")),
    }
    producers = Link("Connected producers", "/producers", {"broker": state.place.address})
    return [
        RowTable("rates", "Throughput (per second)", rows),
        Facts("load", "Load", facts),
        Links([producers]),
        Facts("figures", "All runtime figures", dict(sorted(state.says.items())), True, True),
    ]


def _today(state: BrokerSummary, name: str) -> int | None:
    now, morning = state.number(f"{name}TodayNow"), state.number(f"{name}TodayMorning")
    return None if now is None or morning is None else max(0, int(now - morning))
