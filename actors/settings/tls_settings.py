"""Settings of TLS for brokers and name servers: RocketMQ's keys and extensions of TroupeMQ.

4.9.7 reads them from Java's command line and from the file named by tls.config.file. Here they may
also be in the settings file; those of tls.config.file override it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.properties_file import parse_properties
from remoting.tls import CLIENT_AUTH, TlsFiles
from storage.config import key
from storage.errors import WrongSetting, reason_of

DISABLED, PERMISSIVE, ENFORCING = MODES = ("disabled", "permissive", "enforcing")
_CONFIG_KEY = "tls.config.file"
_PASSWORDS = ("tls.server.keyPassword", "tls.client.keyPassword")


@dataclass(frozen=True)
class TlsSettings:
    """Modes, certificates and keys of a server's ports."""

    tls_mode: str = key("tls.server.mode", default=PERMISSIVE)
    """With permissive, clients may use TLS if there is a certificate."""
    tls_config_file: str = key("tls.config.file", default="/etc/rocketmq/tls.properties")
    tls_test_mode: bool = key("tls.test.mode.enable", default=False)
    """Create a certificate at the start and verify no peer; the default of 4.9.7."""
    tls_client_auth: str = key("tls.server.need.client.auth", default="none")
    tls_server_key: str = key("tls.server.keyPath", default="")
    tls_server_key_password: str = key("tls.server.keyPassword", default="", secret=True)
    tls_server_certificate: str = key("tls.server.certPath", default="")
    tls_checks_client: bool = key("tls.server.authClient", default=True)
    """Whether client certificates are verified; not the default of 4.9.7."""
    tls_server_trust: str = key("tls.server.trustCertPath", default="")
    tls_metrics_mode: str = key("tls.metrics.mode", default=DISABLED)
    """Mode of the metrics port. TroupeMQ extension."""

    def check_tls(self) -> None:
        _check_word("tls.server.mode", self.tls_mode, MODES)
        _check_word("tls.metrics.mode", self.tls_metrics_mode, MODES)
        _check_word("tls.server.need.client.auth", self.tls_client_auth, tuple(CLIENT_AUTH))
        if bool(self.tls_server_certificate) != bool(self.tls_server_key):
            raise WrongSetting("tls.server.certPath and tls.server.keyPath belong together.")
        for name, mode in (
            ("tls.server.mode", self.tls_mode),
            ("tls.metrics.mode", self.tls_metrics_mode),
        ):
            if mode == ENFORCING and not self.has_certificate:
                raise WrongSetting(
                    f"{name} is enforcing, but there is no certificate: name one as"
                    " tls.server.certPath, and its key as tls.server.keyPath."
                )
        if self.asks_clients and not self.tls_test_mode:
            if not self.tls_checks_client:
                raise WrongSetting(
                    f"tls.server.need.client.auth is {self.tls_client_auth} with"
                    " tls.server.authClient=false: an unverified certificate proves nothing;"
                    " remove one of the two."
                )
            if not self.tls_server_trust:
                raise WrongSetting(
                    f"tls.server.need.client.auth is {self.tls_client_auth}: name a file of"
                    " trusted CA certificates as tls.server.trustCertPath."
                )

    @property
    def has_certificate(self) -> bool:
        return self.tls_test_mode or bool(self.tls_server_certificate)

    @property
    def asks_clients(self) -> bool:
        return self.tls_client_auth != "none"

    @property
    def port_mode(self) -> str:
        """Mode of the ports for clients; disabled without a certificate."""
        return self.tls_mode if self.has_certificate else DISABLED

    @property
    def metrics_port_mode(self) -> str:
        return self.tls_metrics_mode if self.has_certificate else DISABLED

    @property
    def server_files(self) -> TlsFiles:
        return TlsFiles(
            self.tls_server_certificate,
            self.tls_server_key,
            self.tls_server_key_password,
            self.tls_server_trust if self.asks_clients else "",
        )


@dataclass(frozen=True)
class BrokerTlsSettings(TlsSettings):
    """Settings of a broker, which also opens connections."""

    tls_ha_mode: str = key("tls.ha.mode", default=DISABLED)
    """Mode of a master's replication port; with enforcing, slaves connect with TLS."""
    tls_enable: str = key("tls.enable", default="")
    """Whether to open connections with TLS; empty: as useTLS, or if the mode is enforcing."""
    use_tls: bool = key("useTLS", default=False)
    tls_client_key: str = key("tls.client.keyPath", default="")
    tls_client_key_password: str = key("tls.client.keyPassword", default="", secret=True)
    tls_client_certificate: str = key("tls.client.certPath", default="")
    tls_checks_server: bool = key("tls.client.authServer", default=True)
    """Whether servers must have a trusted certificate for their host.

    By default 4.9.7 verifies none, and never the host.
    """
    tls_client_trust: str = key("tls.client.trustCertPath", default="")

    def check_tls(self) -> None:
        super().check_tls()
        _check_word("tls.ha.mode", self.tls_ha_mode, MODES)
        _check_word("tls.enable", self.tls_enable.lower(), ("", "true", "false"))
        if bool(self.tls_client_certificate) != bool(self.tls_client_key):
            raise WrongSetting("tls.client.certPath and tls.client.keyPath belong together.")

    @property
    def calls_with_tls(self) -> bool:
        """Whether connections to name servers and to the master use TLS."""
        if self.tls_enable:
            return self.tls_enable.lower() == "true"
        return self.use_tls or self.tls_mode == ENFORCING

    @property
    def calls_any_with_tls(self) -> bool:
        """Whether any connection uses TLS, including that to a replication port."""
        return self.calls_with_tls or self.tls_ha_mode == ENFORCING

    @property
    def ha_port_mode(self) -> str:
        return self.tls_ha_mode if self.has_certificate else DISABLED

    @property
    def client_files(self) -> TlsFiles:
        return TlsFiles(
            self.tls_client_certificate,
            self.tls_client_key,
            self.tls_client_key_password,
            self.tls_client_trust,
        )


_default_file = TlsSettings.tls_config_file


def with_tls_file(values: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the settings overridden by tls.config.file, which the command line overrides.

    Raises WrongSetting for an unreadable file, and for a password on the command line.
    """
    for name in _PASSWORDS:
        if name in overrides:
            raise WrongSetting(
                f"{name} is set on the command line, which any user can read: set it in the"
                f" settings file, or in the one that {_CONFIG_KEY} names."
            )
    path = values.get(_CONFIG_KEY) or _default_file
    if _CONFIG_KEY not in values and not os.path.exists(path):
        return dict(values)
    found = read_tls_file(path)
    return {**values, **found, **{name: overrides[name] for name in found if name in overrides}}


def read_tls_file(path: str) -> dict[str, str]:
    """Return the TLS settings of a file such as RocketMQ's tls.properties. Raises WrongSetting."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            found = parse_properties(file.read())
    except OSError as error:
        reason = reason_of(error)
    except ValueError as error:
        reason = str(error)
    else:
        return {name: value for name, value in found.items() if name.startswith("tls.")}
    raise WrongSetting(f"{path} ({_CONFIG_KEY}) cannot be read: {reason}.")


def _check_word(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        words = ", ".join(each for each in allowed if each)
        raise WrongSetting(f"{name} is {value}: it may be {words}.")
