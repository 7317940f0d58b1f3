"""The settings that say where a server's console listens; keys of ours, the same for both."""

from dataclasses import dataclass

from storage.config import key


@dataclass(frozen=True)
class ConsolePlace:
    """A console is a process of its own beside the server."""

    console_port: int = key("consolePort", default=0)
    """0: no console."""
    console_bind_address: str = key("consoleBindAddress", default="127.0.0.1")
    console_hosts: str = key("consoleHosts", default="")
    """Names by which browsers call it, with `,` between them."""
