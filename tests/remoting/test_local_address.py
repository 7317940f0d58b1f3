"""The address that a machine with several addresses announces: the choice of Java 4.9.7.

Expected are the lists of java.net.NetworkInterface in such a namespace, newest interface first.
"""

import subprocess
import sys
from ipaddress import ip_address

import pytest

from remoting.local_address import local_address
from tests.support.golden import REPOSITORY
from tests.support.namespaces import OtherMachine, skip_without_namespaces


def test_this_machine_has_a_local_address() -> None:
    assert ip_address(local_address()).version == 4


@pytest.mark.slow
def test_the_newest_address_of_the_newest_interface_is_chosen() -> None:
    skip_without_namespaces()
    with OtherMachine(40) as machine:
        assert _told_by(machine) == machine.address
        _add(machine, "one", "type", "veth", "peer", "name", "other")
        _address(machine, "10.1.0.1/24", "one")
        assert _told_by(machine) == "10.1.0.1"
        _address(machine, "10.1.1.1/24", "one")
        assert _told_by(machine) == "10.1.1.1"
        _address(machine, "10.1.2.1/24", "one", "label", "one:0")
        assert _told_by(machine) == "10.1.2.1"
        _address(machine, "192.168.1.1/24", "other")
        _add(machine, "bridge0", "type", "bridge")
        _address(machine, "10.9.0.1/24", "bridge0")
        assert _told_by(machine) == "10.1.2.1"


def _told_by(machine: OtherMachine) -> str:
    program = "from remoting.local_address import local_address as l; print(l())"
    done = subprocess.run(
        [*machine.enter, sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _add(machine: OtherMachine, *what: str) -> None:
    _ip(machine, "link", "add", *what)


def _address(machine: OtherMachine, address: str, interface: str, *more: str) -> None:
    _ip(machine, "addr", "add", address, "dev", interface, *more)


def _ip(machine: OtherMachine, *arguments: str) -> None:
    subprocess.run(["ip", "-n", machine.name, *arguments], check=True, capture_output=True)
