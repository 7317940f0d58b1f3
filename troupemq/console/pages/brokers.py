"""The pages of brokers: all of them, and one with its actors, its store, its damage, its settings.

Actors and what is known of damage are told by our brokers alone. What a setting means is what it
means here: RocketMQ's brokers mean the same by the keys that both know.
"""

from time import time_ns

from protocol.bodies_own import ActorLine, ActorList, StoreState
from protocol.codes import RequestCode, ResponseCode
from troupemq.client.admin import Time
from troupemq.client.admin.brokers import Properties, StoreReport
from troupemq.client.errors import BrokerError, ClientError
from troupemq.console.asking import NotThere, PageRequest, failures_of, page
from troupemq.console.changes import change_link
from troupemq.console.cluster import CommandResult
from troupemq.console.findings import counted, spoken
from troupemq.console.pages.overview import REFRESH_S, broker_row
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
)
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot
from troupemq.setting_meanings import SettingMeaning, broker_settings

WHICH = ("all", "changed", "live")
_STATES = ("down", "up", "not started")
NO_ACTORS = "It tells of no actors: RocketMQ's own brokers have none."
NO_DAMAGE = (
    "It does not tell what of its store is damaged: RocketMQ's own brokers do not look for it."
)


@page("/brokers")
def brokers(asked: PageRequest) -> Page:
    """All brokers."""
    now = asked.snapshot()
    rows = [broker_row(each) for each in now.brokers]
    names = ({key: row[key] for key in ("broker", "role")} for row in rows)
    work = [{**name, **_work(each)} for name, each in zip(names, now.brokers, strict=True)]
    nothing = "No broker is registered at the name servers."
    return Page(
        "Brokers",
        [
            RowTable("brokers", "", rows, nothing),
            *(
                [RowTable("work", "What waits in them, and how long they run", work)]
                if work
                else []
            ),
        ],
        now.missing,
        REFRESH_S,
        now.taken_ms,
    )


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
    """Since when it runs; official brokers say it in words, too."""
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
    """One broker: its actors, its store and what of it is damaged, its settings and figures."""
    address = asked.needed("address")
    now = asked.snapshot()
    state = next((each for each in now.brokers if each.place.address == address), None)
    if state is None:
        raise NotThere(f"No broker is registered with the address {address}.")
    settings = asked.cluster.ask(lambda admin: admin.broker_settings(broker=address))
    page = Page(
        f"Broker {state.place.name}",
        [Facts("broker", "", {**broker_row(state), **_work(state)})],
        now.missing,
        taken_ms=now.taken_ms,
    )
    page.parts.append(Links([Link("Who sends here", "/producers", {"broker": address})]))
    page.parts += _relatives(now, state)
    is_ours, actors = _actors(asked, address)
    page.parts += actors
    page.parts += _store(state, is_ours)
    page.parts += _settings(asked, address, settings, is_ours)
    page.parts.append(Facts("figures", "All figures", dict(sorted(state.says.items())), True, True))
    return page


def _relatives(now: ClusterSnapshot, state: BrokerSummary) -> list[Part]:
    """Master and slaves of the same name: how much of the log each of them lacks."""
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


def _actors(asked: PageRequest, address: str) -> tuple[bool, list[Part]]:
    """Whether it is one of ours, and its actors: first those that need a look."""
    session = asked.cluster.session
    try:
        with session.within():
            found = session.read(ActorList, address, RequestCode.GET_ACTORS)
    except BrokerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return False, [Notes("actors_missing", "Actors", [Note("fine", NO_ACTORS)])]
        return True, failures_of([str(error)], "actors")
    except ClientError as error:
        return False, failures_of([str(error)], "actors")
    lines = sorted(
        found.actors,
        key=lambda each: (_STATES.index(_state(each)), -each.restarts, -each.inbox, each.name),
    )
    rows = [
        {
            "actor": each.name,
            "state": _state(each),
            "inbox": each.inbox,
            "restarts": each.restarts,
            "handled": each.handled,
        }
        for each in lines
    ]
    waiting = sum(each.inbox for each in lines)
    restarts = sum(each.restarts for each in lines)
    notes = [Note("fine", f"{waiting:,} messages wait in the inboxes of {len(lines)} actors.")]
    if restarts:
        sentence = f"Actors were started again {restarts:,} times: the log says why."
        notes.append(Note("watch", sentence))
    if found.longest_actor:
        notes.append(
            Note(
                "watch" if found.longest_ms > 50 else "fine",
                f"The longest handler took {spoken(found.longest_ms)}: {found.longest_actor} with"
                f" {found.longest_message}; {found.slow_handlers:,} took more than 50 ms.",
            )
        )
    return True, [Notes("loop", "Actors", notes), RowTable("actors", "", rows)]


