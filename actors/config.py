"""Settings of a broker and of a name server, with RocketMQ's key beside each field.

A file in Java properties syntax sets them. Every key of 4.9.7 is accepted. `ConfigFindings` keeps
the keys that have no effect, are unknown, or have an outdated spelling, for one line at the start.
"""

import os
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields, replace
from re import ASCII
from re import compile as compile_pattern
from typing import Any, TypeVar

from actors.settings.access_settings import (
    AccessSettings,
    BrokerAccessSettings,
    with_environment,
)
from actors.settings.known_keys import BROKER_FILE_KEYS, NAMESRV_FILE_KEYS, OLD_SPELLINGS
from actors.settings.telemetry_settings import (
    MetricsSettings,
    NamesrvMetricsSettings,
    SpanSettings,
    without_user,
)
from actors.settings.tls_settings import ENFORCING, BrokerTlsSettings, TlsSettings, with_tls_file
from protocol.bloom import BloomFilter
from protocol.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE
from protocol.ha import TRANSFER_BYTES_MAX, TRANSFER_HEAD_BYTES
from protocol.host import without_brackets
from protocol.java_numbers import parse_double, parse_long
from protocol.properties_file import parse_properties
from remoting.address import split_address
from remoting.local_address import address_of, local_address, local_host_name
from storage.config import StoreConfig, key, keys_of, secret_keys_of
from storage.errors import NotPermitted, WrongSetting, kind_of, reason_of
from storage.spelling import closest

MASTER_ID = 0
MASTERS_MAX = 64
"""Maximum masters of one process; each needs a core and ten ports."""
ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
_PORT_MAX = 65_535
_REGISTER_PERIOD_MS = (10_000, 60_000)
"""Range to which 4.9.7 limits registerNameServerPeriod."""

_FILTERS_MAX = 10_000
"""Maximum groups with property filters: their bit map must fit into a ConsumeQueueExt unit."""

_HA_BATCH_MAX = TRANSFER_BYTES_MAX - TRANSFER_HEAD_BYTES
"""Size of an official slave's buffer."""
_YEAR_9999_MS = 253_370_764_800_000
"""Maximum of startAcceptSendRequestTimeStamp, which remarks show as a date with four-digit year."""
NAMESRV_FILE = os.path.expanduser("~/namesrv/namesrv.properties")

_HOST = compile_pattern(r"[\w.:%-]*", ASCII)
"""Name or address; empty if a default applies."""
_LISTENING = ("bindAddress", "consoleBindAddress", "metricsPromExporterHost")
_HOSTS = ("bind_address", "console_bind_address", "metrics_host")

Config = TypeVar("Config")


class ConfigError(WrongSetting):
    pass


@dataclass(frozen=True)
class SharedSettings:
    """Settings of brokers and name servers; TroupeMQ extensions."""

    python_jit: bool = key("pythonJit", default=True)
    """Whether to use the JIT of CPython if it has one; PYTHON_JIT in the environment overrides it.
    """
    console_port: int = key("consolePort", default=0)
    """Port of the console, a separate process beside the server; 0: no console."""
    console_bind_address: str = key("consoleBindAddress", default="127.0.0.1")
    console_hosts: str = key("consoleHosts", default="")
    """Host names by which browsers call it, separated by `,`."""


