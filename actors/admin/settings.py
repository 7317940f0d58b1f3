"""Settings of a running broker or name server.

Owns: the settings file (the -c file of the start) and the settings marked `live`.
Receives: Request (connections).
Sends: PermissionChanged (TopicTable).

A change is checked as at the start and written to the file, with its comments kept, before it
applies and before it is answered. Settings marked `live` (storage/config.py) apply at once. The
remark of the answer names those that need a restart and unknown ones.

4.9.7 accepts any value for any key. Here, invalid values are refused, and so are all keys that name
a file, class, command, address, port or page. With such a setting, a client of the admin port could
run code (CVE-2023-33246, CVE-2023-37582). Names and roles of brokers may change, as mqadmin's users
do that: a slave finds its master through its operator's name servers.

Source: common/Configuration.java, AdminBrokerProcessor and DefaultRequestProcessor (updateConfig);
the deny lists are those of 4.9.8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from re import IGNORECASE
from re import compile as compile_pattern
from typing import Any, ClassVar

from actors.config import BrokerConfig, NamesrvConfig, converted_settings, settings_of
from actors.engine.actor import Where
from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import get_logger, shown_names
from actors.network.messages import Request
from actors.network.request import Responder, serves
from actors.settings.known_keys import BROKER_FILE_KEYS, NAMESRV_FILE_KEYS
from actors.tables.messages import PermissionChanged
from protocol.bodies_tables import DataVersion
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import GetBrokerConfigResponseHeader
from protocol.properties_file import format_properties, parse_properties, updated_properties
from storage.config import StoreConfig, keys_of, live_keys_of
from storage.errors import StoreError
from storage.tables.settings_file import read_settings, save_settings

log = get_logger(__name__)

UPDATE_BYTES_MAX = 64 << 10
"""Size of one request: ten times that of all settings."""

REFUSED = "Can not update config in black list."
PERMISSION = "brokerPermission"
_SECRET = "tls."
_BLACK_LIST = frozenset(
    (
        "brokerConfigPath",
        "configBlackList",
        "filterServerNums",
        "messageStorePlugIn",
        "rocketmqHome",
        "rocketmq.home.dir",
        "jobsPython",
        # these would let a restart hand the server to a stranger or open it to all
        *("aclEnable", "aclAllowSampleCredentials", "aclWhiteListAdmin", "aclRoutePermEnable"),
        *("rocketmq.acl.plain.file", "brokerAccessKey", "brokerSecretKey", "haAllowedAddresses"),
        *("namesrvAddr", "haMasterAddress", "brokerIP1", "brokerIP2", "bindAddress"),
        *("listenPort", "haListenPort", "fastListenPort", "monitoringPort", "useTLS"),
        *("fetchNamesrvAddrByAddressServer", "dLegerPeers", "masters"),
        # these would open a page to strangers or send them data
        *("consolePort", "consoleBindAddress", "consoleHosts", "healthPort", "metricsExporterType"),
        "monitoringHosts",
        *("metricsPromExporterHost", "metricsPromExporterPort", "otelTraces", "otelTracesEndpoint"),
        # these are limits that protect the server
        *("adminAllowedAddresses", "haBindAddress", "maxConnections", "maxConnectionsPerAddress"),
        *("maxAutoTopics", "maxAutoGroups", "com.rocketmq.remoting.frameMaxLength"),
    )
)
"""Refused keys that name no path and still lead to files, classes, commands or access."""
_NAMES_A_PATH = compile_pattern(r"path|tls\.|^rmqAddressServer|^rocketmq\.namesrv\.", IGNORECASE)

WITHOUT_EFFECT = {"filterServerNums": "0"}
"""Keys without effect that `mqadmin exportConfigs` needs, with 4.9.7's defaults."""


def is_refused(key: str, black_list: str = "") -> bool:
    """Return whether the key is refused; `black_list` is the operator's, separated by `;`."""
    own = {name.strip() for name in black_list.split(";")} - {""}
    return key in _BLACK_LIST or bool(_NAMES_A_PATH.search(key)) or key in own


