"""docs/backup.md, followed: its commands in their order, on a broker that takes sends meanwhile."""

import json
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.compat.patience import wait_until
from tests.manual.following import blocks, commands, run
from troupemq import Message, Producer, doctor
from troupemq.cli.servers import SMALL_FILES
from troupemq.jobs_python import JobsPython
from troupemq.servers import Servers

PAGE = "backup.md"


class Sender(Thread):
    """Sends until it is told to end."""

    def __init__(self, over: Event) -> None:
        super().__init__()
        self._over = over
        self.sent: list[str] = []

    def run(self) -> None:
        with Producer("shop") as producer:
            while not self._over.is_set():
                body = b"%d" % len(self.sent)
                producer.send(Message("Orders", body))
                self.sent.append(body.decode())


def bodies_in(store: Path) -> set[str]:
    """Return the bodies of the messages in a log, read by `store dump`."""
    printed = run("troupemq", "store", "dump", str(store / "commitlog" / ("0" * 20)), "--json")
    found = map(json.loads, printed.splitlines())
    return {str(each["body"]) for each in found if each["kind"] == "record"}


@pytest.mark.heavy
def test_the_commands_of_the_page_do_what_it_describes(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "find_java", lambda *_, **__: "/opt/java")  # which it starts
    monkeypatch.setattr(doctor, "find_jobs_python", lambda _: JobsPython("/opt/python", "CPython"))
    (tmp_path / "acl").mkdir()
    (tmp_path / "acl" / "plain_acl.yml").write_text("accounts: []\n")
    settings = {**SMALL_FILES, "listenPort": "0"}
    (tmp_path / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
    first, again, restoring = blocks(PAGE)
    over = Event()
    sender = Sender(over)
    sender.start()
    try:
        wait_until(lambda: len(sender.sent) > 20, "some messages")
        before = set(sender.sent)
        printed = [run(*words) for words in commands(first)]
        assert "is in copies/store" in printed[0] and "no faults found" in printed[1]
        assert before <= bodies_in(Path("copies/store"))
        later = set(sender.sent)
        (words,) = commands(again)
        run(*words)
        assert Path("copies/store/also/acl/plain_acl.yml").stat().st_mode & 0o777 == 0o600
    finally:
        over.set()
        sender.join()
    printed = [run(*words) for words in commands(restoring)]
    assert "as of 2" in printed[0] and "no faults found" in printed[1]
    assert not [line for line in printed[2].splitlines() if line.startswith("refused")]
    assert later <= bodies_in(Path("data/restored"))
