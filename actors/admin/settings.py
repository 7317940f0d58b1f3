"""Shows and changes a server's settings while it runs: those of a broker, those of a name server.

Owns: the settings file (the -c file of the start), the settings that are marked `live`.
Told by: connections (`Request`).
Tells: topics (`PermissionChanged`).

A change is checked as at a start and written to the file, its comments kept, before it holds and
before it is answered. What is `live` (storage/config.py) holds from then on; the remark of the
answer names what waits for a restart and what nobody knows. 4.9.7 takes any value for any key; a
value that cannot work is refused here, and so is whatever names a file, a class or a command: with
such a setting somebody at the admin port could run code (CVE-2023-33246, CVE-2023-37582); or an
address, a port, a page. Names and roles of brokers are taken, as mqadmin's users change them: whose
slave one becomes its operator's name servers say.

Source: common/Configuration.java, AdminBrokerProcessor and DefaultRequestProcessor (updateConfig);
the black lists are those of 4.9.8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from re import IGNORECASE
from re import compile as compile_pattern
from typing import Any, ClassVar

from structlog import get_logger

from actors.config import BrokerConfig, NamesrvConfig, converted_settings, settings_of
from actors.engine.actor import Where
from actors.engine.actor_address import ActorAddress
from actors.engine.rate_limited_log import shown_names
from actors.network.request import Request, Responder, serves
from actors.settings.known_keys import BROKER_FILE_KEYS, NAMESRV_FILE_KEYS
from actors.settings.properties_file import format_properties, parse_properties, updated_properties
from actors.tables.messages import PermissionChanged
from protocol.bodies import DataVersion
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import LimitReached, RemoteError
from protocol.headers.admin import GetBrokerConfigResponseHeader
from storage.config import StoreConfig, keys_of, live_keys_of
from storage.errors import StoreError
from storage.tables.settings_file import read_settings, save_settings

log = get_logger(__name__)

UPDATE_BYTES_MAX = 64 << 10
"""Settings of one request: ten times as much as there are."""

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
        # with these a restart would bring a server under somebody else, or open it to everybody
        *("aclEnable", "aclAllowSampleCredentials", "aclWhiteListAdmin", "aclRoutePermEnable"),
        *("rocketmq.acl.plain.file", "brokerAccessKey", "brokerSecretKey", "haAllowedAddresses"),
        *("namesrvAddr", "haMasterAddress", "brokerIP1", "brokerIP2", "bindAddress"),
        *("listenPort", "haListenPort", "fastListenPort", "monitoringPort", "useTLS"),
        *("fetchNamesrvAddrByAddressServer", "dLegerPeers", "masters"),
        # or open a page to strangers, or send them what it knows
        *("consolePort", "consoleBindAddress", "consoleHosts", "healthPort", "metricsExporterType"),
        "monitoringHosts",
        *("metricsPromExporterHost", "metricsPromExporterPort", "otelTraces", "otelTracesEndpoint"),
        # and what holds everybody but its operator back
        *("adminAllowedAddresses", "haBindAddress", "maxConnections", "maxConnectionsPerAddress"),
        *("maxAutoTopics", "maxAutoGroups", "com.rocketmq.remoting.frameMaxLength"),
    )
)
"""Keys that name no path and still lead to files, classes or commands of RocketMQ's."""
_NAMES_A_PATH = compile_pattern(r"path|tls\.|^rmqAddressServer|^rocketmq\.namesrv\.", IGNORECASE)

WITHOUT_EFFECT = {"filterServerNums": "0"}
"""Keys that do nothing here and that `mqadmin exportConfigs` needs, with 4.9.7's defaults."""


def is_refused(key: str, black_list: str = "") -> bool:
    """Whether nobody may set this key from outside; `black_list` is the operator's, with `;`."""
    own = {name.strip() for name in black_list.split(";")} - {""}
    return key in _BLACK_LIST or bool(_NAMES_A_PATH.search(key)) or key in own


class Settings(Responder):
    """What both servers share. Runs on a thread: a change waits for the disk."""

    where: ClassVar[Where] = "thread"
    known_keys: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, configs: Sequence[Any], path: str, black_list: str) -> None:
        """`path` of the settings file; empty: there is none, and changes last until the stop."""
        super().__init__()
        self._configs = list(configs)
        self._path = path
        self._black_list = black_list
        self._changed: dict[str, str] = {}
        self._version = DataVersion()

    def on_start(self) -> None:
        self._version = DataVersion(self.system.clock.now_ms(), 0)

    def shown(self) -> bytes:
        """Every setting with its value; one that waits for a restart has the new one."""
        settings = {**settings_of(*self._configs), **self._in_file(), **self._changed}
        return format_properties(settings).encode()

    def _in_file(self) -> dict[str, str]:
        """Settings of 4.9.7 that do nothing here, as the file has them."""
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
        """Takes over the settings in the body; the answer, and what has been changed.

        Raises RemoteError, and then nothing is changed: for what cannot be read, for a key that may
        not be set over the network, for a wrong value, and when the file cannot be written.
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
        values = {**self._changed, **taken}  # what waits for a restart counts for what comes now
        try:
            checked = [
                replace(config, **converted_settings(config, values)) for config in self._configs
            ]
            self.begin_change()
            if self._path and taken:
                save_settings(self.system.disk, self._path, updated_properties(self._text(), taken))
        except (StoreError, ValueError) as error:  # of the former ConfigError is one
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
        """What the administrator has to know beside that it is done."""
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
    """The one place where settings change: each is one value, replaced in one step."""
    for key, name in live_keys_of(type(config)).items():
        if key in changed:
            object.__setattr__(config, name, getattr(new, name))


class BrokerSettings(Settings):
    """A broker's."""

    known_keys = BROKER_FILE_KEYS | keys_of(BrokerConfig).keys() | keys_of(StoreConfig).keys()

    def __init__(
        self, config: BrokerConfig, store_config: StoreConfig, topics: ActorAddress
    ) -> None:
        super().__init__((config, store_config), config.config_path, config.config_black_list)
        self._topics = topics

    @serves(RequestCode.UPDATE_BROKER_CONFIG)
    def on_update(self, request: Request) -> RemotingCommand:
        """Changes settings; a new permission is told to the name servers with every topic."""
        answer, changed = self.update(request)
        if PERMISSION in changed:
            self._topics.tell(PermissionChanged())
        return answer

    @serves(RequestCode.GET_BROKER_CONFIG)
    def on_get(self, request: Request) -> RemotingCommand:
        """The settings, as the lines of a properties file."""
        version = self._version.encode().decode()
        fields = GetBrokerConfigResponseHeader(version).encode()
        return request.command.answer(fields=fields, body=self.shown())


class NamesrvSettings(Settings):
    """A name server's."""

    known_keys = NAMESRV_FILE_KEYS | keys_of(NamesrvConfig).keys()

    def __init__(self, config: NamesrvConfig) -> None:
        super().__init__((config,), config.config_store_path, config.config_black_list)

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG)
    def on_update(self, request: Request) -> RemotingCommand:
        """Changes settings."""
        answer, _ = self.update(request)
        return answer

    @serves(RequestCode.GET_NAMESRV_CONFIG)
    def on_get(self, request: Request) -> RemotingCommand:
        """The settings, as the lines of a properties file."""
        return request.command.answer(body=self.shown())