class Settings(Responder):
    """Common part of both servers. Runs on a thread, because a change waits for the disk."""

    where: ClassVar[Where] = "thread"
    known_keys: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, configs: Sequence[Any], path: str, black_list: str) -> None:
        """Take the `path` of the settings file; empty: changes last until the stop."""
        super().__init__()
        self._configs = list(configs)
        self._path = path
        self._black_list = black_list
        self._changed: dict[str, str] = {}
        self._version = DataVersion()

    def on_start(self) -> None:
        self._version = DataVersion(self.system.clock.now_ms(), 0)

    def shown(self) -> bytes:
        """Return every setting; one that needs a restart has its new value."""
        settings = {**settings_of(*self._configs), **self._in_file(), **self._changed}
        return format_properties(settings).encode()

    def _in_file(self) -> dict[str, str]:
        """Return the file's settings of 4.9.7 that have no effect here."""
        own = {name for config in self._configs for name in keys_of(type(config))}
        try:
            found = {**WITHOUT_EFFECT, **parse_properties(self._text())}
        except (StoreError, ValueError) as error:
            log.warning("settings file not read", file=self._path, reason=str(error))
            found = dict(WITHOUT_EFFECT)
        return {
            name: value
            for name, value in found.items()
            if name in self.known_keys and name not in own and not name.startswith(_SECRET)
        }

    def _text(self) -> str:
        return read_settings(self.system.disk, self._path) if self._path else ""

    def update(self, request: Request) -> tuple[RemotingCommand, Mapping[str, str]]:
        """Apply the settings in the body; return the answer and the changed settings.

        Raises RemoteError, and changes nothing, for an unreadable body, a refused key, an
        invalid value, and a file that cannot be written.
        """
        command = request.command
        if command.body is None:
            return command.answer(), {}
        if len(command.body) > UPDATE_BYTES_MAX:
            remark = f"the settings have {len(command.body)} bytes: at most {UPDATE_BYTES_MAX}"
            raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "a body is too long")
        try:
            wanted = parse_properties(bytes(command.body).decode("utf-8", "replace"))
        except ValueError:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, "string2Properties error") from None
        refused = sorted(key for key in wanted if is_refused(key, self._black_list))
        if refused:
            self.system.rarely.warn(
                "settings not changed", peer=request.peer.remote, refused=shown_names(refused)
            )
            raise RemoteError(ResponseCode.NO_PERMISSION, REFUSED)
        taken = {key: value for key, value in wanted.items() if key in self.known_keys}
        values = {**self._changed, **taken}  # settings that need a restart count, too
        try:
            checked = [
                replace(config, **converted_settings(config, values)) for config in self._configs
            ]
            self.begin_change()
            if self._path and taken:
                save_settings(self.system.disk, self._path, updated_properties(self._text(), taken))
        except (StoreError, ValueError) as error:  # ConfigError is a StoreError
            raise RemoteError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        for config, new in zip(self._configs, checked, strict=True):
            _set_live(config, new, taken)
        self._changed.update(taken)
        self._version = self._version.next(self.system.clock.now_ms())
        peer = request.peer.remote
        if self.system.rarely.may_tell("many changes of settings", peer=peer):
            log.info("settings changed", peer=peer, keys=sorted(taken))
        return command.answer(remark=self._what_waits(wanted, taken)), taken

    def _what_waits(self, wanted: Mapping[str, str], taken: Mapping[str, str]) -> str | None:
        """Return the remark of a successful change, or None."""
        own = {name for config in self._configs for name in keys_of(type(config))}
        live = {name for config in self._configs for name in live_keys_of(type(config))}
        parts = (
            ("after a restart", [key for key in taken if key in own and key not in live]),
            ("without effect here", [key for key in taken if key not in own]),
            ("unknown", [key for key in wanted if key not in taken]),
        )
        told = [f"{what}: {', '.join(keys)}" for what, keys in parts if keys]
        if taken and not self._path:
            told.append("lost at a restart: there is no settings file")
        return "; ".join(told) or None


def _set_live(config: Any, new: Any, changed: Mapping[str, str]) -> None:
    """Replace live settings, each in one step; the only place that changes them."""
    for key, name in live_keys_of(type(config)).items():
        if key in changed:
            object.__setattr__(config, name, getattr(new, name))


class BrokerSettings(Settings):
    known_keys = BROKER_FILE_KEYS | keys_of(BrokerConfig).keys() | keys_of(StoreConfig).keys()

    def __init__(
        self, config: BrokerConfig, store_config: StoreConfig, topics: ActorAddress
    ) -> None:
        super().__init__((config, store_config), config.config_path, config.config_black_list)
        self._topics = topics

    @serves(RequestCode.UPDATE_BROKER_CONFIG)
    def on_update(self, request: Request) -> RemotingCommand:
        """Change settings; a new permission is registered with every topic."""
        answer, changed = self.update(request)
        if PERMISSION in changed:
            self._topics.tell(PermissionChanged())
        return answer

    @serves(RequestCode.GET_BROKER_CONFIG)
    def on_get(self, request: Request) -> RemotingCommand:
        """Answer with the settings as a properties file."""
        version = self._version.encode().decode()
        fields = GetBrokerConfigResponseHeader(version).encode()
        return request.command.answer(fields=fields, body=self.shown())


class NamesrvSettings(Settings):
    known_keys = NAMESRV_FILE_KEYS | keys_of(NamesrvConfig).keys()

    def __init__(self, config: NamesrvConfig) -> None:
        super().__init__((config,), config.config_store_path, config.config_black_list)

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG)
    def on_update(self, request: Request) -> RemotingCommand:
        answer, _ = self.update(request)
        return answer

    @serves(RequestCode.GET_NAMESRV_CONFIG)
    def on_get(self, request: Request) -> RemotingCommand:
        return request.command.answer(body=self.shown())
