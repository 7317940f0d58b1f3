"""Celery on TroupeMQ and on Redis, in turn: `python -m tests.bench.celery_load`.

Needs redis-server, and the package redis. The tasks do nothing, and a worker has two processes. The
figures of each round are

    idle ms     time from publishing to the run of single tasks, median
    publish/s   tasks that one process publishes and closes its connection, while no worker runs
    run/s       these tasks, from the first to the last that a worker runs

"Unconfirmed" is TroupeMQ with the transport option `confirm_publish = False`.
"""

import os
import platform
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic

from tests.compat.patience import wait_until
from tests.compat.remoting import knows_broker
from tests.compat.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
APP = "tests.bench.celery_tasks"
SINGLES = 30
PUBLISH = """
import sys, time
from kombu import pools
from tests.bench.celery_tasks import run
run.delay(-1, time.time())
count, pause_s = int(sys.argv[1]), float(sys.argv[2])
begun = time.perf_counter()
for number in range(count):
    run.delay(number, time.time())
    if pause_s:
        time.sleep(pause_s)
pools.reset()
print(count / (time.perf_counter() - begun))
"""


@contextmanager
def running(command: list[str], log: Path, env: Mapping[str, str]) -> Iterator[int]:
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=ROOT) as process,
    ):
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(30)


def measure(name: str, url: str, folder: Path, count: int) -> tuple[float, ...]:
    """Return publish/s, run/s and the median of single tasks in ms."""
    ran = folder / f"{name}-{monotonic()}"
    env = {**os.environ, "BROKER_URL": url, "TASKS_RAN": str(ran), "PYTHONPATH": PATH}
    env["CONFIRM_PUBLISH"] = str(name != "Unconfirmed")
    worker = [sys.executable, "-m", "celery", "-A", APP, "worker", "-c", "2", "-l", "WARNING"]

    def lines() -> list[str]:
        return ran.read_text().splitlines() if ran.exists() else []

    def publish(count: int, pause_s: float) -> float:
        command = [sys.executable, "-c", PUBLISH, str(count), str(pause_s)]
        return float(subprocess.run(command, env=env, check=True, capture_output=True).stdout)

    worker += ["--without-gossip", "--without-mingle"]
    with running(worker, folder / f"{name}.log", env):
        publish(1, 0)
        wait_until(lambda: len(lines()) >= 2, "the worker to run")
        publish(SINGLES, 0.05)
        wait_until(lambda: len(lines()) >= SINGLES + 3, "single tasks")
    singles = [each.split() for each in lines()[3:]]
    rate = publish(count, 0)
    with running(worker, folder / f"{name}.log", env):
        wait_until(lambda: len(lines()) >= SINGLES + count + 4, "all tasks", 120.0)
    ran_s = [float(each.split()[2]) for each in lines()[SINGLES + 4 :]]
    waits_ms = [1000 * (float(end) - float(sent)) for _, sent, end in singles]
    return rate, (count - 1) / (max(ran_s) - min(ran_s)), median(waits_ms)


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", default=sys.executable, help="Python of our servers")
    given = parser.parse_args()
    with TemporaryDirectory() as made:
        folder = Path(made)
        redis, namesrv, broker = free_port(), free_port(), free_port()
        plain = {**os.environ, "PYTHONPATH": str(ROOT)}
        own = [given.server, "-m", "troupemq"]
        config = folder / "broker.conf"
        config.write_text(
            f"listenPort={broker}\nnamesrvAddr=127.0.0.1:{namesrv}\nbrokerIP1=127.0.0.1\n"
            f"storePathRootDir={folder / 'store'}\nmappedFileSizeCommitLog=67108864\n"
        )
        redis_server = ["redis-server", "--port", str(redis), "--bind", "127.0.0.1"]
        with (
            running([*redis_server, "--dir", made, "--save", ""], folder / "redis.log", plain),
            running([*own, "namesrv", "--port", str(namesrv)], folder / "namesrv.log", plain),
            running([*own, "broker", "-c", str(config)], folder / "broker.log", plain),
        ):
            place = f"127.0.0.1:{namesrv}"
            wait_until(lambda: knows_broker(place, f"127.0.0.1:{broker}"), "the broker")
            urls = {
                "TroupeMQ": f"troupemq://{place}//",
                "Unconfirmed": f"troupemq://{place}//",
                "Redis": f"redis://127.0.0.1:{redis}/0",
            }
            found: dict[str, list[tuple[float, ...]]] = {name: [] for name in urls}
            for turn in range(given.rounds):
                for name in sorted(urls, reverse=bool(turn % 2)):
                    found[name].append(measure(name, urls[name], folder, given.tasks))
                    print(name, *(f"{figure:.1f}" for figure in found[name][-1]), flush=True)
        python = f"{platform.python_implementation()} {platform.python_version()}"
        print(f"{python}, load {os.getloadavg()[0]:.1f}")
        print(f"{'median':<12} publish/s   run/s  idle ms")
        for name, figures in found.items():
            rate, ran, idle = (median(each) for each in zip(*figures, strict=True))
            print(f"{name:<12} {rate:9.0f} {ran:7.0f} {idle:8.1f}")


if __name__ == "__main__":
    main()
