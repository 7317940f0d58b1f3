"""The address patterns of plain_acl.yml: their addresses, and patterns that are refused."""

from ipaddress import IPv4Address, IPv6Address, ip_address
from random import Random
from time import thread_time

import pytest
from hypothesis import assume, example, given
from hypothesis.strategies import text as texts

from actors.engine.short_collections import without_collections
from storage.access.addresses import AddressError, parse_addresses

EVERYBODY = ["0.0.0.0", "255.255.255.255", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("", [], [*EVERYBODY, "127.0.0.1"]),
        ("  ", [], EVERYBODY),
        ("*", EVERYBODY, []),
        ("*.*.*.*", EVERYBODY, []),
        ("*:*:*:*:*:*:*:*", EVERYBODY, []),
        ("10.0.0.7", ["10.0.0.7"], ["10.0.0.8", "::a00:7"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "0.0.0.1"]),
        ("2001:DB8::A", ["2001:db8::a"], ["2001:db8::b"]),
        ("10.0.0.1,10.0.0.3,::9", ["10.0.0.1", "10.0.0.3", "::9"], ["10.0.0.2"]),
        ("10.0.0.{1,3}", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"]),
        ("2001:db8::{a,c}", ["2001:db8::a", "2001:db8::c"], ["2001:db8::b"]),
        ("10.0.0.*", ["10.0.0.0", "10.0.0.255"], ["9.255.255.255", "10.0.1.0"]),
        ("10.0.*.*", ["10.0.0.0", "10.0.255.255"], ["10.1.0.0"]),
        ("10.*.*.*", ["10.0.0.0", "10.255.255.255"], ["11.0.0.0"]),
        ("10.0.0.4-9", ["10.0.0.4", "10.0.0.9"], ["10.0.0.3", "10.0.0.10"]),
        ("10.0.1-20.*", ["10.0.1.0", "10.0.20.255"], ["10.0.0.255", "10.0.21.0"]),
        ("1050::5:1-200", ["1050::5:1", "1050::5:200"], ["1050::5:0", "1050::5:201"]),
        ("1050::5:*", ["1050::5:0", "1050::5:ffff"], ["1050::6:0"]),
        ("1050::5:1-20:*", ["1050::5:1:0", "1050::5:20:ffff"], ["1050::5:0:ffff", "1050::5:21:0"]),
        ("10.0.0.0/8", ["10.0.0.0", "10.255.255.255"], ["11.0.0.0"]),
        ("2001:db8::/32", ["2001:db8:ffff::1"], ["2001:db9::"]),
        ("::ffff:10.0.0.7", ["10.0.0.7"], ["10.0.0.8"]),
        ("::ffff:10.0.0.{1,3}", ["10.0.0.3"], ["10.0.0.2"]),
        ("::ffff:10.0.0.0/104", ["10.255.255.255"], ["9.0.0.1", "11.0.0.0"]),
    ],
)
def test_a_pattern_matches_only_its_addresses(
    text: str, inside: list[str], outside: list[str]
) -> None:
    found = parse_addresses(text)
    assert [each for each in inside if ip_address(each) not in found] == []
    assert [each for each in outside if ip_address(each) in found] == []


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0",
        "10.0.0.256",
        "host.example",
        "10.0.0.1, 10.0.0.2",
        "10.0.0.1,",
        "10.0.{1,2}",
        "10.0.{1,2}.3",
        "10.0.0.{1,{2}}",
        "10.0.0.{}",
        "10.0.0.{1,2}3",
        "10.*.1.1",
        "10.0.1-20.5",
        "*.0.0.1",
        "1-9.0.0.1",
        "10.0.0.4-0",
        "10.0.0.0-0",
        "10.0.0.9-4",
        "10.0.0.4-256",
        "10.0.0.-",
        "10.0.0.4-",
        "10.0.*",
        "1050::5:*:1",
        "1050:*::5",
        "1050::5:g-h",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0.7:9876",
    ],
)
def test_an_invalid_or_ambiguous_address_is_refused_and_named(text: str) -> None:
    with pytest.raises(AddressError) as refused:
        parse_addresses(text)
    assert f"netaddress is {text}" in str(refused.value)
    assert str(refused.value).startswith("Netaddress examine ")


def test_patterns_that_overlap_have_all_their_addresses() -> None:
    random = Random(7)
    for _ in range(200):
        ranges = [sorted(random.choices(range(60), k=2)) for _ in range(random.randint(1, 8))]
        found = parse_addresses(*(f"10.0.0.{first}-{last + 1}" for first, last in ranges))
        inside = {each for first, last in ranges for each in range(first, last + 2)}
        assert {each for each in range(70) if ip_address(f"10.0.0.{each}") in found} == inside
        assert ip_address("::a00:7") not in found


@given(texts(alphabet="0123456789abfF.:%- x\0٣", max_size=20))
@example("::ffff:10.0.0.7")
@example("::1.2.3.4")
@example("1:2:3:4:5:6:7:8")
@example("00001::1")
@example("10.0.0.07")
@example("fe80::1%eth0")
@example("::\ud800")
def test_one_address_is_read_as_the_standard_library_does(text: str) -> None:
    assume(text.strip() and not any(each in text for each in "-,*/{}"))
    try:
        wanted = ip_address(text)
    except ValueError:
        with pytest.raises(AddressError):
            parse_addresses(text)
        return
    mapped = wanted.ipv4_mapped if isinstance(wanted, IPv6Address) else None
    meant = mapped or wanted
    assert parse_addresses(text).ranges == ((meant.version, int(meant), int(meant)),)


@pytest.mark.heavy
def test_a_list_of_16_000_short_addresses_is_read_at_once() -> None:
    """Reading one of 32 KiB took 60 ms."""
    took_s = []
    for members in ("1" * 16_000, [f"{each:x}" for each in range(8_000)]):
        text = f"::{{{','.join(members)}}}"
        with without_collections():  # which would visit what other tests have left
            began_s = thread_time()
            found = parse_addresses(text)
            took_s.append(thread_time() - began_s)
        assert len(found.ranges) == len(set(members))
    assert max(took_s) < 0.05


@pytest.mark.heavy
def test_a_long_allowlist_is_read_in_linear_time_and_searched_at_once() -> None:
    """60,000 addresses were read in 3.7 s; each peer was compared with all of them."""
    began_s = thread_time()
    found = parse_addresses(*(str(IPv4Address(each)) for each in range(0, 100_000, 2)))
    assert thread_time() - began_s < 1.0
    began_s = thread_time()
    assert sum(IPv4Address(each) in found for each in range(2_000)) == 1_000
    assert thread_time() - began_s < 0.5
