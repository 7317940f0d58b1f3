"""Pages of brokers: the list, and one broker with actors, store, damage and settings.

Only TroupeMQ brokers report actors and damage. Meanings of settings are those of TroupeMQ, which
agree with RocketMQ for keys of both.
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
)
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot
from troupemq.setting_meanings import SettingMeaning, broker_settings

WHICH = ("all", "changed", "live")
_STATES = ("down", "up", "not started")
NO_ACTORS = "This broker reports no actors, because it is a RocketMQ broker."
NO_DAMAGE = "This broker reports no damage, because RocketMQ brokers do not look for it."


@page("/brokers")
def brokers(asked: PageRequest) -> Page:
    now = asked.snapshot()
    rows = [broker_row(each) for each in now.brokers]
    names = ({key: row[key] for key in ("broker", "role")} for row in rows)
    work = [{**name, **_work(each)} for name, each in zip(names, now.brokers, strict=True)]
    return Page(
        "Brokers",
        [
            RowTable("brokers", "", rows, NO_BROKERS),
            *([RowTable("work", "Load and uptime", work)] if work else []),
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
    page.parts.append(Links([Link("Connected producers", "/producers", {"broker": address})]))
    page.parts += _relatives(now, state)
    is_ours, actors = _actors(asked, address)
    page.parts += actors
    page.parts += _store(state, is_ours)
    page.parts += _settings(asked, address, settings, is_ours)
    page.parts.append(
        Facts("figures", "All runtime figures", dict(sorted(state.says.items())), True, True)
    )
    return page


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


def _actors(asked: PageRequest, address: str) -> tuple[bool, list[Part]]:
    """Return whether it is a TroupeMQ broker, and its actors, those with problems first."""
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
    notes = [Note("fine", f"The inboxes of {len(lines)} actors hold {waiting:,} messages.")]
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
    return True, [Notes("loop", "Actors", notes), RowTable("actors", "", rows)]


def _state(actor: ActorLine) -> str:
    if actor.is_up:
        return "up"
    return "down" if actor.handled else "not started"


def _store(state: BrokerSummary, is_ours: bool) -> list[Part]:
    """Return the state of the store; TroupeMQ brokers also report damage."""
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
        "Meanings are those of conf/broker.conf."
        if is_ours
        else "Meanings are those of TroupeMQ's conf/broker.conf, for keys of both brokers."
    )
    inputs = [
        Input("address", "", "hidden", address),
        Input("filter", "Name or meaning contains", value=asked.text("filter")),
        Input("which", "Settings", "choice", which, WHICH),
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
        "default": None if meaning is None else meaning.default or None,
        "holds": holds,
        "means": None if meaning is None else meaning.words or None,
    }
