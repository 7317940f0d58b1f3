"""`python -m tests.bench.brokers_in_tests`: costs of troupemq.testing in the tests of a user.

Prints the time of a fixture until its first send, of its stop, and of `advance("2h")` until a
consumer has a delayed message; the cost of the plug-in where no test uses it; then the seconds of
runs of TESTS tests, each with a broker of its own, in two processes, and their failures. All times
are times on the clock: a busy machine lengthens them.
"""

import os
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic

from troupemq import Message, Producer
from troupemq.testing import running_broker

ROOT = Path(__file__).resolve().parents[2]
TESTS = 500
STARTS = 30
IMPORTS = 20
LOAD_OF_PLUGIN = """
from time import perf_counter
import pytest
began = perf_counter()
import troupemq.pytest_plugin
print((perf_counter() - began) * 1000)
"""
ONE_TEST = """
import pytest
from troupemq import Message

@pytest.mark.parametrize("number", range({tests}))
def test_it(number, troupemq_broker, producer):
    producer.send(Message("Orders", b"%d" % number))
    troupemq_broker.expect("Orders", body=b"%d" % number)
"""


def starts() -> tuple[list[float], list[float]]:
    """Return the ms from the start of each broker to its first send, and of its stop."""
    to_send, to_stop = [], []
    for _ in range(STARTS):
        began_s = monotonic()
        with running_broker() as broker:
            with Producer("shop", broker.namesrv) as producer:
                producer.send(Message("Orders", b"new"))
                to_send.append((monotonic() - began_s) * 1000)
            began_s = monotonic()
        to_stop.append((monotonic() - began_s) * 1000)
    return to_send, to_stop


def advances() -> list[float]:
    """Return the ms from each `advance("2h")` until a consumer has the delayed message."""
    found, came, pause = [], Event(), Event()
    with running_broker() as broker, Producer("shop", broker.namesrv) as producer:
        broker.consume("Orders", lambda _: came.set())
        for _ in range(STARTS):
            producer.send(Message("Orders", b"later", delay_level=18))
            pause.wait(0.02)  # until the consumer waits for messages again
            began_s = monotonic()
            broker.advance("2h")
            assert came.wait(10)
            found.append((monotonic() - began_s) * 1000)
            came.clear()
    return found


def plugin_ms() -> list[float]:
    """Return the ms that pytest needs to load the plug-in, in fresh processes."""
    command = (sys.executable, "-c", LOAD_OF_PLUGIN)
    return [float(subprocess.check_output(command, cwd=ROOT)) for _ in range(IMPORTS)]


def suite(tests: int, folder: Path) -> str:
    """Run tests with a broker each; return what it took and the last line of pytest."""
    folder.joinpath("test_brokers.py").write_text(ONE_TEST.format(tests=tests))
    options = ("-q", "-n", "2", "-p", "no:troupemq", "-p", "troupemq.pytest_plugin")
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    began_s, before = monotonic(), getrusage(RUSAGE_CHILDREN)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
    )
    seconds, after = monotonic() - began_s, getrusage(RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    last = ran.stdout.strip().rpartition("\n")[2]
    return f"{seconds:.1f} s, {cpu_s:.1f} s of processor time: {last}"


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=TESTS)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(f"{sys.implementation.name} {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
    to_send, to_stop = starts()
    rows = {
        "first fixture to first send": to_send[:1],
        "fixture to first send": to_send[1:],
        "stop": to_stop,
        'advance("2h") to receipt': advances(),
        "unused plug-in": plugin_ms(),
    }
    for name, values in rows.items():
        print(f"{name:30} {median(values):7.2f} ms, least {min(values):.2f}")
    for _ in range(options.runs):
        with TemporaryDirectory(prefix="troupemq-bench-") as folder:
            line = suite(options.tests, Path(folder))
        print(f"{options.tests} tests: {line}; load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
