"""Settings of a broker with their meanings, values in plain words, and how to change them.

Meanings are those of TroupeMQ, which agree with RocketMQ for keys of both.
"""

from troupemq.console.asking import PageRequest, failures_of
from troupemq.console.changes import change_link
from troupemq.console.parts import Cells, Form, Input, Part, RowTable
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
