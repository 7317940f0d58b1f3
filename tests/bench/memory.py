"""Memory of brokers over minutes: `python -m tests.bench.memory [NAME=CHECKOUT …]`.

Each broker gets 64 sends at a time, so many messages a second, and its anonymous memory is read
once a second.  It prints the least and the most of each minute, and draws all of it.
"""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic

from protocol.codes import SerializeType
from tests.bench.in_turn import ROOT, Build
from tests.bench.process_figures import memory
from tests.bench.send_cpu import LoadedBroker, send_frames

AT_A_TIME = 64
WIDTH, HEIGHT, LEFT, BELOW = 720, 300, 48, 40
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def drawing(figures: Mapping[str, Sequence[tuple[float, float]]], unit: str = "MiB") -> str:
    """Return an SVG of (seconds, figure) by name."""
    end_s = max(points[-1][0] for points in figures.values())
    most, step = max(mib for points in figures.values() for _, mib in points), 50
    while most > 6 * step:
        step *= 2
    top = (int(most) // step + 1) * step
    right, floor = WIDTH - 8, HEIGHT - BELOW
    x_of, y_of = (right - LEFT) / end_s, (floor - 8) / top
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for mib in range(0, top + 1, step):
        y = round(floor - mib * y_of, 1)
        lines.append(f'<path d="M{LEFT} {y}H{right}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{mib}</text>')
    for minute in range(int(end_s / 60) + 1):
        x = round(LEFT + minute * 60 * x_of, 1)
        lines.append(f'<text x="{x}" y="{floor + 16}" text-anchor="middle">{minute}</text>')
    for number, (name, points) in enumerate(figures.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(f"{LEFT + s * x_of:.1f},{floor - mib * y_of:.1f}" for s, mib in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}"/>')
        x = LEFT + 130 * number
        lines.append(f'<text x="{x}" y="{HEIGHT - 6}" fill="{color}">{name}</text>')
    lines.append(f'<text x="{right}" y="{HEIGHT - 6}" text-anchor="end">{unit}, by minute</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    parser = ArgumentParser(prog="python -m tests.bench.memory", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=10_000, help="messages a second to each")
    parser.add_argument("--svg", type=Path, help="where to draw it")
    parser.add_argument("brokers", nargs="*", default=[f"here={ROOT}"], metavar="NAME=CHECKOUT")
    options = parser.parse_args()
    frames = send_frames(8, SerializeType.ROCKETMQ)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="troupemq-memory-")))
        brokers: list[LoadedBroker] = []
        for number, text in enumerate(options.brokers):
            name, _, checkout = text.partition("=")
            build, folder = Build.of_text(checkout), scratch / str(number)
            broker = LoadedBroker(name, build, folder, frames, is_sync_master=False)
            stack.callback(broker.close)
            brokers.append(broker)
        figures: dict[str, list[tuple[float, float]]] = {each.name: [] for each in brokers}
        began_s, done = monotonic(), 0
        while (now_s := monotonic() - began_s) < options.minutes * 60:
            if done > now_s * options.rate:
                Event().wait(done / options.rate - now_s)
                continue
            for broker in brokers:
                points = figures[broker.name]
                if not points or now_s >= points[-1][0] + 1:
                    points.append((now_s, memory(broker.child.pid).anonymous_kib / 1024))
                broker.load(AT_A_TIME, AT_A_TIME)
            done += AT_A_TIME
    for name, points in figures.items():
        for minute in range(int(points[-1][0] / 60) + 1):
            mibs = [mib for s, mib in points if s // 60 == minute]
            print(f"{name:<16} minute {minute:>3} {min(mibs):>7.1f} to {max(mibs):.1f} MiB")
    if options.svg is not None:
        options.svg.write_text(drawing(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
