"""docs/losses.md, followed line by line, but for a zone, which tests/system/test_zones.py loses."""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from actors.config import parse_broker_config, parse_namesrv_config
from tests.compat.patience import wait_until
from tests.compat.servers import free_port
from tests.manual.following import DOCS, HOST, ROOT, run, wait_for_registration
from tests.support.brokers import send_command
from tests.support.wire import Wire
from troupemq import Message, Producer, SendStatus
from troupemq.cli.servers import SMALL_FILES
from troupemq.client.errors import ClientError
from troupemq.servers import Servers

PAGE = (DOCS / "losses.md").read_text("utf-8")
TOPIC = "Orders"
SMALL = {**SMALL_FILES, "mappedFileSizeCommitLog": str(1 << 20)}

FOLLOWED = {
    "A name server": 2,
    "A broker's process": 3,
    "A master's machine": 2,
    "A zone, or the network between": 5,
    "Copies": 5,
}
"""Lines of each chapter: one more wants its test."""

HERE = "tests/manual/test_losses.py"
BY = {
    "A name server": [HERE, "tests/system/test_name_servers_gone.py"],
    "A broker's process": [
        "tests/system/test_kill.py",
        "tests/system/test_masters_kills.py",
        "tests/system/test_power_loss.py",
        "tests/system/test_receipt_kills.py",
        "tests/system/test_timer_kills.py",
    ],
    "A master's machine": [HERE, "tests/system/test_cluster_kills.py"],
    "A disk": [
        HERE,
        "tests/system/test_full_disk.py",
        "tests/troupemq/health/test_checks.py",
        "tests/troupemq/test_start_checks.py",
    ],
    "A zone, or the network between": [
        "tests/system/test_zones.py",
        "tests/system/test_partitions.py",
    ],
    "Copies": [
        HERE,
        "tests/manual/test_backup.py",
        "tests/system/test_backup.py",
        "tests/troupemq/client/test_redrive.py",
        "tests/troupemq/client/test_restore.py",
    ],
}
"""The tests that a chapter names."""


def chapters() -> dict[str, str]:
    found = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return {str(title): str(text) for title, text in found}


def test_each_chapter_has_exactly_the_commands_of_its_test() -> None:
    texts = chapters()
    assert texts.keys() == BY.keys()
    for title, text in texts.items():
        lines = re.findall(r"^\d\. ", text, re.MULTILINE)
        assert len(lines) == FOLLOWED.get(title, 0), title
        assert set(re.findall(r"`(tests/[\w/]+\.py)`", text)) == set(BY[title])