def _state(actor: ActorLine) -> str:
    if actor.is_up:
        return "up"
    return "down" if actor.handled else "not started"


def _store(state: BrokerSummary, is_ours: bool) -> list[Part]:
    """What lies there; of our brokers also what is damaged."""
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
        parts: list[Part] = [Facts("store", "Store", {**facts, **_oldest(state)})]
        if state.says and not is_ours:
            parts.append(Notes("damage", "Damage", [Note("fine", NO_DAMAGE)]))
        return parts
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
    return [Facts("store", "Store", facts), *_damage(found)]


def _oldest(state: BrokerSummary) -> Cells:
    return {"oldest_message_ms": Time(int(state.number("earliestMessageTimeStamp") or 0))}


def _damage(found: StoreState) -> list[Part]:
    """In sentences, and place by place."""
    notes = []
    if found.damaged_places:
        sentence = (
            f"The log is damaged at {counted(found.damaged_places, 'place')},"
            f" {counted(found.damaged_bytes, 'byte')} in all: the messages there are lost, all"
            " others are not. The disk fails, or somebody wrote there."
        )
        notes.append(Note("trouble", sentence))
    for path in found.damaged_tables:
        sentence = f"{path} was damaged at the start; it is kept as {path}.broken."
        notes.append(Note("trouble", sentence))
    notes += [Note("watch", f"The start found: {each}.") for each in found.found_at_start]
    if found.verified_percent < 100:
        how_far = f"It is being looked for: {found.verified_percent} % of the log are through."
    elif found.verified_ms:
        how_far = "All that the start found was looked through for it."
    else:
        how_far = "Nothing was looked through for it since the start: the log was empty, or it is"
        how_far += " off (scrubEnable)."
    if not found.damaged_places and not found.damaged_tables:
        notes.insert(0, Note("fine", "Nothing that is known is damaged."))
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
        about = "" if len(places) == found.damaged_places else f"The first {len(places)}."
        parts.append(RowTable("damaged_places", "Damaged places of the log", places, about=about))
    return parts


def _settings(
    asked: PageRequest, address: str, settings: CommandResult[Properties], is_ours: bool
) -> list[Part]:
    values = settings.found[0].values if settings.found else {}
    known = broker_settings()
    wanted, which = asked.text("filter").casefold(), asked.text("which") or "all"
    rows = [
        _setting_row(asked, address, name, value, known.get(name), is_ours)
        for name, value in values.items()
        if _is_wanted(name, value, known.get(name), wanted, which)
    ]
    about = (
        "The words are those of conf/broker.conf."
        if is_ours
        else "The words are those of conf/broker.conf, for the keys that both kinds have:"
        " what they mean at ours."
    )
    inputs = [
        Input("address", "", "hidden", address),
        Input("filter", "Name or meaning holds", value=asked.text("filter")),
        Input("which", "Which", "choice", which, WHICH),
    ]
    nothing = "It says no settings." if not values else "There are no such settings."
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
        parts.append(Form("Change a setting", "/change/setting", change, "Show", True, True))
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
        "default": None if meaning is None else meaning.default or None,
        "holds": holds,
        "means": None if meaning is None else meaning.words or None,
    }
