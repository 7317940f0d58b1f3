"""Dead letters are sent to their topics once, through kills at any moment, by a real broker."""

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from protocol.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, UNIQ_KEY
from tests.support.unreadable import send_unreadable
from tests.troupemq.client.copies import (
    BEFORE_A_COMMIT,
    BEFORE_A_SEND,
    TOPIC,
    copies,
    kill_runs,
    lose_answers,
)
from troupemq import redrive as redriving
from troupemq.cli import cli
from troupemq.client.admin import Admin
from troupemq.client.admin.flows import AdminFlows
from troupemq.client.admin.life import REDRIVE_MARK as MARK
from troupemq.client.admin.operations import operation
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import BrokerError, ClientError, MessageIllegal, RouteNotFound
from troupemq.client.message import Message, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.redrive import Redrive, Redriven, discard, redrive_some, to_discard
from troupemq.testing import LocalBroker

GROUP, DEAD = "billing", 12


@pytest.fixture
def namesrv(local_broker: LocalBroker) -> str:
    """With twelve dead letters of the topic Orders, and one that does not say where it is from."""
    address, admin = local_broker.namesrv, local_broker.admin
    admin.create_topic(TOPIC, 2)
    with Producer("any", address) as producer:
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


def some(namesrv: str, *ids: str, believes: bool = False) -> Redriven:
    done = Redriven()
    for each in redrive_some(GROUP, namesrv, ids, believes=believes):
        assert isinstance(each, Redriven), each
        done = done.plus(each)
    return done


def orders(namesrv: str) -> list[MessageView]:
    return sorted(copies(namesrv), key=lambda view: int(view.body))


def test_dead_letters_return_to_their_original_topic(namesrv: str) -> None:
    done = redrive(namesrv).run()
    assert (done.sent, done.found, done.without_origin) == (DEAD, 0, 1)
    found = orders(namesrv)
    assert [view.body for view in found] == [b"%d" % number for number in range(DEAD)]
    assert (found[3].tags, found[3].keys[0], found[3].properties["own"]) == ("new", "key3", "x")
    assert found[3].keys[1].startswith(MARK)
    again = redrive(namesrv).run()
    assert (again.sent, again.found) == (0, 0)


@pytest.mark.parametrize("where", [BEFORE_A_SEND, BEFORE_A_COMMIT])
def test_a_killed_run_continues_and_sends_nothing_twice(namesrv: str, where: str) -> None:
    kill_runs(lambda wait: redrive(namesrv, wait).run(), where)
    done = redrive(namesrv).run()
    assert done.found == (1 if where == BEFORE_A_COMMIT else 0)
    assert [view.body for view in orders(namesrv)] == [b"%d" % number for number in range(DEAD)]


