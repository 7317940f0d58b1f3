"""Tests of protocol/codes.py: the names of old versions."""

import pytest

from protocol.codes import V3_0_7_SNAPSHOT, V3_1_8_SNAPSHOT, version_name


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (1, "V3_0_0_ALPHA1"),
        (6, "V3_0_0_BETA5"),
        (7, "V3_0_0_BETA6_SNAPSHOT"),
        (15, "V3_0_0_FINAL"),
        (16, "V3_0_1_SNAPSHOT"),
        (27, "V3_0_6"),
        (V3_0_7_SNAPSHOT, "V3_0_7_SNAPSHOT"),
        (37, "V3_0_11"),
        (45, "V3_0_15"),
        (46, "V3_1_0_SNAPSHOT"),
        (47, "V3_1_0"),
        (61, "V3_1_7"),
        (V3_1_8_SNAPSHOT, "62"),
        (-1, "-1"),
    ],
)
def test_a_version_number_has_the_originals_name(version: int, name: str) -> None:
    assert version_name(version) == name
