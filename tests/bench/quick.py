"""`make bench-quick`: two commits of ours under the same loads, in turn, in less than 3 minutes.

The code of each is that of a git worktree, made for it unless what is checked out here is meant
(`.`, with what is not committed yet).  The load generator and the settings are those of here.
The order changes with each round.  What counts is processor time: rates suffer from others.
The brokers run on this Python or the one that is named, built with optimisation unless told so.
"""

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench.brokers import SETTINGS
from tests.bench.interpreters import JIT_ON, Interpreter, UnfitInterpreter, chosen
from tests.bench.loads import LOADS, Plan, run
from tests.compat.servers import ROOT, OurBroker, OurNameServer
from tests.compat.toolchain import MissingTool, java

QUICK = ("send", "one", "sync", "consume")
BACKLOG = 400_000
HERE = "."


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.quick", description=__doc__)
    parser.add_argument("commits", nargs="*", default=["HEAD", HERE], metavar="COMMIT")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=QUICK, metavar="LOAD")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--python", default=sys.executable, help="of the brokers")
    parser.add_argument("--unoptimised", action="store_true", help="take one built so, too")
    options = parser.parse_args()
    os.environ.update(JIT_ON)
    try:
        (python,) = chosen([options.python], unoptimised=options.unoptimised).values()
        tools = java()
    except (MissingTool, UnfitInterpreter) as missing:
        print(f"no benchmark here: {missing}")
        return 1
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with TemporaryDirectory(prefix="troupemq-quick-") as folder, ExitStack() as stack:
        scratch = Path(folder)
        plan = Plan(tools, scratch, 8, 128, 1000, int(options.seconds * 1000), BACKLOG)
        code = {name: checkout(stack, name, scratch) for name in options.commits}
        brokers: dict[tuple[str, str], OurBroker] = {}
        for number in range(options.rounds):
            for name in options.loads:
                for commit in options.commits if number % 2 else reversed(options.commits):
                    key = commit, LOADS[name].broker
                    if key not in brokers:
                        brokers[key] = started(
                            stack, code[commit], python, LOADS[name].broker, scratch
                        )
                    figures = run(LOADS[name], brokers[key], plan)
                    pair = figures.broker_us, figures.per_second
                    found.setdefault((name, commit), []).append(pair)
    print(f"{python.name}:", table(found, options.commits), sep="\n\n")
    return 0


def checkout(stack: ExitStack, commit: str, scratch: Path) -> Path:
    """The folder with that commit's code."""
    if commit == HERE:
        return ROOT
    place = scratch / f"code-{commit.replace('/', '-')}"
    git("worktree", "add", "--detach", str(place), commit)
    stack.callback(git, "worktree", "remove", "--force", str(place))
    return place


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True)


def started(
    stack: ExitStack, code: Path, python: Interpreter, name: str, scratch: Path
) -> OurBroker:
    place = scratch / f"{code.name}-{name}"
    names = stack.enter_context(OurNameServer(place / "names"))
    broker = OurBroker(place / "broker", names, SETTINGS[name])
    broker.checkout, broker.python = code, python.path
    return stack.enter_context(broker)


def table(found: dict[tuple[str, str], list[tuple[float, float]]], commits: list[str]) -> str:
    """Markdown: broker CPU a message, median, least and most; rates; the ratio of medians."""
    lines = [
        "| load | commit | µs/message | messages/s | ÷ first |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for (name, commit), pairs in sorted(found.items(), key=lambda each: each[0][0]):
        costs = sorted(cost for cost, _ in pairs)
        rate = median(rate for _, rate in pairs)
        first = median(cost for cost, _ in found[name, commits[0]])
        middle = median(costs)
        spread = f"{middle:.2f} ({costs[0]:.2f}–{costs[-1]:.2f})"
        lines.append(f"| {name} | {commit} | {spread} | {rate:,.0f} | {middle / first:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
