"""Dead letters are sent to their topics once, through kills at any moment, by a real broker."""

from collections.abc import Callable

import pytest

from protocol.properties import RETRY_TOPIC
from tests.troupemq.client.copies import (
    BEFORE_A_COMMIT,
    BEFORE_A_SEND,
    copies,
    kill_runs,
    lose_answers,
    with_topic,
)
from troupemq.client.admin import Admin
from troupemq.client.errors import RouteNotFound
from troupemq.client.message import Message, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.redrive import MARK, Redrive
from troupemq.servers import Servers

GROUP, DEAD = "billing", 12


@pytest.fixture
def namesrv(servers: Servers) -> str:
    """With twelve dead letters of the topic Orders, and one that does not say where it is from."""
    address = with_topic(servers)
    with Admin(address) as admin, Producer("any", address) as producer:
        admin.create_topic(f"%DLQ%{GROUP}", 1)
        for number in range(DEAD):
            producer.send(
                Message(
                    f"%DLQ%{GROUP}",
                    b"%d" % number,
                    "new",
                    f"key{number}",
                    {"own": "x"},
                    system_properties={RETRY_TOPIC: "Orders"},
                )
            )
        producer.send(Message(f"%DLQ%{GROUP}", b"from nowhere"))
    return address


def redrive(namesrv: str, wait: Callable[[float], object] = bool) -> Redrive:
    return Redrive(GROUP, namesrv, rate=10_000, wait=wait)


def orders(namesrv: str) -> list[MessageView]:
    return sorted(copies(namesrv), key=lambda view: int(view.body))


def test_dead_letters_go_to_where_they_came_from(namesrv: str) -> None:
    done = redrive(namesrv).run()
    assert (done.sent, done.found, done.without_origin) == (DEAD, 0, 1)
    found = orders(namesrv)
    assert [view.body for view in found] == [b"%d" % number for number in range(DEAD)]
    assert (found[3].tags, found[3].keys[0], found[3].properties["own"]) == ("new", "key3", "x")
    assert found[3].keys[1].startswith(MARK)
    again = redrive(namesrv).run()
    assert (again.sent, again.found) == (0, 0)


@pytest.mark.parametrize("where", [BEFORE_A_SEND, BEFORE_A_COMMIT])
def test_a_run_that_is_killed_goes_on_and_sends_nothing_twice(namesrv: str, where: str) -> None:
    kill_runs(lambda wait: redrive(namesrv, wait).run(), where)
    done = redrive(namesrv).run()
    assert done.found == (1 if where == BEFORE_A_COMMIT else 0)
    assert [view.body for view in orders(namesrv)] == [b"%d" % number for number in range(DEAD)]


def test_a_send_without_an_answer_is_looked_up_before_it_is_tried_again(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(monkeypatch)
    assert redrive(namesrv).run().sent == DEAD
    assert len(orders(namesrv)) == DEAD


def test_a_group_without_dead_letters_is_one_sentence(namesrv: str) -> None:
    with pytest.raises(RouteNotFound, match=r"no topic %DLQ%nobody: the group has no dead letters"):
        Redrive("nobody", namesrv, rate=1, wait=bool).run()
