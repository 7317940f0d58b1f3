"""Addresses: which texts are some."""

import pytest

from remoting.address import split_address, split_addresses


def test_a_host_is_a_name_or_an_ipv6_address_in_brackets() -> None:
    assert split_address("broker.example:10911") == ("broker.example", 10911)
    assert split_address("[::1]:9876") == ("::1", 9876)


def test_several_addresses_are_separated_by_semicolons() -> None:
    assert split_addresses("a:1; b:2;") == ("a:1", "b:2")


@pytest.mark.parametrize(
    "text", ["", ";", "host", "host:", ":9876", "host:x", "host:65536", "a:1;b"]
)
def test_any_other_text_is_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address of the form host:port"):
        split_addresses(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("http://name-server:9876", "is a URL: write host:port alone"),
        ("::1", "has no port: write an IPv6 address as"),
        ("name server:9876", "is not an address of the form host:port"),
    ],
)
def test_an_address_with_more_than_a_host_was_looked_up_for_ever(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        split_address(text)