def test_an_unanswered_send_is_looked_up_before_a_retry(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(monkeypatch)
    assert redrive(namesrv).run().sent == DEAD
    assert len(orders(namesrv)) == DEAD


def test_chosen_dead_letters_are_sent_once_and_the_progress_stays(namesrv: str) -> None:
    chosen = [view.offset_message_id for view in letters(namesrv)][2:5]
    assert some(namesrv, *chosen) == Redriven(sent=3)
    assert some(namesrv, *chosen) == Redriven(found=3)
    (failure,) = redrive_some(GROUP, namesrv, [orders(namesrv)[0].offset_message_id])
    assert "is not a dead letter of billing" in str(failure)
    done = redrive(namesrv).run()
    assert (done.sent, done.found) == (DEAD - 3, 3), "nor again by a run over all"


def test_a_foreign_message_with_the_mark_of_a_copy_stops_no_redrive(namesrv: str) -> None:
    """Formerly a producer of the topic kept dead letters of any group from being sent again."""
    chosen = letters(namesrv)[2:5]
    with Producer("any", namesrv) as producer:
        for view in chosen:
            mark = MARK + view.offset_message_id
            producer.send(Message(TOPIC, b"-1", keys=mark))
            producer.send(Message(TOPIC, view.body, "old", mark, {"own": "x"}))
    assert some(namesrv, chosen[0].offset_message_id) == Redriven(sent=1)
    done = redrive(namesrv).run()
    assert (done.sent, done.found) == (DEAD - 1, 1)
    assert len(orders(namesrv)) == DEAD + 2 * len(chosen)


def test_unreadable_dead_letter_is_named(local_broker: LocalBroker, namesrv: str) -> None:
    send_unreadable(local_broker, f"%DLQ%{GROUP}", RETRY_TOPIC="Orders")
    named = letters(namesrv)[-1].offset_message_id
    (failure,) = redrive_some(GROUP, namesrv, [named])
    assert f"{named} cannot be sent again: " in str(failure)
    with pytest.raises(MessageIllegal, match=named):
        redrive(namesrv).run()
    assert len(orders(namesrv)) == DEAD, "those before it are sent"


def test_discarded_dead_letters_are_passed_over_and_stay_stored(namesrv: str) -> None:
    found = letters(namesrv)
    with Admin(namesrv) as admin:
        chosen = [found[1].offset_message_id, found[3].offset_message_id]
        (plan,) = to_discard(admin, GROUP, chosen)
        assert (plan.offset_before, plan.offset, plan.discarded) == (0, 4, 4)
        assert to_discard(admin, GROUP, chosen) == [plan], "a plan changes nothing"
        assert list(discard(admin, GROUP, chosen)) == [plan]
        (again,) = discard(admin, GROUP, chosen)
        assert again.discarded == 0 and again.offset == 4, "never back"
        done = redrive(namesrv).run()
        assert done.sent == DEAD - 4 and len(letters(namesrv)) == DEAD + 1
        (rest,) = to_discard(admin, GROUP)
        assert rest.discarded == 0
        with pytest.raises(ClientError):
            to_discard(admin, "absent")


def test_the_command_sends_or_discards_the_ids_that_it_gets(namesrv: str) -> None:
    chosen = [view.offset_message_id for view in letters(namesrv)][4:6]
    ids = [word for each in chosen for word in ("--id", each)]
    words = ["job", "redrive", GROUP, "-n", namesrv, *ids]
    sent = CliRunner().invoke(cli, words)
    assert "2 dead letters of billing were sent" in sent.output
    gone = CliRunner().invoke(cli, [*words, "--discard"])
    assert gone.output.startswith("6 dead letters of billing in ")
    bad = CliRunner().invoke(cli, [*words[:-1], orders(namesrv)[0].offset_message_id])
    assert bad.exit_code == 1 and "is not a dead letter of billing" in bad.output


def test_a_dead_letter_of_a_timer_is_sent_without_waiting_again(namesrv: str) -> None:
    dead = Message(
        f"%DLQ%{GROUP}",
        b"99",
        properties={"own": "x"},
        system_properties={RETRY_TOPIC: "Orders", "TIMER_DELIVER_MS": "1", "TIMER_OUT_MS": "1"},
    )
    with Producer("any", namesrv) as producer:
        producer.send(dead)
    redrive(namesrv).run()
    found = orders(namesrv)[-1]
    assert (found.body, found.properties["own"]) == (b"99", "x")
    assert not any(name.startswith("TIMER_") for name in found.properties)


def test_expired_dead_letters_are_not_waited_for(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly a group whose dead letters had all expired made every redrive fail."""
    monkeypatch.setattr(Admin, "offsets", lambda _, queue: (99, 99))
    monkeypatch.setattr(redriving, "SILENT_POLLS_MAX", 0)
    assert redrive(namesrv).run() == Redriven()


def test_a_group_without_dead_letters_is_a_one_sentence_error(namesrv: str) -> None:
    with pytest.raises(
        RouteNotFound, match=r"topic %DLQ%absent not found: the group has no dead letters"
    ):
        Redrive("absent", namesrv, rate=1, wait=bool).run()


def test_with_accounts_a_forged_origin_moves_nothing(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly a forged dead letter was moved into any topic by the next redrive."""
    monkeypatch.setattr(AdminFlows, "has_accounts", has_accounts)
    forged = [view.offset_message_id for view in letters(namesrv)]
    assert some(namesrv, forged[0]).without_original == 1
    done = redrive(namesrv).run()
    assert (done.sent, done.without_original, done.without_origin) == (0, DEAD, 1)
    assert orders(namesrv) == []
    assert some(namesrv, forged[0], believes=True).sent == 1, "an operator's word"


def test_with_accounts_the_original_message_is_sent_again(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdminFlows, "has_accounts", has_accounts)
    dead, elsewhere = f"%DLQ%{GROUP}", "00" * 15 + "01"
    with Producer("any", namesrv) as producer:
        first = producer.send(Message("Orders", b"100", "new", "key", {"own": "x"}))
        second = producer.send(Message("Orders", b"200"))
        for body, origin, unique in (
            (b"100", first.offset_message_id, "FF"),
            (b"999", first.offset_message_id, "FE"),
            (b"200", elsewhere, second.message_id),
        ):
            own = {RETRY_TOPIC: "Orders", ORIGIN_MESSAGE_ID: origin, UNIQ_KEY: unique}
            producer.send(Message(dead, body, "forged", system_properties=own))
    done = redrive(namesrv).run()
    assert (done.sent, done.without_original) == (2, DEAD + 1)
    sent = [view for view in orders(namesrv) if any(each.startswith(MARK) for each in view.keys)]
    assert [view.body for view in sent] == [b"100", b"200"]
    assert (sent[0].tags, sent[0].properties["own"]) == ("new", "x"), "as it was, not as is said"


def test_only_a_broker_that_reports_it_counts_as_without_accounts(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(namesrv) as admin:
        assert not admin.has_accounts("Orders")

        async def enabled(address: str) -> dict[str, str]:
            return {"aclEnable": "true"}

        monkeypatch.setattr(admin._flows, "settings_at", enabled)
        assert admin.has_accounts("Orders")

        async def refuse(address: str) -> None:
            raise BrokerError(16, "shop-account may not", address)

        monkeypatch.setattr(admin._flows, "settings_at", refuse)
        assert admin.has_accounts("Orders")


@operation
async def has_accounts(admin: AdminFlows, topic: str) -> bool:
    return True


def letters(namesrv: str) -> list[MessageView]:
    with Admin(namesrv) as admin:
        (queue,) = admin.queues(f"%DLQ%{GROUP}")
        begin, end = admin.offsets(queue)
        with PullConsumer("looker", namesrv, auto_commit=False) as consumer:
            consumer.assign([queue])
            consumer.seek_to_begin(queue)
            found: list[MessageView] = []
            while len(found) < end - begin:
                found += consumer.poll(5000)
    return found


def test_a_retry_is_not_sent_to_an_unverified_topic(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdminFlows, "has_accounts", has_accounts)
    retries = f"%RETRY%{GROUP}"
    with Admin(namesrv) as admin, Producer("any", namesrv) as producer:
        admin.create_topic(retries, 1)
        own = {RETRY_TOPIC: "Orders"}
        sent = producer.send(Message(retries, b"made up", system_properties=own))
    with Admin(namesrv) as admin, pytest.raises(ClientError, match="has that message there: it is"):
        admin.send_again(admin.find_message(sent.offset_message_id))
    assert orders(namesrv) == []
