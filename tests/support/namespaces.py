"""A second machine on this one: a network namespace with a cable to this one that can be pulled."""

import os
import shutil
import subprocess
from dataclasses import dataclass

import pytest


@dataclass
class OtherMachine:
    """A namespace behind a veth pair; `with` makes it and takes it away. Needs the right to."""

    number: int

    def __post_init__(self) -> None:
        self.name = f"troupemq-{os.getpid()}-{self.number}"
        self._cable = f"tmq{os.getpid() % 100_000}a{self.number}"
        self._far_end = f"tmq{os.getpid() % 100_000}b{self.number}"
        subnet = f"10.{200 + self.number % 50}.{os.getpid() % 250}"
        self.near_address, self.address = f"{subnet}.1", f"{subnet}.2"
        self.enter = ("ip", "netns", "exec", self.name)
        """A command that runs there."""

    def pull_the_cable(self) -> None:
        """Drop all packets without a notice."""
        _ip("link", "set", self._cable, "down")

    def plug_it_in(self) -> None:
        _ip("link", "set", self._cable, "up")

    def __enter__(self) -> "OtherMachine":
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", self._cable, "type", "veth", "peer", "name", self._far_end)
            _ip("link", "set", self._far_end, "netns", self.name)
            _ip("addr", "add", f"{self.near_address}/24", "dev", self._cable)
            _ip("link", "set", self._cable, "up")
            inside = ("-n", self.name)
            _ip(*inside, "addr", "add", f"{self.address}/24", "dev", self._far_end)
            _ip(*inside, "link", "set", self._far_end, "up")
            _ip(*inside, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["ip", "link", "del", self._cable], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)


def skip_without_namespaces() -> None:
    """Skip the test, visibly, if namespaces may not be made; on CI fail if they may."""
    if shutil.which("ip") is None:
        pytest.skip("no network namespaces here: there is no `ip`")
    name = f"troupemq-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no network namespaces here: {tried.stderr.strip()}")
    subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
