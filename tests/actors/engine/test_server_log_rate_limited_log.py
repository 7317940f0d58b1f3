"""Tests of actors/engine/server_log.py: peers cause few lines, and no event is lost."""

from structlog.testing import capture_logs

from actors.engine.server_log import (
    KINDS_MAX,
    MINUTE_MS,
    NAMES_MAX,
    TEXT_CHARS_MAX,
    RateLimitedLog,
)


class Told:
    """Rate limiter with a clock that tests set."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.rarely = RateLimitedLog(lambda: self.now_ms)


def test_the_first_warning_is_immediate_and_others_are_one_line_a_minute() -> None:
    made = Told()
    with capture_logs() as logs:
        for number in range(50):
            made.rarely.warn("refused", peer=f"peer-{number}")
        made.rarely.warn("something else")
        made.now_ms = MINUTE_MS
        made.rarely.warn("refused", peer="the last")
        made.rarely.warn("refused", peer="in the next minute")
    assert [(each["event"], each.get("peer"), each["times"]) for each in logs] == [
        ("refused", "peer-0", 1),
        ("something else", None, 1),
        ("refused", "the last", 50),
    ]
    assert {each["log_level"] for each in logs} == {"warning"}


def test_pending_repetitions_are_logged_without_a_further_event() -> None:
    made = Told()
    with capture_logs() as logs:
        for number in range(3):
            made.rarely.warn("refused", peer=f"peer-{number}")
        made.now_ms = MINUTE_MS - 1
        made.rarely.tell_rest()
        assert len(logs) == 1
        made.now_ms = MINUTE_MS
        made.rarely.tell_rest()
        made.now_ms *= 10
        made.rarely.tell_rest()
    assert [(each["peer"], each["times"]) for each in logs] == [("peer-0", 1), ("peer-2", 2)]
    assert made.rarely._kinds == {}, "what is quiet is forgotten"


def test_names_are_listed_up_to_the_line_limit() -> None:
    made = Told()
    with capture_logs() as logs:
        made.rarely.warn("gone", names=[])
        made.rarely.warn("gone", names=["a"])
        made.rarely.warn("gone", names=["b", "c"])
        made.rarely.warn("gone", names=[f"d{n}" for n in range(100)])
        made.now_ms = MINUTE_MS
        made.rarely.tell_rest()
    first, rest = logs
    assert (first["names"], first["times"]) == (["a"], 1)
    assert rest["names"] == ["b", "c", *(f"d{n}" for n in range(NAMES_MAX - 2))]
    assert rest["times"] == 102


def test_one_event_of_two_accounts_is_two_kinds() -> None:
    made = Told()
    with capture_logs() as logs:
        for account in ("a", "b", "a"):
            made.rarely.warn("refused", of=account, account=account)
    assert [each["account"] for each in logs] == ["a", "b"]


def test_any_number_of_warning_kinds_takes_bounded_memory() -> None:
    made = Told()
    with capture_logs() as logs:
        for number in range(5 * KINDS_MAX):
            made.rarely.warn("refused", of=number, why="x" * 10_000, names=["y" * 10_000])
    assert len(logs) == len(made.rarely._kinds) == KINDS_MAX + 1
    kinds = made.rarely._kinds.values()
    for kind in kinds:
        assert all(len(str(text)) <= TEXT_CHARS_MAX for text in kind.fields.values())
        assert len(kind.names) <= NAMES_MAX and all(len(x) <= TEXT_CHARS_MAX for x in kind.names)
