"""The Python of the documents runs as it stands, against a name server and a broker of ours."""

import re
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from protocol.topic_names import SCHEDULE_TOPIC
from tests.compat.patience import wait_until
from tests.test_docs import ROOT
from tests.troupemq.client import lagging_topics
from tests.troupemq.client.lagging_topics import print_lag
from tests.troupemq.fake_server import WAIT_S
from troupemq import Admin, Message, Producer, PullConsumer
from troupemq.cli.admin.command import COMMANDS

ADDRESSES = "10.0.0.1:9876;10.0.0.2:9876"


class Accounts:
    """The application that the examples talk of."""

    def __init__(self, tell: Callable[[object], None]) -> None:
        self._tell = tell

    def pay(self, key: str, transaction_id: str) -> None:
        self._tell(key)

    def book(self, key: str, body: bytes) -> None:
        self._tell((key, body))


def examples(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def run(namesrv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Runs one; gives what it printed, or told the application, while it waited for Enter."""
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    monkeypatch.chdir(tmp_path)

    def run(code: str) -> object:
        told: SimpleQueue[object] = SimpleQueue()
        waited: list[object] = []
        names: dict[str, Any] = {
            "accounts": Accounts(told.put),
            "print": told.put,
            "input": lambda prompt: waited.append(told.get(timeout=WAIT_S)),
        }
        exec(code.replace(ADDRESSES, namesrv), names)
        return waited[0] if waited else None if told.empty() else told.get()

    return run


def test_the_examples_of_the_readme(run: Callable[[str], object]) -> None:
    (example,) = examples("README.md")
    assert run(example) == b"one book"


@pytest.mark.heavy
def test_the_examples_of_sending(run: Callable[[str], object], namesrv: str) -> None:
    sends, later, transaction, request = examples("docs/sending.md")
    with Admin(namesrv) as admin:
        run(sends)
        wait_until(lambda: admin.message_count("Orders") == 1002, "all of them")
        run(later)
        assert admin.message_count(SCHEDULE_TOPIC) >= 1
        wait_until(lambda: admin.message_count("Reminders") == 3, "their time")
        assert run(transaction) == "order-1"
        wait_until(lambda: admin.message_count("Paid") == 1, "its commit, which is not confirmed")
    assert run(request) == b"42"


def test_the_examples_of_administering(namesrv: str, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = examples("docs/administering.md")
    assert example == Path(lagging_topics.__file__).read_text(encoding="utf-8"), (
        "mypy sees the file"
    )
    with Producer("shop", namesrv) as producer:
        producer.send(Message("Late", b"one book"))
    with PullConsumer("late", namesrv, auto_commit=False) as late:
        late.commit(dict.fromkeys(late.fetch_queues("Late"), 0))
    with Admin(namesrv) as admin:
        wait_until(lambda: sum(each.lag for each in admin.group_progress("late")) == 1, "its lag")
    assert print_lag(namesrv)
    assert "Late late: 1 behind" in capsys.readouterr().out


def test_each_admin_command_has_a_method_in_the_document() -> None:
    text = (ROOT / "docs/administering.md").read_text(encoding="utf-8")
    table = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
    commands, methods = ({each for row in table for each in names(row[n])} for n in (0, 1))
    assert commands == COMMANDS.keys()
    assert [each for each in methods if not callable(getattr(Admin, each, None))] == []


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_examples_of_consuming(run: Callable[[str], object], namesrv: str) -> None:
    one_by_one, idempotent = examples("docs/consuming.md")
    with Producer("shop", namesrv) as producer:
        producer.send(Message("Orders", b"one book", tags="paid", keys="order-1"))
    for example in (one_by_one, idempotent):
        assert run(example) == ("order-1", b"one book")
