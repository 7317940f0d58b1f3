"""Names of topics and groups: offered while one types, and checked before a preview."""

from collections.abc import Collection, Iterable

from troupemq.console.snapshot import ClusterSnapshot

OFFERED_MAX = 20
NEAR_MAX = 3
NEAR_CHARS = 4
"""Characters at the start that a similar name shares."""

TOPICS, GROUPS = "topics", "groups"
_SPECIAL = "%"
"""First character of retry topics and dead-letter queues."""


def known_names(now: ClusterSnapshot, kind: str) -> Collection[str] | None:
    """Return all names of a kind; None for an unknown kind."""
    match kind:
        case "topics":
            return now.topics.keys()
        case "groups":
            return now.groups.keys()
    return None


def offered(names: Iterable[str], typed: str) -> list[str]:
    """Return at most OFFERED_MAX names that contain a text, those that begin with it first.

    Retry topics and dead-letter queues are offered only to a text that begins like them.
    """
    folded = typed.casefold()
    is_special = folded.startswith(_SPECIAL)
    found = [
        (not lowered.startswith(folded), name)
        for name in names
        if folded in (lowered := name.casefold()) and (is_special or name[:1] != _SPECIAL)
    ]
    return [name for _, name in sorted(found)[:OFFERED_MAX]]


def missing_name(now: ClusterSnapshot, kind: str, name: str) -> str:
    """Return why a name is rejected as unknown, with similar names; empty for a known one.

    A name is also accepted if a broker did not answer, because that broker may have it.
    """
    names = known_names(now, kind)
    if names is None or not name or name in names or now.missing or not now.brokers:
        return ""
    noun = "Topic" if kind == TOPICS else "Group"
    sentence = f"{noun} {name} not found at any broker"
    near = _near(names, name)
    return f"{sentence}: did you mean {' or '.join(near)}?" if near else sentence


def _near(names: Iterable[str], name: str) -> list[str]:
    """Return names that differ in case, are contained, or begin with the same characters."""
    folded = name.casefold()
    begin = folded[:NEAR_CHARS]
    found = []
    for each in names:
        lowered = each.casefold()
        if lowered == folded:
            found.append((0, each))
        elif folded in lowered or lowered in folded:
            found.append((1, each))
        elif lowered.startswith(begin):
            found.append((2, each))
    return [each for _, each in sorted(found)[:NEAR_MAX]]
