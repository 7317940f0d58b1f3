"""Settings of a server's console address, for brokers and name servers; TroupeMQ extension."""

from dataclasses import dataclass

from storage.config import key


@dataclass(frozen=True)
class ConsolePlace:
    """Address of the console, a separate process beside the server."""

    console_port: int = key("consolePort", default=0)
    """Port; 0: no console."""
    console_bind_address: str = key("consoleBindAddress", default="127.0.0.1")
    console_hosts: str = key("consoleHosts", default="")
    """Host names by which browsers call it, separated by `,`."""
