"""`run`, `namesrv` and `broker`: what they start, what they say, and how they end."""

import os
from collections.abc import Callable
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from actors.network.connections import open_listener
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.disk import RealDisk
from tests.compat.patience import wait_until
from troupemq import servers, tour
from troupemq.cli import cli
from troupemq.cli import servers as commands
from troupemq.cli.servers import SMALL_FILES
from troupemq.client.admin import Admin
from troupemq.client.errors import RouteNotFound
from troupemq.client.message import Message
from troupemq.client.producing.producer import Producer
from troupemq.daemon import Serving
from troupemq.masters.supervisor import MastersPlan
from troupemq.tour import Tour, TourFigures

NO_PORTS = ("-s", "listenPort=0", "-s", "bindAddress=127.0.0.1", "-s", "brokerIP1=127.0.0.1")
FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")
CROWDED = "warning slow handler"
"""So begins a line about the machine: others have the processors."""


def archived_nothing(tour: Tour) -> None:
    """In place of the Spark job, which has its own tests."""
    tour._figures.rows = tour._figures.sent


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["run", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
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
    assert "Its next scheduled run is at" in out
    assert not (tmp_path / "store" / "abort").exists()
    assert (tmp_path / "logs" / "troupemq.log").stat().st_size


def listening() -> list[str]:
    """Return the listening sockets of this process: host in hexadecimal, and port."""
    descriptors = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
    ]
    return [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in descriptors]


@pytest.mark.heavy
def test_run_listens_only_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console does so by itself: tests/troupemq/test_console_child.py."""
    found: list[str] = []

    def look(start: Callable[[Callable[[str], None]], Serving], **_: object) -> int:
        before, serving = listening(), start(pytest.fail)
        found.extend(each for each in listening() if each not in before)
        return 0 if serving.stop(20.0) else 1

    monkeypatch.setattr(servers.Servers, "start_console", lambda *_: None)
    monkeypatch.setattr(commands, "serve", look)
    code, _, err = run("--data", str(tmp_path), *FREE_PORTS)
    assert (code, err) == (0, "")
    assert len(found) >= 4, "name server, broker, its fast port, replication"
    assert {each.split(":")[0] for each in found} == {"0100007F"}


@pytest.mark.heavy
def test_run_starts_a_console_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console prints its address and how to log in: tests/troupemq/test_console_child.py."""
    begun: list[tuple[int, Path]] = []

    def serve_a_moment(start: Callable[[Callable[[str], None]], Serving], **_: object) -> int:
        return 0 if start(pytest.fail).stop(20.0) else 1

    def note(_: servers.Servers, port: int, folder: Path) -> None:
        begun.append((port, folder))

    monkeypatch.setattr(servers.Servers, "start_console", note)
    monkeypatch.setattr(commands, "serve", serve_a_moment)
    ports = FREE_PORTS[: FREE_PORTS.index("--console-port")]
    code, _, err = run("--data", str(tmp_path), *ports)
    assert (code, err) == (0, "")
    assert begun == [(8088, tmp_path / "console")]


@pytest.mark.heavy
def test_a_second_start_finds_the_first_ones_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tour, "_archive", archived_nothing)
    monkeypatch.setattr(Tour, "_scheduled", bool)
    run("--once", "--data", str(tmp_path), *FREE_PORTS)
    code, out, _ = run("--once", "--data", str(tmp_path), *FREE_PORTS)
    assert code == 0
    assert "has 1,000 messages of earlier tours" in out
    assert "messages consumed     1,000" in out


@pytest.mark.heavy
def test_without_spark_the_tour_names_what_it_omits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tour, "has_spark", bool)
    code, out, err = run("--once", "--data", str(tmp_path), *FREE_PORTS)
    assert (code, err) == (0, "")
    assert "Skipping the scheduled job and the archive: Spark is not installed" in out
    assert "messages consumed     1,000" in out and "rows archived" not in out


