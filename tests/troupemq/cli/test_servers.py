"""`run`, `namesrv` and `broker`: what they start, what they say, and how they end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from actors.network.connections import open_listener
from storage.disk import RealDisk
from storage.errors import StoreError
from tests.compat.patience import wait_until
from troupemq.cli import cli
from troupemq.cli import servers as commands
from troupemq.client.admin import Admin
from troupemq.client.message import Message
from troupemq.client.producer import Producer
from troupemq.daemon import Serving
from troupemq.tour import Figures, Tour

NO_PORTS = ("-s", "listenPort=0", "-s", "bindAddress=127.0.0.1", "-s", "brokerIP1=127.0.0.1")
FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")


def archived_nothing(tour: Tour) -> None:
    """In place of the Spark job, which has its own tests."""
    tour._figures.rows = tour._figures.sent


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["run", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_tour_sends_stores_and_consumes_a_thousand_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tour, "_archive", archived_nothing)
    code, out, err = run("--once", "--data", str(tmp_path), *FREE_PORTS)
    assert (code, err) == (0, "")
    table = out.splitlines()[-4:]
    assert [line.split()[2] for line in table] == ["1,000"] * 4
    shown = next(line.split() for line in out.splitlines() if line.startswith("  TourOrders"))
    assert shown[1] == "1,000"
    page = tmp_path / "traffic" / "traffic.html"
    assert f"Plot: {page}" in out and "TourOrders" in page.read_text()
    assert "By itself it runs next at" in out
    assert not (tmp_path / "store" / "abort").exists()
    assert (tmp_path / "logs" / "troupemq.log").stat().st_size


def test_a_second_start_finds_what_the_first_one_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tour, "_archive", archived_nothing)
    monkeypatch.setattr(Tour, "_scheduled", bool)
    run("--once", "--data", str(tmp_path), *FREE_PORTS)
    code, out, _ = run("--once", "--data", str(tmp_path), *FREE_PORTS)
    assert code == 0
    assert "Found 1,000 messages of earlier tours" in out
    assert "messages consumed     1,000" in out


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    taken = open_listener("127.0.0.1", 0, "test")
    port = taken.getsockname()[1]
    code, _, err = run("--namesrv-port", str(port), "--data", str(tmp_path))
    taken.close()
    assert code == 1
    assert err.startswith(f"troupemq: Port {port} ") and err.count("\n") == 1


def test_a_data_directory_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run("--data", str(tmp_path / "file" / "data"), *FREE_PORTS)
    assert code == 1
    assert err.startswith("troupemq: ") and err.count("\n") == 1


def test_a_store_that_another_broker_has_is_one_sentence(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    disk = RealDisk()
    disk.make_dirs(root)
    assert disk.claim(root)
    code, _, err = run("--data", str(tmp_path), *FREE_PORTS)
    disk.release(root)
    assert code == 1
    assert "in use" in err and err.count("\n") == 1


def test_a_failed_tour_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(tour: Tour) -> Figures:
        raise StoreError("Spark is not installed.")

    monkeypatch.setattr(Tour, "_scheduled", bool)
    monkeypatch.setattr(Tour, "_archive", fail)
    code, _, err = run("--once", "--data", str(tmp_path), *FREE_PORTS)
    assert code == 1
    assert err == "troupemq: Spark is not installed.\n"


class Started:
    """Takes the place of `serve`: starts, lets the test look, stops."""

    def __init__(self, look: Callable[[Serving], None]) -> None:
        self._look = look

    def __call__(self, start: Callable[..., Serving], **_: Any) -> int:
        serving = start(lambda reason: pytest.fail(reason))
        try:
            self._look(serving)
        finally:
            assert serving.stop(10.0)
        return 0


def test_a_name_server_and_a_broker_find_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text(
        f"brokerIP1 = 127.0.0.1\nbindAddress=127.0.0.1\nlistenPort=0\n"
        f"storePathRootDir={tmp_path}/store\nmappedFileSizeCommitLog=1048576\n"
        "sendMessageThreadPoolNums=4\nnoSuchKey=1\n"
    )
    seen: list[str] = []

    def send(serving: Serving, namesrv: str) -> None:
        with Admin(namesrv) as admin, Producer("pg", namesrv) as producer:
            producer.send(Message("T", b"x"))
            wait_until(lambda: admin.message_count("T") == 1, "the message in its queue")
            seen.append(namesrv)

    def start_broker(serving: Serving) -> None:
        namesrv = f"127.0.0.1:{serving.ports['namesrv']}"
        with monkeypatch.context() as patch:
            patch.setattr(commands, "serve", Started(lambda broker: send(broker, namesrv)))
            arguments = ["broker", "-c", str(settings), "-n", namesrv]
            result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        assert f"{tmp_path}/store (storePathRootDir)" in result.stdout
        assert "127.0.0.1:" in result.stdout and "(brokerIP1)" in result.stdout
        assert "sendMessageThreadPoolNums" in result.stderr and "noSuchKey" in result.stderr

    monkeypatch.setattr(commands, "serve", Started(start_broker))
    result = CliRunner().invoke(cli, ["namesrv", "-p", "0"], catch_exceptions=False)
    assert result.exit_code == 0
    assert len(seen) == 1


def test_a_start_is_a_few_lines_that_an_operator_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a first start and of a restart; actors that start are no news."""
    log = tmp_path / "logs" / "troupemq.log"
    lines: list[str] = []

    def look(serving: Serving) -> None:
        with Producer("pg", f"127.0.0.1:{serving.ports['namesrv']}") as producer:
            producer.send(Message("T", b"x"))  # so the broker is registered
        lines[:] = [line.split(" ", 1)[1] for line in log.read_text().splitlines()]

    monkeypatch.setattr(commands, "serve", Started(look))
    for _ in range(2):
        log.unlink(missing_ok=True)
        code, out, _ = run("--no-tour", "--data", str(tmp_path), *FREE_PORTS)
        assert code == 0 and "takes 32.2 MiB of the disk at once (" in out
        assert len(lines) <= 12, lines
        for event in ("name server serves", "store opened", "disk", "broker serves"):
            assert any(line.startswith(f"info    {event} ") for line in lines), lines
        assert not [line for line in lines if "started" in line or not line.startswith("info")]


def test_a_broker_with_too_little_disk_says_so_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    monkeypatch.setattr(RealDisk, "capacity", lambda *_: (2 << 30, 1 << 30))
    result = CliRunner().invoke(cli, ["broker", "-s", f"storePathRootDir={root}", *NO_PORTS])
    assert result.exit_code == 1 and not root.exists()
    assert "takes 2.02 GiB of the disk at once" in result.stderr
    assert "1 GiB are free: make room" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["-c", "/no/such/file"], "/no/such/file"),
        (["-s", "brokerRole=KING"], "brokerRole is KING"),
        (["-s", "listenPort=x"], "listenPort is x"),
        (["-n", "nowhere"], "nowhere"),
    ],
)
def test_a_setting_that_cannot_work_is_one_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(cli, ["broker", *arguments])
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_setting_without_a_value_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["broker", "-s", "listenPort"])
    assert result.exit_code == 2 and "KEY=VALUE" in result.stderr