@dataclass(frozen=True)
class BrokerConfig(
    BrokerAccessSettings,
    BrokerTlsSettings,
    MetricsSettings,
    SpanSettings,
    SharedSettings,
):
    broker_name: str = key("brokerName", default="")
    """Empty: this machine's host name."""
    broker_cluster_name: str = key("brokerClusterName", default="DefaultCluster")
    broker_id: int = key("brokerId", default=MASTER_ID)
    broker_role: str = key("brokerRole", default="ASYNC_MASTER")
    broker_ip1: str = key("brokerIP1", default="")
    """Address for clients. Empty: the machine's own address."""
    broker_ip2: str = key("brokerIP2", default="")
    """Address for slaves. Empty: the machine's own address."""
    listen_port: int = key("listenPort", default=10911)
    """The fast port is two below, the HA port one above; 0 takes three free ports."""
    bind_address: str = key("bindAddress", default="*")
    """`*`: all addresses, of IPv4 and IPv6."""
    namesrv_address: str = key("namesrvAddr", default="")
    """`host:port`, several separated by `;`. Empty: the environment's NAMESRV_ADDR."""

    auto_create_topic_enable: bool = key("autoCreateTopicEnable", default=True, live=True)
    auto_create_group_enable: bool = key("autoCreateSubscriptionGroup", default=True, live=True)
    auto_topics_max: int = key("maxAutoTopics", default=20_000)
    """Maximum topics, without retry topics, up to which sends create topics; 0: no limit."""
    auto_groups_max: int = key("maxAutoGroups", default=20_000)
    """Maximum groups up to which consumers create groups; 0: no limit."""
    default_topic_queue_nums: int = key("defaultTopicQueueNums", default=8)
    cluster_topic_enable: bool = key("clusterTopicEnable", default=True)
    broker_topic_enable: bool = key("brokerTopicEnable", default=True)
    trace_topic_enable: bool = key("traceTopicEnable", default=False)
    trace_topic_name: str = key("msgTraceTopicName", default="RMQ_SYS_TRACE_TOPIC")
    broker_permission: int = key("brokerPermission", default=PERM_READ | PERM_WRITE, live=True)

    recall_message_enable: bool = key("recallMessageEnable", default=True, live=True)
    """Whether producers may cancel pending timers; a setting of RocketMQ 5.x, which has it off."""
    reject_transaction_message: bool = key("rejectTransactionMessage", default=False, live=True)
    transaction_check_interval_ms: int = key("transactionCheckInterval", default=60_000, live=True)
    transaction_timeout_ms: int = key("transactionTimeOut", default=6000, live=True)
    """Age of a half message at its first check-back, in ms."""
    transaction_check_max: int = key("transactionCheckMax", default=15, live=True)
    start_accept_send_request_timestamp_ms: int = key("startAcceptSendRequestTimeStamp", default=0)
    region_id: str = key("regionId", default="DefaultRegion")
    trace_on: bool = key("traceOn", default=True)
    store_reply_message_enable: bool = key("storeReplyMessageEnable", default=True, live=True)
    os_page_cache_busy_timeout_ms: int = key("osPageCacheBusyTimeOutMills", default=1000, live=True)

    long_polling_enable: bool = key("longPollingEnable", default=True, live=True)
    short_polling_ms: int = key("shortPollingTimeMills", default=1000, live=True)
    slave_read_enable: bool = key("slaveReadEnable", default=False, live=True)
    flush_consumer_offset_interval_ms: int = key("flushConsumerOffsetInterval", default=5000)
    consumer_offset_guard_enable: bool = key("consumerOffsetGuardEnable", default=True)
    """Whether to ignore commits that would undo newer ones; a TroupeMQ extension."""
    stuck_after_seconds: int = key("stuckAfterSeconds", default=30, live=True)
    """Time without consumption after which a queue with waiting messages is stuck.

    A TroupeMQ extension, for metrics and administrators; it changes no delivery.
    """
    notify_consumer_ids_changed_enable: bool = key(
        "notifyConsumerIdsChangedEnable", default=True, live=True
    )

    property_filter_enable: bool = key("enablePropertyFilter", default=False, live=True)
    filter_support_retry: bool = key("filterSupportRetry", default=False, live=True)
    calc_filter_bit_map_enable: bool = key("enableCalcFilterBitMap", default=False)
    expected_filter_count: int = key("expectConsumerNumUseFilter", default=32)
    """Expected number of groups with filters, which sets the size of the bit maps."""
    filter_error_percent: int = key("maxErrorRateOfBloomFilter", default=20)
    filter_clean_time_span_ms: int = key("filterDataCleanTimeSpan", default=86_400_000, live=True)

    ha_master_address: str = key("haMasterAddress", default="")
    """The master's HA port, `host:port`. Empty: as the name server reports."""
    ha_bind_address: str = key("haBindAddress", default="")
    """Address of a master's HA port; a TroupeMQ extension. Empty: bindAddress."""
    ha_transfer_batch_bytes: int = key("haTransferBatchSize", default=32 << 10)
    ha_heartbeat_interval_ms: int = key("haSendHeartbeatInterval", default=5000)
    ha_housekeeping_interval_ms: int = key("haHousekeepingInterval", default=20_000)
    ha_fall_behind_max_bytes: int = key("haSlaveFallbehindMax", default=256 << 20)
    """A SYNC_MASTER does not wait for slaves that lag further behind."""
    slave_timeout_ms: int = key("slaveTimeout", default=3000)

    register_period_ms: int = key("registerNameServerPeriod", default=30_000, live=True)
    register_timeout_ms: int = key("registerBrokerTimeoutMills", default=6000, live=True)
    force_register: bool = key("forceRegister", default=True, live=True)
    compressed_register: bool = key("compressedRegister", default=False, live=True)
    channel_max_idle_seconds: int = key("serverChannelMaxIdleTimeSeconds", default=120)
    config_black_list: str = key("configBlackList", default="")
    """Further keys that cannot be changed over the network, separated by `;`."""
    masters: int = key("masters", default=1)
    """Number of brokers under one process; a TroupeMQ extension."""
    health_port: int = key("healthPort", default=0)
    """Port of /health/live and /health/ready over HTTP; a TroupeMQ extension. 0: none."""
    monitoring_port: int = key("monitoringPort", default=0)
    """Port for metrics and health of several masters; a TroupeMQ extension. 0: none."""
    jobs_python: str = key("jobsPython", default="")
    """Interpreter of Spark jobs; a TroupeMQ extension. Empty: this one with Spark, else python3."""
    one_of: str = ""
    """Name of the first of several masters; empty for a single broker."""
    config_path: str = ""
    """File of these settings, to which changes are written; empty: no file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_tls()
        self.check_metrics()
        self.check_spans()
        set_value = object.__setattr__
        set_value(self, "broker_name", self.broker_name or local_host_name())
        _unwrap(self, *_HOSTS, "broker_ip1", "broker_ip2", "ha_bind_address")
        set_value(self, "broker_ip1", self.broker_ip1 or local_address(self.bind_address))
        set_value(self, "broker_ip2", self.broker_ip2 or local_address(self.ha_address))
        # clamped to the range
        period_ms = sorted((self.register_period_ms, *_REGISTER_PERIOD_MS))[1]
        set_value(self, "register_period_ms", period_ms)
        _check_port("listenPort", self.listen_port, below=2, above=1)
        self._check_further_ports()
        if self.broker_role not in ROLES:
            raise ConfigError(f"brokerRole is {self.broker_role}: it may be {', '.join(ROLES)}.")
        if self.is_slave and self.broker_id <= MASTER_ID:
            raise ConfigError(f"brokerId is {self.broker_id}: a slave's must be greater than 0.")
        if not self.is_slave:
            set_value(self, "broker_id", MASTER_ID)  # as 4.9.7: a master's own number is ignored
        if not 0 <= self.broker_permission <= PERM_READ | PERM_WRITE | PERM_INHERIT:
            raise ConfigError(
                f"brokerPermission is {self.broker_permission}: 6 is read and write, 4 only read."
            )
        for name, host in (
            ("brokerIP1", self.broker_ip1),
            ("brokerIP2", self.broker_ip2),
            ("bindAddress", self.bind_address),
            ("haBindAddress", self.ha_address),
            ("metricsPromExporterHost", self.metrics_host),
        ):
            _check_host(name, host)
        for address in self.namesrv_addresses:
            _check_address("namesrvAddr", address, "write host:port, several with ; between")
        if self.ha_master_address:
            _check_address("haMasterAddress", self.ha_master_address, "write host:port")
        if not 0 < self.ha_transfer_batch_bytes <= _HA_BATCH_MAX:
            raise ConfigError(
                f"haTransferBatchSize is {self.ha_transfer_batch_bytes}: it must be"
                f" 1 to {_HA_BATCH_MAX}."
            )
        self._check_positive()
        for name, value, most in (
            ("maxErrorRateOfBloomFilter", self.filter_error_percent, 99),
            ("expectConsumerNumUseFilter", self.expected_filter_count, _FILTERS_MAX),
            ("masters", self.masters, MASTERS_MAX),
        ):
            if not 1 <= value <= most:
                raise ConfigError(f"{name} is {value}: it must be 1 to {most}.")
        self._check_not_negative()

    def _check_positive(self) -> None:
        for name, value in (
            ("haSendHeartbeatInterval", self.ha_heartbeat_interval_ms),
            ("haHousekeepingInterval", self.ha_housekeeping_interval_ms),
            ("slaveTimeout", self.slave_timeout_ms),
            ("transactionCheckInterval", self.transaction_check_interval_ms),
            ("flushConsumerOffsetInterval", self.flush_consumer_offset_interval_ms),
            ("defaultTopicQueueNums", self.default_topic_queue_nums),
            ("stuckAfterSeconds", self.stuck_after_seconds),
        ):
            if value <= 0:
                raise ConfigError(f"{name} is {value}: it must be greater than 0.")

    def _check_not_negative(self) -> None:
        for name, value in (
            ("maxAutoTopics", self.auto_topics_max),
            ("maxAutoGroups", self.auto_groups_max),
        ):
            if value < 0:
                raise ConfigError(f"{name} is {value}: it must be 0, for none, or greater.")

        if self.start_accept_send_request_timestamp_ms > _YEAR_9999_MS:
            raise ConfigError(
                f"startAcceptSendRequestTimeStamp is {self.start_accept_send_request_timestamp_ms}:"
                " it must be a time in ms, before the year 9999."
            )

    def _check_further_ports(self) -> None:
        _check_port("monitoringPort", self.monitoring_port)
        _check_port("healthPort", self.health_port)
        _check_port("consolePort", self.console_port)
        _check_host("consoleBindAddress", self.console_bind_address)
        if self.console_port and not self.namesrv_addresses:
            raise ConfigError("consolePort is set, but namesrvAddr is not: set namesrvAddr, too.")

    def check_tls(self) -> None:
        super().check_tls()
        if self.tls_ha_mode == ENFORCING and not self.is_slave and not self.has_certificate:
            raise ConfigError(
                "tls.ha.mode is enforcing, and there is no certificate: name one as"
                " tls.server.certPath, and its key as tls.server.keyPath."
            )

    @property
    def ha_address(self) -> str:
        return self.ha_bind_address or self.bind_address

    @property
    def bloom(self) -> BloomFilter:
        return BloomFilter.of(self.filter_error_percent, self.expected_filter_count)

    def store_address(self) -> str:
        """Return the address of brokerIP1, as in records and message ids. Raises ConfigError.

        A name is resolved, which may take a while.
        """
        try:
            return address_of(self.broker_ip1)
        except (OSError, UnicodeError):
            raise ConfigError(
                f"brokerIP1 is {self.broker_ip1}: host not found; write an address by which"
                " clients reach this machine."
            ) from None

    @property
    def is_slave(self) -> bool:
        return self.broker_role == "SLAVE"

    @property
    def is_sync_master(self) -> bool:
        return self.broker_role == "SYNC_MASTER"

    @property
    def namesrv_addresses(self) -> tuple[str, ...]:
        """Addresses of all name servers as `host:port`, in the order of the setting."""
        parts = (part.strip() for part in self.namesrv_address.split(";"))
        return tuple(dict.fromkeys(part for part in parts if part))


@dataclass(frozen=True)
class NamesrvConfig(AccessSettings, TlsSettings, NamesrvMetricsSettings, SharedSettings):
    listen_port: int = key("listenPort", default=9876)
    """0 takes a free port."""
    bind_address: str = key("bindAddress", default="*")
    """`*`: all addresses, of IPv4 and IPv6."""
    kv_config_path: str = key("kvConfigPath", default=os.path.expanduser("~/namesrv/kvConfig.json"))
    health_port: int = key("healthPort", default=0)
    """Port of /health/live and /health/ready over HTTP; a TroupeMQ extension. 0: none."""
    order_message_enable: bool = key("orderMessageEnable", default=False, live=True)
    channel_max_idle_seconds: int = key("serverChannelMaxIdleTimeSeconds", default=120)
    frame_bytes_max: int = key("com.rocketmq.remoting.frameMaxLength", default=64 << 20)
    """Maximum length of a request; 4.9.7's 16 MiB is too short for a broker with 60,000 topics."""
    config_store_path: str = key("configStorePath", default=NAMESRV_FILE)
    """File to which changes of these settings are written: the -c file, if given."""
    config_black_list: str = key("configBlackList", default="")
    """Further keys that cannot be changed over the network, separated by `;`."""
    acl_route_perm_enable: bool = key("aclRoutePermEnable", default=False)
    """Whether access control limits routes to topics that the sender may use; a TroupeMQ extension.

    Topics of traces and replies are exempt.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_tls()
        self.check_metrics()
        _check_port("listenPort", self.listen_port)
        _check_port("healthPort", self.health_port)
        _check_port("consolePort", self.console_port)
        _unwrap(self, *_HOSTS)
        _check_host("bindAddress", self.bind_address)
        _check_host("consoleBindAddress", self.console_bind_address)
        _check_host("metricsPromExporterHost", self.metrics_host)


@dataclass(frozen=True)
class ConfigFindings:
    """Remarks on a valid settings file."""

    without_effect: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    meant: Mapping[str, str] = field(default_factory=dict)
    """Known key that each misspelled key resembles."""
    old_spelling: tuple[str, ...] = ()
    """Keys that 4.9.7 ignores because it spells them differently."""

    def __bool__(self) -> bool:
        return bool(self.without_effect or self.unknown or self.old_spelling)

    def sentence(self) -> str:
        renamed = ", ".join(f"{old} (write {OLD_SPELLINGS[old]})" for old in self.old_spelling)
        unknown = ", ".join(
            f"{name} (did you mean {self.meant[name]}?)" if name in self.meant else name
            for name in self.unknown
        )
        parts = (
            ("without effect here", ", ".join(self.without_effect)),
            ("unknown, ignored", unknown),
            ("old spelling, ignored", renamed),
        )
        return "; ".join(f"{what}: {names}" for what, names in parts if names)


def load_broker_config(
    path: str, overrides: Mapping[str, str] | None = None
) -> tuple[BrokerConfig, StoreConfig, ConfigFindings]:
    broker, store, findings = parse_broker_config(_read(path), overrides)
    return replace(broker, config_path=os.path.realpath(path)), store, findings


def parse_broker_config(
    text: str, overrides: Mapping[str, str] | None = None
) -> tuple[BrokerConfig, StoreConfig, ConfigFindings]:
    """Parse a broker's settings from Java properties; `overrides` (same keys) take precedence.

    Raises ConfigError, or WrongSetting for a store that cannot work, with one sentence. A
    misspelled known key is an error in the overrides, and a finding in the text.
    """
    own = keys_of(BrokerConfig).keys() | keys_of(StoreConfig).keys()
    _refuse_misspelled(overrides or {}, own | BROKER_FILE_KEYS)
    values = with_environment(_values(text, overrides), overrides or {})
    values.setdefault("namesrvAddr", os.environ.get("NAMESRV_ADDR", ""))
    broker, store = _filled(BrokerConfig, values), _filled(StoreConfig, values)
    return broker, store, _findings(values, own, BROKER_FILE_KEYS)


def load_namesrv_config(
    path: str, overrides: Mapping[str, str] | None = None
) -> tuple[NamesrvConfig, ConfigFindings]:
    config, findings = parse_namesrv_config(_read(path), overrides)
    return replace(config, config_store_path=os.path.realpath(path)), findings


def parse_namesrv_config(
    text: str, overrides: Mapping[str, str] | None = None
) -> tuple[NamesrvConfig, ConfigFindings]:
    own = keys_of(NamesrvConfig).keys()
    _refuse_misspelled(overrides or {}, own | NAMESRV_FILE_KEYS)
    values = _values(text, overrides)
    return _filled(NamesrvConfig, values), _findings(values, own, NAMESRV_FILE_KEYS)


def settings_of(*configs: Any) -> dict[str, str]:
    """Return the settings in force, as text by external key: the body of an answer to code 26."""
    found: dict[str, str] = {}
    for config in configs:
        for external, name in keys_of(type(config)).items():
            if external in secret_keys_of(type(config)):
                continue
            value = getattr(config, name)
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found[external] = without_user(text) if name == "otel_endpoint" else text
    return found


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig") as file:  # editors on Windows begin it with a mark
            text = file.read()
        parse_properties(text)
    except OSError as error:
        reason = reason_of(error)
        if kind_of(error) is NotPermitted:
            raise NotPermitted(f"the settings file {path} cannot be read: {reason}.") from error
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not UTF-8; save the file as UTF-8"
    except ValueError as error:
        reason = f"it has a {error}; write four hexadecimal digits"
    else:
        return text
    raise ConfigError(f"the settings file {path} cannot be read: {reason}.")


def _values(text: str, overrides: Mapping[str, str] | None) -> dict[str, str]:
    try:
        values = parse_properties(text)
    except ValueError as error:
        raise ConfigError(f"the settings cannot be read: {error}.") from error
    overrides = overrides or {}
    return with_tls_file({**values, **overrides}, overrides)


def converted_settings(config: Any, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that belong to `config`, an object or its class, by field.

    Raises ConfigError.
    """
    types = {item.name: item.type for item in fields(config)}
    return {
        name: _converted(external, values[external], types[name])
        for external, name in keys_of(config).items()
        if external in values
    }