def test_a_port_in_use_is_a_one_sentence_error(tmp_path: Path) -> None:
    taken = open_listener("127.0.0.1", 0, "test")
    port = taken.getsockname()[1]
    code, _, err = run("--namesrv-port", str(port), "--data", str(tmp_path))
    taken.close()
    assert code == 11
    assert err.startswith(f"troupemq: Port {port} ") and err.count("\n") == 1


def test_an_unwritable_data_directory_is_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run("--data", str(tmp_path / "file" / "data"), *FREE_PORTS)
    assert code == 14
    assert err.startswith("troupemq: ") and err.count("\n") == 1


def test_a_store_in_use_is_a_one_sentence_error(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    disk = RealDisk()
    disk.make_dirs(root)
    assert disk.claim(root)
    code, _, err = run("--data", str(tmp_path), *FREE_PORTS)
    disk.release(root)
    assert code == 12
    assert "in use" in err and err.count("\n") == 1


def test_a_failed_tour_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Tour) -> TourFigures:
        raise StoreError("Spark is not installed.")

    monkeypatch.setattr(tour, "has_spark", lambda: True)
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


def is_registered(admin: Admin) -> bool:
    try:
        return bool(admin.queues("TBW102"))
    except RouteNotFound:
        return False


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
            wait_until(lambda: is_registered(admin), "the broker to register")
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
        assert "No name server is set" not in result.stdout
        assert "sendMessageThreadPoolNums" in result.stderr and "noSuchKey" in result.stderr

    monkeypatch.setattr(commands, "serve", Started(start_broker))
    result = CliRunner().invoke(cli, ["namesrv", "-p", "0"], catch_exceptions=False)
    assert result.exit_code == 0
    assert len(seen) == 1


