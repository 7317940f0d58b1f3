"""The jobs of a running broker from the command line; their children start no JVM here."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from time import monotonic

import pytest
from click.testing import CliRunner

from actors.config import parse_broker_config
from actors.jobs.messages import JobOrder
from actors.jobs.spark_job import JobCommand, MakeCommand
from protocol.headers.own import JobRunHeader
from storage.errors import StoreError
from tests.manual.following import blocks, commands
from tests.support.actors import WAIT_S
from troupemq import jobs_beside
from troupemq.cli import broker_jobs, cli
from troupemq.jobs_beside import JobsPlace
from troupemq.logs import set_up_logs
from troupemq.servers import Servers

CHILD = """
import json, sys
print("a line for the log", file=sys.stderr)
arguments = json.loads(sys.argv[1])
print(json.dumps({"event": "running"}), flush=True)
if arguments.get("fails"):
    print(json.dumps({"event": "failed", "sentence": "as told"}), flush=True)
    sys.exit(1)
if arguments.get("waits"):
    print(json.dumps({"event": "progress", "stage": "counting", "done": 1, "tasks": 4,
                      "rows_done": 10, "rows": 40, "remaining_ms": 3000}), flush=True)
    sys.stdin.readline()
    sys.exit(4)
report = {"text": "one table", "rows": 3, "arguments": arguments}
print(json.dumps({"event": "finished", "report": report}), flush=True)
"""

CONF = """
[nightly]
job = archive
cron = 30 2 * * *
timeZone = Europe/Berlin
argument.topics = ["Orders"]
"""


def scripted(spark_conf: Path | None, **_: str) -> MakeCommand:
    def make(order: JobOrder, work_directory: str) -> JobCommand:
        line = [sys.executable, "-I", "-S", "-c", CHILD, json.dumps(dict(order.arguments))]
        return JobCommand(line, dict(os.environ))

    return make


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(autouse=True)
def log_of_the_broker(root: Path) -> None:
    """Out of the way of what commands print: the broker is in this process."""
    set_up_logs(path=root / "broker.log")


@pytest.fixture(scope="module")
def broker(root: Path) -> Iterator[str]:
    """HOST:PORT of a broker with a schedule."""
    (root / "jobs.conf").write_text(CONF)
    settings = {
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "namesrvAddr": "",
        "storePathRootDir": str(root / "store"),
        "mappedFileSizeCommitLog": "1048576",
    }
    config, store, _ = parse_broker_config("", settings)
    given_up: list[str] = []
    servers = Servers(given_up.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_beside, "job_commands", scripted)
        servers.start_broker(config, store, JobsPlace(root / "jobs", root / "jobs.conf"))
        yield f"127.0.0.1:{servers.ports['broker']}"
        assert servers.stop(10)
    assert given_up == []


def job(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["job", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
def test_a_job_at_a_broker_gets_the_brokers_settings(broker: str, root: Path) -> None:
    code, out, err = job("run", "archive", "-b", broker, "--topic", "Orders", "--json")
    assert code == 0
    arguments = json.loads(out)["arguments"]
    assert arguments.pop("commit_log")
    assert arguments == {
        "store": str(root / "store"),
        "published_offset": 0,
        "output": str(root / "archive"),
        "topics": ["Orders"],
    }
    assert "archive-" in err


@pytest.mark.slow
def test_an_entry_of_the_schedule_is_run_at_once_and_shown(broker: str) -> None:
    code, out, _ = job("run", "nightly", "-b", broker)
    assert (code, out) == (0, "one table\n")
    code, out, _ = job("schedule", "-b", broker, "--json")
    line = json.loads(out)
    assert (line["entry"], line["job"], line["cron"]) == ("nightly", "archive", "30 2 * * *")
    assert line["time_zone"] == "Europe/Berlin" and line["next_ms"] > 0
    assert line["arguments"] == {"topics": ["Orders"]}
    assert "nightly" in job("schedule", "-b", broker)[1]


@pytest.mark.slow
def test_the_commands_of_the_manual_reach_a_broker(broker: str) -> None:
    """Run the commands of docs/jobs.md in order, with this broker and one of its runs."""
    (block,) = (each for each in blocks("jobs.md") if "job schedule" in each)
    run, printed = "", []
    for program, command, *words in commands(block):
        assert (program, command) == ("troupemq", "job")
        ours = {"127.0.0.1:10911": broker, "nightly-archive": "nightly", "RUN": run, "[RUN]": run}
        words = [ours.get(each, each) for each in words]
        code, out, err = job(*words, *(() if "-b" in words else ("-b", broker)))
        assert code == 0 or words[0] == "cancel", err  # that run has ended
        printed.append(out)
        if words[0] == "run":
            runs = job("status", "-b", broker, "--json")[1].splitlines()
            run = next(each["run"] for each in map(json.loads, runs))
    assert "nightly" in printed[0] and "one table" in printed[1] and "one table" in printed[2]
    assert f"no run {run} that waits or runs" in err


@pytest.mark.slow
def test_a_failed_run_is_a_one_sentence_error_with_a_readable_log(broker: str) -> None:
    code, _, err = job("run", "archive", "-b", broker, "-a", "fails=true")
    assert code == 1
    assert err.splitlines()[-1] == "troupemq: The job archive failed: as told"
    runs = [json.loads(line) for line in job("status", "-b", broker, "--json")[1].splitlines()]
    failed = next(run for run in runs if run["state"] == "failed")
    assert failed["sentence"] == "as told"
    code, out, _ = job("status", failed["run"], "-b", broker)
    assert code == 0 and "as told" in out and "a line for the log" in out
    assert job("logs", failed["run"], "-b", broker)[1] == "a line for the log\n"


@pytest.mark.slow
def test_a_run_reports_progress_and_can_be_cancelled(broker: str) -> None:
    deadline_s = monotonic() + WAIT_S
    code, out, _ = job("run", "archive", "-b", broker, "-a", "waits=1", "--no-wait", "--json")
    assert code == 0
    run = json.loads(out)["run"]
    while '"counting"' not in (said := job("logs", run, "-b", broker, "--json")[1]):
        assert monotonic() < deadline_s
    assert json.loads(said)["progress"] == {
        "state": "running",
        "stage": "counting",
        "done": 1,
        "tasks": 4,
        "rows_done": 10,
        "rows": 40,
        "remaining_ms": 3000,
    }
    line = "running, counting: 1 of 4 tasks, 10 of 40 messages, about 3.0 s left"
    assert job("logs", run, "-b", broker)[2] == f"{run}: {line}\n"
    assert line in job("status", "-b", broker)[1]
    assert line in job("status", run, "-b", broker)[1]
    assert json.loads(job("status", run, "-b", broker, "--json")[1])["rows"] == 40
    assert job("cancel", run, "-b", broker)[:2] == (0, f"{run} is being cancelled.\n")


@pytest.mark.slow
def test_ctrl_c_behind_the_end_of_a_run_ended_with_exit_code_1(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Event):
        def wait(self, _: float | None = None) -> bool:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(broker_jobs, "Event", Interrupted)
        patch.setattr(broker_jobs, "JobRunHeader", lambda _: JobRunHeader("ended"))
        code, _, said = job("run", "archive", "-b", broker, "-a", "waits=1")
    job("cancel", said.partition(":")[0], "-b", broker)
    assert code == 130
    assert said.endswith(": there is no run ended that waits or runs\n")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["run", "mow"], "there is no job mow"),
        (["cancel", "archive-1"], "there is no run archive-1 that waits or runs"),
        (["logs", "archive-1"], "there is no run archive-1"),
        (["status", "archive-1"], "run archive-1 not found"),
    ],
)
def test_an_invalid_request_is_a_one_sentence_error_with_exit_code_1(
    broker: str, command: list[str], sentence: str
) -> None:
    code, out, err = job(*command, "-b", broker)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert sentence in err


def test_an_unreachable_broker_is_a_one_sentence_error() -> None:
    code, _, err = job("schedule", "-b", "127.0.0.1:1")
    assert (code, err.count("\n")) == (1, 1)


def test_an_unreadable_schedule_refuses_the_start(tmp_path: Path) -> None:
    path = tmp_path / "jobs.conf"
    path.write_text("[a]\njob = mow\ncron = 0 1 * * *\n")
    config, store, _ = parse_broker_config("", {"storePathRootDir": str(tmp_path / "store")})
    servers = Servers(lambda reason: None)
    with pytest.raises(StoreError, match="there is no job mow"):
        servers.start_broker(config, store, JobsPlace(tmp_path / "jobs", path))
    assert not (tmp_path / "store").exists()


def test_a_spark_master_option_is_only_for_jobs_without_a_broker() -> None:
    told = CliRunner().invoke(
        cli, ["job", "run", "traffic", "--master", "local", "-b", "127.0.0.1:1"]
    )
    assert told.exit_code == 2
    assert "in the broker's conf/spark.conf" in told.output
