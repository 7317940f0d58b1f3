"""Processes of several checkouts of this project under the same load, in turn; a table.

What else the machine does in a while meets all of them. A figure is processor time, kernel
included, in µs a message: the least of the rounds, and their median; "µs a turn" is the time on the
clock from a burst of messages until all are answered, median of the rounds. A broker runs on the
Python of this process, or on the one named after its checkout: NAME=CHECKOUT,PYTHON.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

from tests.bench.interpreters import JIT_ON, Interpreter
from tests.compat.child import Child

ROOT = Path(__file__).resolve().parents[2]


class Loaded(Protocol):
    """A process with a load."""

    name: str
    figures: list[float]
    turns_us: list[float]

    def load(self, size: int, least: int) -> None:
        """A round of `least` messages or some more, `size` at a time; adds its figures."""

    def close(self) -> None:
        """Ends the process."""


class Build(NamedTuple):
    """One version to measure: code and the interpreter that runs it."""

    checkout: Path = ROOT
    python: str = sys.executable

    @classmethod
    def of_text(cls, text: str) -> "Build":
        """Return the build that `CHECKOUT` or `CHECKOUT,PYTHON` names."""
        checkout, _, python = text.partition(",")
        return cls(Path(checkout), python or sys.executable)


def broker_of(build: Build, config: str, scratch: Path, *options: str) -> Child:
    """Start a broker process of this build with this configuration."""
    scratch.mkdir(parents=True)
    file = scratch / "broker.conf"
    file.write_text(f"{config}storePathRootDir={scratch / 'store'}\n")
    return Child(
        [build.python, "-m", "troupemq", "broker", "-c", str(file), *options],
        scratch / "log",
        {"PYTHONPATH": str(build.checkout), "PYTHONSAFEPATH": "1", **JIT_ON},
    )


def parser_of(program: str, description: str | None, sizes_option: str) -> ArgumentParser:
    """Return a parser of the common options: sizes, rounds, messages, checkouts."""
    parser = ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument(sizes_option, dest="sizes", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--messages", type=int, default=8_000, help="of a round")
    parser.add_argument("brokers", nargs="*", default=[f"here={ROOT}"], metavar="NAME=CHECKOUT")
    return parser


def compare(
    checkouts: Sequence[str],
    make: Callable[[str, Build, Path], Loaded],
    sizes: Sequence[int],
    rounds: int,
    messages: int,
    warm_up: int,
) -> None:
    """Print the table. `make` gets name, build and an own folder; `checkouts` are
    NAME=CHECKOUT[,PYTHON]."""
    for text in checkouts:
        name, _, build = text.partition("=")
        print(f"{name}: {Interpreter.asked(Build.of_text(build).python).name}")
    print(f"{'broker':<16}{'at a time':>10}{'least µs':>10}{'median µs':>11}{'µs a turn':>11}")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="troupemq-in-turn-")))
        brokers: list[Loaded] = []
        for number, text in enumerate(checkouts):
            name, _, checkout = text.partition("=")
            broker = make(name, Build.of_text(checkout), scratch / str(number))
            stack.callback(broker.close)
            broker.load(max(sizes), warm_up)
            brokers.append(broker)
        for size in sizes:
            for broker in brokers:
                broker.load(size, 8 * size)
                broker.figures.clear()
                broker.turns_us.clear()
            for number in range(rounds):
                for broker in brokers if number % 2 else reversed(brokers):
                    broker.load(size, messages)
            for broker in brokers:
                least, middle = min(broker.figures), median(broker.figures)
                turn = median(broker.turns_us)
                print(
                    f"{broker.name:<16}{size:>10}{least:>10.2f}{middle:>11.2f}{turn:>11.0f}",
                    flush=True,
                )