def test_a_start_logs_a_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a first start and a restart; starting actors must not be logged."""
    log = tmp_path / "logs" / "troupemq.log"
    lines: list[str] = []

    def look(serving: Serving) -> None:
        address = f"127.0.0.1:{serving.ports['namesrv']}"
        with Admin(address) as admin:
            wait_until(lambda: is_registered(admin), "the broker is registered")
        with Producer("pg", address) as producer:
            producer.send(Message("T", b"x"))
        told = [line.split(" ", 1)[1] for line in log.read_text().splitlines()]
        others = (CROWDED, "info    client stopped")  # the producer's line is no line of a start
        lines[:] = [line for line in told if not line.startswith(others)]

    monkeypatch.setattr(commands, "serve", Started(look))
    for taken in (False, True):
        log.unlink(missing_ok=True)
        code, out, _ = run("--no-tour", "--data", str(tmp_path), *FREE_PORTS)
        takes = "nothing more of the disk for now" if taken else "32.2 MiB of the disk at once"
        assert code == 0 and f"takes {takes} (" in out
        assert len(lines) <= 12, lines
        for event in (
            "name server started",
            "store opened",
            "disk space reserved",
            "broker started",
        ):
            assert any(line.startswith(f"info    {event} ") for line in lines), lines
        assert not [line for line in lines if "actor" in line or not line.startswith("info")]


def test_too_little_disk_space_is_a_one_sentence_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    monkeypatch.setattr(RealDisk, "capacity", lambda *_: (2 << 30, 1 << 30))
    result = CliRunner().invoke(cli, ["broker", "-s", f"storePathRootDir={root}", *NO_PORTS])
    assert result.exit_code == 13 and not root.exists()
    assert "takes 2.02 GiB of the disk at once" in result.stderr
    assert "1 GiB are free: make room" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["-c", "/no/such/file"], "/no/such/file"),
        (["-s", "brokerRole=KING"], "brokerRole is KING"),
        (["-s", "listenPort=x"], "listenPort is x"),
        (["-n", "nowhere"], "nowhere"),
        (["--masters", "99"], "masters is 99: it must be 1 to 64"),
    ],
)
def test_an_impossible_setting_is_a_one_sentence_error(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(cli, ["broker", *arguments])
    assert result.exit_code == 10
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("by_option", [True, False])
def test_several_masters_are_planned_and_this_process_becomes_their_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_option: bool
) -> None:
    plans: list[MastersPlan] = []

    def supervise(plan: MastersPlan, store: StoreConfig) -> NoReturn:
        assert store.root == f"{tmp_path}/store"
        plans.append(plan)
        raise SystemExit(0)

    monkeypatch.setattr(commands, "supervise", supervise)
    settings = tmp_path / "broker.conf"
    settings.write_text(f"brokerName=broker-a\nstorePathRootDir={tmp_path}/store\n")
    if not by_option:
        settings.write_text(f"{settings.read_text()}masters=2\n")
    options = ["--masters", "2"] if by_option else []
    result = CliRunner().invoke(cli, ["broker", "-c", str(settings), *NO_PORTS, *options])
    assert (result.exit_code, result.stderr) == (0, "")
    assert [[each.name for each in plan.instances] for plan in plans] == [
        ["broker-a", "broker-a-1"]
    ]


def test_one_of_several_masters_names_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, str]] = []

    def look(serving: Serving) -> None:
        with Admin() as session:
            shown.append(session.runtime_info(f"127.0.0.1:{serving.ports['broker']}"))

    monkeypatch.setattr(commands, "serve", Started(look))
    own = ("-s", "masters=3", "-s", "brokerName=a-1", "-s", f"storePathRootDir={tmp_path}/store")
    small = [word for key, value in SMALL_FILES.items() for word in ("-s", f"{key}={value}")]
    for options in (["--one-of", "a"], ["-s", "masters=1"]):
        result = CliRunner().invoke(
            cli, ["broker", *NO_PORTS, *own, *small, *options], catch_exceptions=False
        )
        assert result.exit_code == 0
    assert [each.get("oneOf") for each in shown] == ["a", None]


@pytest.mark.parametrize("command", [["broker", "-s", "storePathRootDir={0}/store"], ["run"]])
def test_one_broker_does_not_start_on_the_first_of_several_stores(
    tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "store-masters" / "1" / "commitlog").mkdir(parents=True)
    options = [*NO_PORTS] if command[0] == "broker" else ["--data", str(tmp_path), *FREE_PORTS]
    line = [word.format(tmp_path) for word in command] + options
    result = CliRunner().invoke(cli, line)
    assert result.exit_code == 1 and "start with --masters 2" in result.stderr
    assert result.stderr.count("\n") == 1 and not (tmp_path / "store").exists()


def test_a_setting_without_a_value_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["broker", "-s", "listenPort"])
    assert result.exit_code == 2 and "KEY=VALUE" in result.stderr


def test_a_broker_without_a_name_server_started_without_a_word_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients did not find it, and nothing said why."""
    monkeypatch.setattr(commands, "serve", Started(lambda broker: None))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    settings = {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "storePathRootDir": f"{tmp_path}/store",
        "mappedFileSizeCommitLog": "1048576",
    }
    words = [word for each in settings.items() for word in ("-s", "=".join(each))]
    result = CliRunner().invoke(cli, ["broker", *words], catch_exceptions=False)
    assert result.exit_code == 0
    assert "No name server is set, so clients do not find it: name one with -n." in result.stdout


def test_schedule_of_run_is_whole_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start on a full disk left an empty one: the next starts had no jobs."""
    with_port = lambda self, _: self.ports.update(namesrv=9876)  # noqa: E731
    monkeypatch.setattr(servers.Servers, "start_namesrv", with_port)
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(StoreError, match=f"{tour.JOBS_FILE}.*File too large"):
            commands._start_both(tmp_path, 0, 0, lambda _: None)
    finally:
        setrlimit(RLIMIT_FSIZE, before)
    assert not (tmp_path / tour.JOBS_FILE).exists()