def _filled(config: type[Config], values: Mapping[str, str]) -> Config:
    return config(**converted_settings(config, values))


def _converted(external: str, text: str, kind: object) -> int | float | bool | str:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{external} is {text}: it may be true or false.")
        return text.lower() == "true"
    if kind is int:
        try:
            return parse_long(text.strip())
        except ValueError:
            raise ConfigError(f"{external} is {text}: it must be a whole number.") from None
    if kind is float:
        try:
            return parse_double(text)
        except ValueError:
            raise ConfigError(f"{external} is {text}: it must be a number.") from None
    return text


def _findings(values: Mapping[str, str], own: Set[str], known: frozenset[str]) -> ConfigFindings:
    idle = [name for name in values if name not in own]
    unknown = [name for name in idle if name not in known and name not in OLD_SPELLINGS]
    meant = {name: closest(name, own | known) for name in unknown}
    return ConfigFindings(
        tuple(name for name in idle if name in known),
        tuple(unknown),
        {name: found for name, found in meant.items() if found is not None},
        tuple(name for name in idle if name in OLD_SPELLINGS),
    )


def _refuse_misspelled(overrides: Mapping[str, str], known: Set[str]) -> None:
    for name in overrides:
        if name not in known and (found := closest(name, known)) is not None:
            raise ConfigError(f"unknown setting {name}: did you mean {found}?")


def _check_port(setting: str, port: int, *, below: int = 0, above: int = 0) -> None:
    """Raise ConfigError for an invalid port; other ports lie `below` and `above` it."""
    lowest, highest = below + 1, _PORT_MAX - above
    if port and not lowest <= port <= highest:
        raise ConfigError(f"{setting} is {port}: it must be 0 or between {lowest} and {highest}.")


def _unwrap(config: object, *names: str) -> None:
    for name in names:
        object.__setattr__(config, name, without_brackets(getattr(config, name)))


def _check_host(setting: str, host: str) -> None:
    if not host and setting in _LISTENING:  # a socket would listen everywhere
        raise ConfigError(f"{setting} is blank: write an address, or leave the setting out.")
    is_everywhere = host == "*" and setting not in ("brokerIP1", "brokerIP2")
    if not is_everywhere and not _HOST.fullmatch(host):
        raise ConfigError(f"{setting} is {host}: write a host's name or address.")


def _check_address(setting: str, address: str, advice: str) -> None:
    try:
        _, port = split_address(address)
    except ValueError:
        port = 0
    if not port:
        raise ConfigError(f"{setting} holds {address}: {advice}.")
