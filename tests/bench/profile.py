"""`make profile`: where the time of a send, a pull and a synced send goes, by function; tables.

Of each load one run by the official Java client, in which the broker counts its system calls and
samples itself (samples.py), and where perf is at hand one more for the system calls' times.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.brokers import Opponents
from tests.bench.counted_broker import COUNTED, counts_in
from tests.bench.interpreters import Interpreter
from tests.bench.kept import commit
from tests.bench.loads import LOADS, Figures, Plan, run
from tests.bench.process_figures import context_switches
from tests.bench.samples import USER, Perf, Samples, build
from tests.compat.servers import NameServer, OurBroker
from tests.compat.toolchain import MissingTool, java

PROFILED = ("send", "one", "sync", "consume")
CALLS_SHOWN = 9
LEAST = 0.01
"""Share of a load's time below which functions are summed."""


class CountedBroker(OurBroker):
    """Ours, its system calls counted."""

    def __init__(self, scratch: Path, names: NameServer, settings: dict[str, str]) -> None:
        super().__init__(scratch, names, settings)
        self.counts = scratch / "counts"
        scratch.mkdir(parents=True, exist_ok=True)
        library = str(build(scratch))
        self.program = ("-m", "tests.bench.counted_broker", str(self.counts), library)


class Counting:
    """Probe of loads.py: resources and calls of the broker in the measured time."""

    def __init__(self, broker: CountedBroker) -> None:
        self._broker = broker
        self._samples = self.samples = Samples()
        self._before: list[float] = []
        self.used: list[float] = []
        """Context switches, then calls in the order of COUNTED."""

    def begin(self) -> None:
        self._before, self._samples = self._now(), self._sampled()

    def end(self) -> None:
        self.samples = self._sampled().since(self._samples)
        pairs = zip(self._before, self._now(), strict=True)
        self.used = [after - before for before, after in pairs]

    def _sampled(self) -> Samples:
        return Samples.read(Path(f"{self._broker.counts}.samples"))

    def _now(self) -> list[float]:
        counts = counts_in(self._broker.counts)
        return [context_switches(self._broker.pid), *(counts[name] for name in COUNTED)]


@dataclass(frozen=True)
class Profile:
    """Profile of one load."""

    title: str
    figures: Figures
    whole_us: float
    """Processor time per message of the observed process."""
    used: list[float]
    samples: Samples

    def tables(self) -> str:
        """Markdown: batches and system calls; time by function; the kernel's by system call."""
        samples, whole_us = self.samples, self.whole_us
        user, kernel = sum(samples.user.values()), sum(samples.kernel.values())
        kernel_us = whole_us * kernel / max(user + kernel, 1)
        if perf := sum(samples.calls.values()):
            kernel_us = whole_us * (perf - samples.calls[USER]) / perf
        user_us = (whole_us - kernel_us) / max(user, 1)
        each_us = user_us, kernel_us / max(kernel, 1), whole_us / max(user + kernel, 1)
        lines = [
            f"**{self.title}**: {self.figures.per_second:,.0f}/s, {whole_us:.2f} µs a message, "
            f"of which the kernel {kernel_us:.2f}.",
            "",
            "| | a message | messages for each |",
            "| --- | ---: | ---: |",
            *self._calls(),
            "",
            "| µs a message | user | kernel | with what it calls |",
            "| --- | ---: | ---: | ---: |",
        ]
        both = samples.user + samples.kernel
        least = LEAST * (user + kernel)
        shown = [name for name, count in both.most_common() if count >= least]
        columns = samples.user, samples.kernel, samples.whole
        for name in shown:
            cells = [f"{each[name] * us:.2f}" for each, us in zip(columns, each_us, strict=True)]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        rest = [sum(each.values()) - sum(each[n] for n in shown) for each in columns[:2]]
        lines.append(
            f"| what is left | {rest[0] * each_us[0]:.2f} | {rest[1] * each_us[1]:.2f} | |"
        )
        if perf:
            lines += ["", "| kernel, by perf | µs a message |", "| --- | ---: |"]
            for name, count in samples.calls.most_common(CALLS_SHOWN):
                if name != USER:
                    lines.append(f"| {name} | {count * whole_us / perf:.2f} |")
        return "\n".join(lines)

    def _calls(self) -> list[str]:
        names = ("context switches", *COUNTED)
        counts = {name: n for name, n in zip(names, self.used, strict=True) if n}
        messages = self.figures.messages
        return [
            f"| {name} | {n / messages:.3f} | {messages / n:.1f} |" for name, n in counts.items()
        ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profile", description=__doc__)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=PROFILED, metavar="LOAD")
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--warm-up", type=float, default=4)
    parser.add_argument("--backlog", type=int, default=2_000_000)
    parser.add_argument("--store-gib", type=int, default=20, help="of the large store")
    parser.add_argument(
        "--slave", action="store_true", help="look at the slave, where there is one"
    )
    parser.add_argument("--scratch", help="where the stores lie (default: the temporary folder)")
    options = parser.parse_args()
    try:
        tools = java()
    except MissingTool as missing:
        print(f"no profile here: {missing}")
        return 1
    with TemporaryDirectory(prefix="troupemq-profile-", dir=options.scratch) as folder:
        scratch = Path(folder)
        times = int(options.warm_up * 1000), int(options.seconds * 1000)
        plan = Plan(tools, scratch, 8, 128, *times, options.backlog)
        print(f"{commit()}, {Interpreter.asked(sys.executable).name}:", flush=True)
        for name in options.loads:
            found = profile(name, plan, options.store_gib, of_slave=options.slave)
            print("", found.tables(), sep="\n", flush=True)
    return 0


def profile(name: str, plan: Plan, store_gib: int, *, of_slave: bool) -> Profile:
    load, scratch = LOADS[name], plan.scratch
    opponents = Opponents(plan.java, scratch, store_gib=store_gib, ours=CountedBroker)
    with opponents.started("ours", load.broker) as (broker, slave):
        of_slave = of_slave and slave is not None
        seen = slave if of_slave else broker
        assert isinstance(seen, CountedBroker)
        counting, perf = Counting(seen), Perf(seen.pid, scratch)
        figures = run(load, broker, plan, slave, counting)
        run(load, broker, plan, slave, perf)
        counting.samples.calls = perf.calls()
        whole_us = figures.slave_us if of_slave else figures.broker_us
        title = load.title + ", the slave" * of_slave
        return Profile(title, figures, whole_us, counting.used, counting.samples)


if __name__ == "__main__":
    sys.exit(main())
