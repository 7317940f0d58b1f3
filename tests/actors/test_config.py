"""Tests of actors/config.py and actors/settings/known_keys.py: valid settings files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from actors.config import (
    BrokerConfig,
    ConfigError,
    NamesrvConfig,
    load_broker_config,
    parse_broker_config,
    parse_namesrv_config,
    settings_of,
)
from actors.settings.known_keys import BROKER_FILE_KEYS, NAMESRV_FILE_KEYS
from protocol.properties_file import parse_properties
from remoting.local_address import local_address, local_host_name, preferred
from storage.config import StoreConfig, keys_of
from storage.errors import StoreError
from tests.support.golden import frames

METRICS_KEYS = {
    *("metricsExporterType", "metricsPromExporterHost", "metricsPromExporterPort"),
    "monitoringHosts",
    *("metricsOtelCardinalityLimit", "metricsTopicPattern", "metricsGroupPattern"),
    "metricsSystemTopics",
}
"""RocketMQ 5 has some of these."""
OWN_KEYS = METRICS_KEYS | {
    *("bindAddress", "configBlackList", "healthPort", "pythonJit"),
    *("consolePort", "consoleBindAddress", "consoleHosts"),
    "tls.metrics.mode",
}
OWN_LIMITS = {"adminAllowedAddresses", "maxConnections", "maxConnectionsPerAddress"}
OWN_ACL_KEYS = {"aclAllowSampleCredentials", "aclWhiteListAdmin", "rocketmq.acl.plain.file"}
SPAN_KEYS = {
    *("otelTraces", "otelTracesEndpoint", "otelTracesSampleRatio", "otelTracesQueueSize"),
    "otelTracesTimeoutMillis",
}
OWN_BROKER_KEYS = (
    OWN_KEYS
    | SPAN_KEYS
    | {
        *("tls.ha.mode", "jobsPython"),
        *("scrubEnable", "scrubDutyPercent", "consumerOffsetGuardEnable"),
        *("stuckAfterSeconds", "timerMaxDelaySec", "timerWheelEnable", "recallMessageEnable"),
        *("retentionArchivePath", "sinkProgressDays", "sinkProgressMax"),
        *("masters", "monitoringPort", "maxAutoTopics", "maxAutoGroups", "clockBehindMaxMs"),
        *OWN_LIMITS,
        *(*OWN_ACL_KEYS, "brokerAccessKey", "brokerSecretKey", "haAllowedAddresses"),
        "haBindAddress",
    }
)
"""Settings that 4.9.7 has not."""


def test_the_official_sample_fills_broker_and_store() -> None:
    broker, store, findings = parse_broker_config(
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\n"
        "deleteWhen = 04\nfileReservedTime = 48\nbrokerRole = ASYNC_MASTER\n"
        "flushDiskType = SYNC_FLUSH\n"
    )
    assert (broker.broker_name, broker.broker_cluster_name) == ("broker-a", "DefaultCluster")
    assert store.flush_disk_type == "SYNC_FLUSH"
    assert findings.without_effect == ()
    assert not findings.unknown and not findings.old_spelling


def test_defaults_are_as_in_4_9_7(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    broker, store, _ = parse_broker_config("")
    assert broker.listen_port == 10911
    assert broker.default_topic_queue_nums == 8
    assert broker.broker_permission == 6
    assert broker.register_period_ms == 30_000
    assert broker.auto_create_topic_enable and broker.force_register
    assert not broker.trace_topic_enable and not broker.compressed_register
    assert (broker.region_id, broker.trace_on) == ("DefaultRegion", True)
    assert broker.namesrv_addresses == ()
    assert broker.broker_name == local_host_name()
    assert broker.broker_ip1 == broker.broker_ip2 == local_address()
    assert store == StoreConfig()


def test_the_originals_recorded_settings_have_no_unknown_key() -> None:
    bodies = {
        code: next(
            frame["body"].decode()
            for frame in frames("java-4.9.7")
            if frame.get("request_code") == code and frame["direction"] == "response"
        )
        for code in (26, 319)
    }
    recorded = parse_properties(bodies[26])
    _, _, findings = parse_broker_config(bodies[26])
    assert findings.unknown == () and findings.old_spelling == ()
    assert set(findings.without_effect) < recorded.keys()
    assert parse_namesrv_config(bodies[319])[1].unknown == ()


def test_every_key_of_4_9_7_is_accepted_and_keys_without_effect_are_named() -> None:
    own = keys_of(BrokerConfig).keys() | keys_of(StoreConfig).keys()
    text = "".join(f"{name}=1\n" for name in BROKER_FILE_KEYS - own)
    _, _, findings = parse_broker_config(text)
    assert set(findings.without_effect) == BROKER_FILE_KEYS - own
    assert findings.unknown == ()


def test_settings_without_counterpart_are_accepted_and_named_in_one_line() -> None:
    names = (
        "destroyMapedFileIntervalForcibly",
        "redeleteHangedFileInterval",
        "transientStorePoolEnable",
        "transientStorePoolSize",
    )
    _, _, findings = parse_broker_config("".join(f"{name}=1\n" for name in names))
    assert findings.sentence() == "without effect here: " + ", ".join(names)


def test_disk_ratios_of_javas_system_properties_are_read_from_the_file() -> None:
    _, store, findings = parse_broker_config(
        "rocketmq.broker.diskSpaceCleanForciblyRatio=0.8\n"
        "rocketmq.broker.diskSpaceWarningLevelRatio=0.95\n"
    )
    assert (store.disk_clean_forcibly_ratio, store.disk_warning_ratio) == (0.8, 0.95)
    assert not findings
    with pytest.raises(ConfigError, match=r"diskSpaceWarningLevelRatio is ninety: .* a number"):
        parse_broker_config("rocketmq.broker.diskSpaceWarningLevelRatio=ninety")


def test_every_setting_is_one_of_4_9_7_or_a_listed_extension() -> None:
    own = keys_of(BrokerConfig).keys() | keys_of(StoreConfig).keys()
    assert own - BROKER_FILE_KEYS == OWN_BROKER_KEYS
    assert keys_of(NamesrvConfig).keys() - NAMESRV_FILE_KEYS == OWN_KEYS | {
        *(*OWN_ACL_KEYS, *OWN_LIMITS, "aclEnable", "aclRoutePermEnable"),
    }


def test_unknown_keys_and_old_spellings_are_named_in_one_line() -> None:
    _, store, findings = parse_broker_config(
        "mapedFileSizeCommitLog=1024\nlistenPrt=1\nsendMessageThreadPoolNums=4\n"
    )
    assert store.commit_log_file_bytes == 1 << 30
    assert findings.sentence() == (
        "without effect here: sendMessageThreadPoolNums; "
        "unknown, ignored: listenPrt (did you mean listenPort?); "
        "old spelling, ignored: mapedFileSizeCommitLog (write mappedFileSizeCommitLog)"
    )


@pytest.mark.parametrize("parse", [parse_broker_config, parse_namesrv_config])
def test_a_misspelled_setting_of_the_command_line_is_refused(
    parse: Callable[[str, dict[str, str]], tuple[object, ...]],
) -> None:
    with pytest.raises(ConfigError, match="listenPrt: did you mean listenPort"):
        parse("", {"listenPrt": "1"})
    assert parse("listenPrt=1\n", {"listenPort": "0"})


def test_an_unknown_setting_of_the_command_line_is_named_as_ignored() -> None:
    _, _, findings = parse_broker_config("", {"enableDLegerOfNext": "false"})
    assert findings.sentence().startswith("unknown, ignored: enableDLegerOfNext")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("listenPort=many", "listenPort is many: it must be a whole number."),
        ("listenPort=70000", "listenPort is 70000: it must be 0 or between 3 and 65534."),
        ("traceOn=yes", "traceOn is yes: it may be true or false."),
        (
            "brokerRole=MASTER",
            "brokerRole is MASTER: it may be ASYNC_MASTER, SYNC_MASTER, SLAVE.",
        ),
        ("brokerRole=SLAVE", "brokerId is 0: a slave's must be greater than 0."),
        (
            "namesrvAddr=localhost",
            "namesrvAddr holds localhost: write host:port, several with ; between.",
        ),
        (
            "namesrvAddr=http://ns:9876",
            "namesrvAddr holds http://ns:9876: write host:port, several with ; between.",
        ),
        ("brokerIP1=/tmp/x", "brokerIP1 is /tmp/x: write a host's name or address."),
        ("brokerIP2=a b", "brokerIP2 is a b: write a host's name or address."),
        ("bindAddress=1.2.3.4/24", "bindAddress is 1.2.3.4/24: write a host's name or address."),
        ("bindAddress=", "bindAddress is blank: write an address, or leave the setting out."),
        *(
            (f"{name}= ", f"{name} is blank: write an address, or leave the setting out.")
            for name in ("consoleBindAddress", "metricsPromExporterHost")
        ),
        ("haBindAddress=a b", "haBindAddress is a b: write a host's name or address."),
        ("defaultTopicQueueNums=0", "defaultTopicQueueNums is 0: it must be greater than 0."),
        ("brokerPermission=9", "brokerPermission is 9: 6 is read and write, 4 only read."),
        (
            "flushDiskType=NEVER",
            "flushDiskType is NEVER: use ASYNC_FLUSH or SYNC_FLUSH.",
        ),
        (
            "flushConsumerOffsetInterval=0",
            "flushConsumerOffsetInterval is 0: it must be greater than 0.",
        ),
        (
            "startAcceptSendRequestTimeStamp=9223372036854775807",
            "startAcceptSendRequestTimeStamp is 9223372036854775807: it must be a time in ms,"
            " before the year 9999.",
        ),
        ("maxAutoTopics=-1", "maxAutoTopics is -1: it must be 0, for none, or greater."),
        ("maxAutoGroups=-1", "maxAutoGroups is -1: it must be 0, for none, or greater."),
        ("maxConnections=-1", "maxConnections is -1: it must be 0, for none, or greater."),
        (
            "maxConnectionsPerAddress=-2",
            "maxConnectionsPerAddress is -2: it must be 0, for none, or greater.",
        ),
        (
            "adminAllowedAddresses=10.0.0.7;nowhere",
            "Netaddress examine Exception netaddress is nowhere",
        ),
        ("a=\\u1", "the settings cannot be read: broken \\u1."),
    ],
)
def test_a_wrong_value_is_one_sentence_with_key_and_value(text: str, sentence: str) -> None:
    with pytest.raises(StoreError) as raised:
        parse_broker_config(text)
    assert str(raised.value) == sentence


def test_an_unreadable_settings_file_is_a_one_sentence_error(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    with pytest.raises(ConfigError, match=f"the settings file {path} cannot be read"):
        load_broker_config(str(path))
    path.write_text("brokerName=b\n")
    assert load_broker_config(str(path))[0].broker_name == "b"


def test_the_first_setting_behind_a_byte_order_mark_was_ignored(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=b\n", encoding="utf-8-sig")
    broker, _, findings = load_broker_config(str(path))
    assert broker.broker_name == "b" and not findings


def test_the_command_line_overrides_the_file() -> None:
    broker, _, _ = parse_broker_config(
        "namesrvAddr=a:1\n", overrides={"namesrvAddr": "b:2; c:3;", "listenPort": "0"}
    )
    assert broker.namesrv_addresses == ("b:2", "c:3")
    assert broker.listen_port == 0


def test_name_servers_default_to_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "n:9876")
    assert parse_broker_config("")[0].namesrv_addresses == ("n:9876",)
    assert parse_broker_config("namesrvAddr=m:1")[0].namesrv_addresses == ("m:1",)


@pytest.mark.parametrize(("given", "used"), [(1, 10_000), (30_000, 30_000), (10**6, 60_000)])
def test_the_registration_period_is_clamped(given: int, used: int) -> None:
    assert BrokerConfig(register_period_ms=given).register_period_ms == used


def test_a_masters_own_broker_id_is_ignored() -> None:
    assert BrokerConfig(broker_id=3).broker_id == 0
    assert BrokerConfig(broker_id=3, broker_role="SLAVE").broker_id == 3


def test_the_settings_in_force_are_written_with_their_external_keys() -> None:
    settings = settings_of(BrokerConfig(broker_name="b", trace_on=False), StoreConfig())
    assert settings["brokerName"] == "b"
    assert settings["traceOn"] == "false"
    assert settings["mappedFileSizeCommitLog"] == str(1 << 30)


def test_a_name_server_has_its_own_settings() -> None:
    config, findings = parse_namesrv_config(
        "listenPort=9000\norderMessageEnable=true\nclusterTest=true\nbrokerName=b\n"
    )
    assert (config.listen_port, config.order_message_enable) == (9000, True)
    assert findings.without_effect == ("clusterTest",)
    assert findings.unknown == ("brokerName",)
    assert parse_namesrv_config("")[0].listen_port == 9876


@pytest.mark.parametrize(
    ("addresses", "chosen"),
    [
        ([], None),
        (["127.0.0.1"], None),
        (["127.0.0.1", "10.1.2.3", "10.9.9.9"], "10.1.2.3"),
        (["192.168.0.5", "10.1.2.3"], "10.1.2.3"),
        (["192.168.0.5", "192.168.1.5"], "192.168.1.5"),
    ],
)
def test_the_advertised_address_is_chosen_as_in_4_9_7(
    addresses: list[str], chosen: str | None
) -> None:
    assert preferred(addresses) == chosen


@pytest.mark.parametrize(
    ("given", "address"),
    [("10.1.2.3", "10.1.2.3"), ("::1", "::1"), ("localhost", "127.0.0.1")],
)
def test_records_of_a_broker_named_by_host_name_have_its_address(given: str, address: str) -> None:
    config, _, _ = parse_broker_config(f"brokerIP1={given}")
    assert config.store_address() == address
    assert config.broker_ip1 == given, "clients are told the name"


def test_an_unknown_host_name_is_reported_in_one_sentence() -> None:
    config, _, _ = parse_broker_config("brokerIP1=no-such-host.invalid")
    with pytest.raises(ConfigError, match=r"brokerIP1 is no-such-host\.invalid: host not found"):
        config.store_address()


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("maxErrorRateOfBloomFilter", "0"),
        ("maxErrorRateOfBloomFilter", "100"),
        ("expectConsumerNumUseFilter", "0"),
        ("expectConsumerNumUseFilter", "10001"),
    ],
)
def test_impossible_bit_map_settings_are_refused(setting: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} is {wrong}: it must be"):
        parse_broker_config(f"{setting}={wrong}")


def test_the_check_back_interval_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="transactionCheckInterval is 0: it must be greater"):
        parse_broker_config("transactionCheckInterval=0")


def test_the_longest_bit_map_fits_into_a_unit() -> None:
    config, _, _ = parse_broker_config(
        "expectConsumerNumUseFilter=10000\nmaxErrorRateOfBloomFilter=1"
    )
    assert config.bloom.bit_count // 8 + 20 < 1 << 15
