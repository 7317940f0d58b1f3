"""Tests of actors/tables/names.py: names are refused with the words of 4.9.7."""

import pytest

from actors.tables.names import check_group_name, check_topic_name
from protocol.codes import ResponseCode
from protocol.errors import RemoteError


@pytest.mark.parametrize("name", ["", " ", "../../x", "a/b", "x" * 256])
def test_invalid_name_is_the_requesters_fault(name: str) -> None:
    for check, kind in ((check_topic_name, "topic"), (check_group_name, "group")):
        with pytest.raises(RemoteError, match=f"(?i)^the specified {kind}") as refused:
            check(name)
        assert refused.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("name", ["NS%name", "a|b", "x" * 127, "%RETRY%group"])
def test_a_name_that_clients_accept_is_accepted(name: str) -> None:
    check_topic_name(name)
    check_group_name(name)
    check_group_name("x" * 255)
