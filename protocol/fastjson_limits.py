"""Limits of texts in the fastjson dialect, and the error of a text that is refused.

fastjson_reader.py says what a node is.
"""

DEPTH_MAX = 200
"""Nested containers; deeper text is an attack, not a body."""

NODES_A_CONTAINER = 4
NODES_A_STEP = 6
SHORT_NODES_MAX = 100_000
"""Node limit of a body that is read on the loop: some 40 ms.

Enough for 10,000 queues to lock, a client in a thousand groups, or a consumer of 500 queues.
"""

ANSWER_NODES_MAX = 400_000
"""Node limit of routes and members that clients read, long ones on a thread.

The parser blocks all threads for 30 ms with members, for 80 with as many keys; the dialect takes
90 ms beside them. Enough for a topic on 3,000 brokers, a cluster of 5,000, 390,000 members or
40,000 locked queues.
"""

NODES_MAX = 8_000_000
"""Node limit of other bodies: some 3 s. Enough for the lag of 1,000 groups in 50 queues each."""

COPIED_CHARS_MAX = 1 << 20
"""Text that references of one body may copy; written out, each copy takes its room again."""


class FastjsonError(ValueError):
    """Text that fastjson refuses."""


def nodes_of(text_chars: int, nodes_max: int | None) -> int:
    """Return the node limit of a text: its own possible nodes, and what references may copy."""
    nodes = NODES_A_STEP * text_chars + SHORT_NODES_MAX
    return nodes if nodes_max is None else min(nodes, nodes_max)
