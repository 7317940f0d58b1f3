"""The lines of the manual that start servers, as they stand but for ports and places."""

import inspect
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from click.testing import CliRunner

from actors.config import NamesrvConfig, load_broker_config, parse_broker_config
from tests.compat.patience import wait_until
from tests.manual.following import HOST, ROOT, blocks, commands, run
from tests.support.certificates import Certificates
from tests.support.commands import commands_of
from tests.troupemq.cli.test_servers import Started
from troupemq.cli import cli
from troupemq.cli.servers import SMALL_FILES
from troupemq.client.admin import Admin
from troupemq.client.errors import ClientError
from troupemq.daemon import Serving

README = "../README.md"
Look = Callable[[Serving], None]
Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts what a line says, looks at it, stops it; gives what was printed."""
    monkeypatch.chdir(ROOT)

    def start(words: list[str], look: Look, **settings: str) -> str:
        words = list(words)
        assert words.pop(0) == "troupemq"
        if words[0] == "broker":
            own = {"listenPort": "0", "bindAddress": HOST, "brokerIP1": HOST, **SMALL_FILES}
            own["storePathRootDir"] = str(tmp_path / "store")
            for key, value in {**own, **settings}.items():
                words += ["-s", f"{key}={value}"]
        elif words[0] == "namesrv":
            text = Path(words[words.index("-c") + 1]).read_text(encoding="utf-8")
            for key, value in {"bindAddress": HOST, **settings}.items():
                text += f"\n{key}={value}"
            (tmp_path / "namesrv.conf").write_text(text)
            words[words.index("-c") + 1] = str(tmp_path / "namesrv.conf")
            words += ["-p", "0"]
        else:
            words += ["--port", "0", "--data", str(tmp_path / "console")]
        with monkeypatch.context() as patch:
            place = inspect.getmodule(commands_of(cli)[words[0]].callback)
            patch.setattr(place, "serve", Started(look))
            done = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return start


def starts(page: str, number: int) -> list[list[str]]:
    """The lines of a block that call the command."""
    return [words for words in commands(blocks(page)[number]) if words[0] == "troupemq"]


def nothing(_: Serving) -> None:
    """Accept the started server without a further check."""


@pytest.mark.parametrize(("page", "number"), [(README, 2), ("operations.md", 2)])
def test_a_name_server_and_a_broker_take_a_message(
    page: str, number: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    namesrv, broker, *first_message = starts(page, number)
    assert [namesrv[1], broker[1], broker[-2:]] == ["namesrv", "broker", ["-n", "127.0.0.1:9876"]]
    said: list[str] = []

    def send_and_consume(_: Serving) -> None:
        for line in first_message:  # `&&` is between two commands
            at = line.index("&&")
            wait_until(serves_orders, "the topic's route")
            said.extend(run(*words) for words in (line[:at], line[at + 1 :]))

    def start_broker(serving: Serving) -> None:
        address = f"{HOST}:{serving.ports['namesrv']}"
        monkeypatch.setenv("NAMESRV_ADDR", address)
        start([*broker[:-1], address], send_and_consume)

    start(namesrv, start_broker)
    if first_message:
        assert "OK" in said[0] and "hello" in said[1]


def serves_orders() -> bool:
    """Whether a broker has registered, which then makes the topic."""
    with Admin() as admin:
        try:
            admin.create_topic("Orders", 1)
            return bool(admin.queues("Orders"))
        except ClientError:
            return False


@pytest.mark.slow(seconds=0.1)
def test_the_loop_of_the_manual_starts_two_masters_and_a_slave_each(tmp_path: Path) -> None:
    """Run by a shell; test_cluster.py shows what the brokers do together."""
    echoing = 'troupemq() { echo "$@"; }; sleep() { :; }\n'
    loop = next(each for each in blocks("operations.md") if "2m-2s-sync/broker" in each)
    script = f"{echoing}{loop}\nwait\n"
    done = subprocess.run(
        ["bash", "-c", script],
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert sorted(line[0] for line in lines) == ["admin", *["broker"] * 4, "namesrv"]
    made = []
    for words in (line for line in lines if line[0] == "broker"):
        given = dict(zip(words[5::2], words[6::2], strict=True))
        assert words[1::2][:2] == ["-c", "-n"] and given.keys() == {"-s"}
        settings = dict(each.split("=") for each in words[6::2])
        settings["namesrvAddr"] = words[4]
        broker, store, findings = load_broker_config(str(ROOT / words[2]), settings)
        assert not findings
        made.append((broker.broker_name, broker.broker_id, broker.listen_port, store.root))
    assert [each[:3] for each in sorted(made)] == [
        ("broker-a", 0, 10911),
        ("broker-a", 1, 10921),
        ("broker-b", 0, 10931),
        ("broker-b", 1, 10941),
    ]
    assert len({root for *_, root in made}) == 4


def test_metrics_are_served_at_the_address_of_the_page(start: Start) -> None:
    broker, namesrv = starts("metrics.md", 0)
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/metrics.md").read_text(), re.DOTALL)
    scrapes = {each["job_name"]: each for each in yaml.safe_load(text)["scrape_configs"]}
    defaults = {
        f"{HOST}:{each.metrics_port}" for each in (parse_broker_config("")[0], NamesrvConfig())
    }
    (own,) = scrapes["troupemq"]["static_configs"]
    assert set(own["targets"]) == defaults
    exporter = scrapes["rocketmq-exporter"]
    pages = {
        "broker": [
            "/metrics",
            f"{exporter['metrics_path']}?collect={exporter['params']['collect'][0]}",
        ],
        "namesrv": ["/metrics"],
    }
    port_of = {"broker": "metrics", "namesrv": "namesrv_metrics"}
    for words in (broker, namesrv):

        def look(serving: Serving, words: list[str] = words) -> None:
            for page in pages[words[1]]:
                with urlopen(
                    f"http://{HOST}:{serving.ports[port_of[words[1]]]}{page}", timeout=30
                ) as got:
                    assert b"rocketmq" in got.read(), page

        own_settings = {"metricsPromExporterPort": "0"}
        if words[1] == "namesrv":
            own_settings["metricsExporterType"] = "PROM"  # "with … in it"
        start(words, look, **own_settings)


def test_a_broker_that_sends_spans_starts(start: Start) -> None:
    (broker,) = starts("traces.md", 0)
    start(broker, nothing, otelTracesEndpoint=f"http://{HOST}:9/v1/traces")


@pytest.mark.heavy
@pytest.mark.parametrize(("number", "where"), [(0, "http:"), (1, "https:"), (2, r"http:\S+/mq/\n")])
def test_a_console_starts(number: int, where: str, start: Start, tmp_path: Path) -> None:
    (words,) = starts("console.md", number)
    ours = {"…": f"{HOST}:1", "127.0.0.1:9876": f"{HOST}:1", "0.0.0.0": HOST}
    if "--https-cert" in words:
        made = Certificates(tmp_path / "tls").files()
        ours |= {"console.pem": made.cert_path, "console.key": made.key_path}
    said = start([ours.get(word, word) for word in words], nothing)
    assert re.match(f"Console on {where}", said), said