class Machines:
    """A name server, and brokers on stores of their own, all in this process."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.namesrv = ""

    def started(self) -> Servers:
        servers = Servers(lambda reason: None)
        self._stack.callback(servers.stop, 20)
        return servers

    def names(self, port: int, kv: str) -> Servers:
        servers = self.started()
        settings = {"listenPort": str(port), "bindAddress": HOST, "kvConfigPath": kv}
        servers.start_namesrv(parse_namesrv_config("", settings)[0])
        self.namesrv = f"{HOST}:{servers.ports['namesrv']}"
        return servers

    def broker(self, store: str, **settings: str) -> Servers:
        servers = self.started()
        here = {"bindAddress": HOST, "brokerIP1": HOST, "brokerIP2": HOST, "listenPort": "0"}
        own = {"namesrvAddr": self.namesrv, "brokerName": "broker-a", "storePathRootDir": store}
        broker, config, findings = parse_broker_config("", {**here, **own, **SMALL, **settings})
        assert not findings
        servers.start_broker(broker, config)
        wait_for_registration(servers)
        return servers


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield Machines(stack)


def test_a_name_server_is_lost(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    lost = machines.names(port, "kv.json")
    monkeypatch.setenv("NAMESRV_ADDR", machines.namesrv)
    order = ("troupemq", "admin", "updateOrderConf", "-t", TOPIC)
    machines.broker("store")
    run(*order, "-v", "broker-a:4", "-m", "put")
    shutil.copy("kv.json", "copy.json")
    with Producer("shop", machines.namesrv) as producer:
        producer.send(Message(TOPIC, b"before"))
        lost.stop(20)
        assert producer.send(Message(TOPIC, b"without")).status is SendStatus.OK
        with pytest.raises(ClientError):
            producer.send(Message("New", b"not found"))
    empty = machines.names(port, "empty.json")
    assert "broker-a" not in run(*order, "-m", "get")
    run(*order, "-v", "broker-a:4", "-m", "put")
    assert "broker-a:4" in run(*order, "-m", "get")
    empty.stop(20)
    machines.names(port, "copy.json")
    assert "broker-a:4" in run(*order, "-m", "get")


def test_the_page_says_when_to_restart_a_broker() -> None:
    assert "systemd, Kubernetes or `--masters` restarts it" in chapters()["A broker's process"]
    unit = (ROOT / "conf/deploy/systemd/troupemq-broker.service").read_text("utf-8")
    assert "\nRestart=on-failure\n" in unit
    for name in ("broker-masters", "broker-slaves"):
        text = (ROOT / f"conf/deploy/kubernetes/{name}.yaml").read_text("utf-8")
        assert "kind: StatefulSet" in text and "restartPolicy: Never" not in text


def of_promotion(number: int) -> dict[str, str]:
    """The settings that a step of `A master's store is gone` gives."""
    text = (DOCS / "operations.md").read_text("utf-8")
    assert "[A master's store is gone](operations.md#master-and-slave)" in PAGE
    steps = text.partition("**A master's store is gone.**")[2].partition("\n\nAn old master")[0]
    (step,) = re.findall(rf"^{number}\. (.*?)(?=^\d\. |\Z)", steps, re.MULTILINE | re.DOTALL)
    found = dict(re.findall(r"`(brokerRole|brokerId)=(\w+)`", step))
    if "make it a SLAVE" in step:
        found["brokerRole"] = "SLAVE"
    return found


@pytest.mark.heavy
def test_a_master_is_lost_with_its_disk(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.names(0, "kv.json")
    monkeypatch.setenv("NAMESRV_ADDR", machines.namesrv)
    master = machines.broker("master", brokerRole="SYNC_MASTER")
    slave = machines.broker("slave", brokerRole="SLAVE", brokerId="1")
    wait_until(lambda: is_followed(master), "the slave follows")
    assert "OK" in run("troupemq", "send", "-t", TOPIC, "-b", "acknowledged")
    master.stop(20)
    slave.stop(20)
    promoted = machines.broker("slave", **of_promotion(2))
    assert not is_followed(promoted), "its answer is SLAVE_NOT_AVAILABLE"
    shutil.rmtree("master")
    machines.broker("master", **of_promotion(3))
    wait_until(lambda: is_followed(promoted), "the new slave follows")
    printed = run("troupemq", "admin", "clusterList")
    rows = [line.split()[1:4] for line in printed.splitlines() if "broker-a" in line]
    new_master = f"{HOST}:{promoted.ports['broker']}"
    assert [row[1] for row in rows] == ["0", "1"] and rows[0][2] == new_master
    assert "acknowledged" in run("troupemq", "consume", "-t", TOPIC, "-g", "g", "--count", "1")


def is_followed(master: Servers) -> bool:
    """Whether a slave has what is sent now."""
    with Wire(f"{HOST}:{master.ports['broker']}") as wire:
        return wire.ask(send_command(b"try", topic="Try")).code == 0


def test_a_message_is_damaged_and_read_from_a_copy(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.names(0, "kv.json")
    monkeypatch.setenv("NAMESRV_ADDR", machines.namesrv)
    broker = machines.broker("store")
    bodies = ("first-one", "second-one", "third-one")
    for body in bodies:
        run("troupemq", "send", "-t", TOPIC, "-b", body)
    broker.stop(20)
    assert not Path("store/abort").exists(), "stopped: as it is a copy is whole"
    shutil.copytree("store", "copy")
    assert "no faults found" in run("troupemq", "store", "check", "copy")
    log = Path("store/commitlog/" + "0" * 20)
    log.write_bytes(log.read_bytes().replace(b"second-one", b"secXnd-one"))
    assert "damaged" in run("troupemq", "store", "check", "store", exit_code=1)
    machines.broker("store")
    said = run("troupemq", "consume", "-t", TOPIC, "-g", "g", "--count", "2")
    assert "first-one" in said and "third-one" in said and "secXnd" not in said
    assert "second-one" in run("troupemq", "store", "dump", str("copy" / log.relative_to("store")))
