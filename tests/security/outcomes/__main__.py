"""Table of outcomes: `python -m tests.security.outcomes [A7 A12 …]`.

Each attempt is made once against official servers and once against ours, at its own counts. The
table is printed as Markdown and gives the reason of each attempt that cannot be made. Attempts that
damage the servers come last. A broker that has ended is restarted, which the table notes.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.compat.toolchain import MissingTool, java
from tests.security.outcomes import clients, reading, rights, servers
from tests.security.outcomes.sides import Side, started

KINDS = ("official", "ours")
Attempt = Callable[[Side], str]
ATTEMPTS: dict[str, dict[str, Attempt]] = {
    "plain": {
        "A4": reading.a4,
        "A11": reading.a11,
        "A16": reading.a16,
        "A17": reading.a17,
        "A20": reading.a20,
        "A13": reading.a13,
        "A14": reading.a14,
        "A15": reading.a15,
        "A18": reading.a18,
        "A41": reading.a41,
        "A5 without TLS": servers.a5_without,
        "A9": reading.a9,
        "A10": reading.a10,
        "A35": servers.a35,
        "A36": servers.a36,
        "A12": reading.a12,
        "A38": servers.a38,
        "A40": reading.a40,
        "A1": reading.a1,
        "A3": reading.a3,
        "A39": reading.a39,
        "A2": reading.a2,
        "A19": reading.a19,
    },
    "accounts": {
        "A23": rights.a23,
        "A24": rights.a24,
        "A25": rights.a25,
        "A26": rights.a26,
        "A27": rights.a27,
        "A28": rights.a28,
        "A29": rights.a29,
        "A30": rights.a30,
        "A32": rights.a32,
        "A33": rights.a33,
        "A34": rights.a34,
        "A37": servers.a37,
        "A21": rights.a21,
        "A22": rights.a22,
        "A31": rights.a31,
    },
    "tls": {"A6": servers.a6, "A8": servers.a8, "A5": servers.a5, "A7": servers.a7},
    "sync": {"A37 confirmed": servers.a37_confirmed},
    "store": {"A50": servers.a50},
}
"""Attempts by the servers they need, in order."""
ON_CLIENTS = "A49"
"""The one that hostile servers of our own make against clients of both kinds."""


def main(wanted: Sequence[str]) -> int:
    try:
        tools = java()
    except MissingTool as missing:
        print(f"no official servers here: {missing}")
        return 1
    found: dict[str, dict[str, str]] = {}
    with TemporaryDirectory(prefix="troupemq-outcomes-") as scratch:
        for mode, attempts in ATTEMPTS.items():
            chosen = {name: attempts[name] for name in attempts if not wanted or name in wanted}
            for kind in KINDS if chosen else ():
                with ExitStack() as stack:
                    side = stack.enter_context(started(kind, mode, tools, Path(scratch)))
                    for name, attempt in chosen.items():
                        said = outcome(side, attempt)
                        print(f"{name} {kind}: {said}", file=sys.stderr, flush=True)
                        found.setdefault(name, {})[kind] = said
        for kind in KINDS if not wanted or ON_CLIENTS in wanted else ():
            found.setdefault(ON_CLIENTS, {})[kind] = clients.a49(kind, tools, Path(scratch))
    print("| | 4.9.7 | here |\n|---|---|---|")
    for name in sorted(found, key=lambda name: int(name.split()[0][1:])):
        print(f"| {name} | {' | '.join(found[name].get(kind, '') for kind in KINDS)} |")
    return 0


def outcome(side: Side, attempt: Attempt) -> str:
    """Return the attempt's outcome, and whether the servers survived it."""
    try:
        said = attempt(side)
    except Exception as error:  # the attacker's own mishap is an outcome, too
        said = f"not seen: {type(error).__name__} {str(error)[:100]}"
    for server in (side.names, side.broker):
        if server.child.exit_code() is not None:
            said += f"; the {'name server' if server is side.names else 'broker'} is gone"
            server.address = ""
            server.start()
    return said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
