"""Dead letters are sent to their topics once, through kills at any moment, by a real broker."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from protocol.properties import RETRY_TOPIC
from troupemq.client.admin import Admin
from troupemq.client.errors import ClientError, RouteNotFound
from troupemq.client.message import Message, MessageQueue, MessageView
from troupemq.client.producer import Producer
from troupemq.client.pull_consumer import PullConsumer
from troupemq.redrive import MARK, Redrive
from troupemq.servers import Servers

GROUP, DEAD = "billing", 12
COMMIT = PullConsumer.commit


@pytest.fixture
def namesrv(servers: Servers) -> str:
    """With twelve dead letters of the topic Orders, and one that does not say where it is from."""
    address = f"127.0.0.1:{servers.ports['namesrv']}"
    with Admin(address) as admin, Producer("any", address) as producer:
        registered = False
        while not registered:  # the broker does that in its own time
            with suppress(RouteNotFound):
                admin.create_topic("Orders", 2)
                registered = True
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


class Killed(BaseException):
    """In the place of a kill: nothing below may catch it."""


def redrive(namesrv: str, wait: Callable[[float], object] = bool) -> Redrive:
    return Redrive(GROUP, namesrv, rate=10_000, wait=wait)


def orders(namesrv: str) -> list[MessageView]:
    with Admin(namesrv) as admin:
        ends = {queue: admin.offsets(queue)[1] for queue in admin.queues("Orders")}
        with PullConsumer("readers", namesrv, auto_commit=False) as consumer:
            consumer.assign(ends)
            for queue in ends:
                consumer.seek_to_begin(queue)
            found: list[MessageView] = []
            while len(found) < sum(ends.values()):
                found += consumer.poll(5000)
    return sorted(found, key=lambda view: int(view.body))


def test_dead_letters_go_to_where_they_came_from(namesrv: str) -> None:
    done = redrive(namesrv).run()
    assert (done.sent, done.found, done.without_origin) == (DEAD, 0, 1)
    found = orders(namesrv)
    assert [view.body for view in found] == [b"%d" % number for number in range(DEAD)]
    assert (found[3].tags, found[3].keys[0], found[3].properties["own"]) == ("new", "key3", "x")
    assert found[3].keys[1].startswith(MARK)
    again = redrive(namesrv).run()
    assert (again.sent, again.found) == (0, 0)


@pytest.mark.parametrize("where", ["before a send", "before a commit"])
def test_a_run_that_is_killed_goes_on_and_sends_nothing_twice(
    namesrv: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kill_at in (1, 4, 2):
        count = 0

        def kill(*given: object, at: int = kill_at) -> None:
            nonlocal count
            count += 1
            if count > at:
                raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            if where == "before a send":
                redrive(namesrv, kill).run()
            else:

                def slain(
                    self: PullConsumer, offsets: dict[MessageQueue, int], dies: Any = kill
                ) -> None:
                    dies()
                    COMMIT(self, offsets)

                patch.setattr(PullConsumer, "commit", slain)
                redrive(namesrv).run()
    done = redrive(namesrv).run()
    assert done.found == (1 if where == "before a commit" else 0)
    assert [view.body for view in orders(namesrv)] == [b"%d" % number for number in range(DEAD)]


def test_a_send_without_an_answer_is_looked_up_before_it_is_tried_again(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, failures = Producer.send, [True, False, True]

    def loses_answers(self: Producer, *given: object, **more: object) -> object:
        result = send(self, *given, **more)  # type: ignore[arg-type]
        if failures and failures.pop():
            raise ClientError("no answer")
        return result

    monkeypatch.setattr(Producer, "send", loses_answers)
    assert redrive(namesrv).run().sent == DEAD
    assert len(orders(namesrv)) == DEAD


def test_a_group_without_dead_letters_is_one_sentence(namesrv: str) -> None:
    with pytest.raises(RouteNotFound, match=r"no topic %DLQ%nobody: the group has no dead letters"):
        Redrive("nobody", namesrv, rate=1, wait=bool).run()
