"""Sessions end, and delays after wrong passwords grow."""

from troupemq.console.sessions import (
    FAILURES_MAX,
    FREE_TRIES,
    IDLE_S,
    LIFE_S,
    SESSIONS_MAX,
    SESSIONS_OF_USER_MAX,
    WAIT_S_MAX,
    Sessions,
    Throttle,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_session_ends_when_idle_and_at_its_maximum_age() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    idle, used = sessions.begin("a"), sessions.begin("a")
    begun_s = clock.now_s
    while clock.now_s - begun_s <= LIFE_S - IDLE_S:
        clock.now_s += IDLE_S - 1
        assert sessions.find(used) is not None
    assert sessions.find(idle) is None
    clock.now_s = begun_s + LIFE_S + 1
    assert sessions.find(used) is None


def test_an_ended_session_rejects_its_cookie() -> None:
    sessions = Sessions()
    one, other, anothers = sessions.begin("a"), sessions.begin("a"), sessions.begin("b")
    sessions.end(one)
    assert sessions.find(one) is None and sessions.find(other) is not None
    sessions.end_of("a")
    assert sessions.find(other) is None and sessions.find(anothers) is not None


def test_a_form_of_another_session_is_not_accepted() -> None:
    sessions = Sessions()
    one, other = (sessions.find(sessions.begin("a")) for _ in range(2))
    assert one is not None and other is not None
    assert one.accepts(one.csrf)
    assert not one.accepts(other.csrf) and not one.accepts("") and not one.accepts("ü")


def test_over_the_limit_the_oldest_session_ends() -> None:
    sessions = Sessions()
    first, *others = [sessions.begin(f"user {number}") for number in range(SESSIONS_MAX + 1)]
    assert sessions.find(first) is None
    assert all(sessions.find(each) is not None for each in others)


def test_logins_of_one_user_end_no_session_of_another() -> None:
    """Formerly a viewer ended the sessions of all others by a thousand logins."""
    sessions = Sessions()
    anothers = sessions.begin("admin")
    own = [sessions.begin("viewer") for _ in range(SESSIONS_MAX)]
    assert sessions.find(anothers) is not None
    kept = [each for each in own if sessions.find(each) is not None]
    assert kept == own[-SESSIONS_OF_USER_MAX:]


def test_guessing_is_slowed_per_name_and_per_address() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    waits = []
    for _ in range(20):
        waits.append(throttle.wait_s("a", "1.1.1.1"))
        clock.now_s += waits[-1]
        throttle.failed("a", "1.1.1.1")
    assert waits[:FREE_TRIES] == [0.0] * FREE_TRIES
    assert waits[FREE_TRIES:8] == [1.0, 2.0, 4.0, 8.0, 16.0] and waits[-1] == WAIT_S_MAX
    assert throttle.wait_s("a", "2.2.2.2") > 0 and throttle.wait_s("b", "1.1.1.1") > 0
    assert throttle.wait_s("b", "2.2.2.2") == 0
    throttle.succeeded("a", "1.1.1.1")
    assert throttle.wait_s("a", "1.1.1.1") == 0


def test_addresses_of_one_ipv6_network_are_slowed_together() -> None:
    """Formerly each of its 2 to the power of 64 addresses had tries of its own."""
    throttle = Throttle(Clock())
    for number in range(FREE_TRIES):
        throttle.failed(f"name {number}", f"2001:db8::{number}")
    assert throttle.wait_s("another", "2001:db8::ffff") > 0
    assert throttle.wait_s("another", "2001:db8:0:1::1") == 0


def test_failed_logins_of_many_names_take_bounded_memory() -> None:
    throttle = Throttle()
    for number in range(FAILURES_MAX + 5000):
        throttle.failed(f"name {number}", f"address {number}")
    assert len(throttle._failures) == FAILURES_MAX
