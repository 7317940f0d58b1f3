"""Versions of clients that a broker treats differently: their ordinals in 4.9.7's list.

Source: common/MQVersion.java.
"""

V3_0_7_SNAPSHOT = 28
"""First version that accepts offset resets and offset queries."""

V3_1_8_SNAPSHOT = 62
"""First version that reports its state and consumes single messages on request."""

_FIRST = [
    "SNAPSHOT",
    "ALPHA1",
    "BETA1",
    "BETA2",
    "BETA3",
    "BETA4",
    "BETA5",
    "BETA6_SNAPSHOT",
    "BETA6",
    "BETA7_SNAPSHOT",
    "BETA7",
    "BETA8_SNAPSHOT",
    "BETA8",
    "BETA9_SNAPSHOT",
    "BETA9",
    "FINAL",
]
_V3_1_0_SNAPSHOT = 46


def version_name(version: int) -> str:
    """Return the name of a version before V3_1_8 (`V3_0_6_SNAPSHOT`), of later ones the number."""
    if not 0 <= version < V3_1_8_SNAPSHOT:
        return str(version)
    if version < len(_FIRST):
        return f"V3_0_0_{_FIRST[version]}"
    if version < _V3_1_0_SNAPSHOT:
        minor, count = 0, version - len(_FIRST) + 2
    else:
        minor, count = 1, version - _V3_1_0_SNAPSHOT
    return f"V3_{minor}_{count // 2}{'' if count % 2 else '_SNAPSHOT'}"
