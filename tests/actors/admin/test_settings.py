"""Tests of actors/admin/settings.py: what changes while a server runs, and what never may."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from errno import EACCES
from re import IGNORECASE, search
from typing import Any

import pytest

from actors.admin.settings import (
    REFUSED,
    UPDATE_BYTES_MAX,
    BrokerSettings,
    NamesrvSettings,
    Settings,
    is_refused,
)
from actors.config import BrokerConfig, NamesrvConfig, parse_broker_config
from actors.engine.supervisor import ChildSpec
from protocol.bodies_tables import DataVersion
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.properties_file import parse_properties
from storage.config import StoreConfig, live_keys_of
from tests.support.brokers import BROKER, SimulatedBroker
from tests.support.peers import ask, request, simulated
from tests.support.transacting import INTERVAL_MS, beat, half, producing, questions
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem

PATH = "/etc/troupemq/broker.conf"
FILE = """# The hour when old files go.
deleteWhen = 04
! how long
fileReservedTime=72
fileReservedTime=48
sendMessageThreadPoolNums=4
tls.server.keyPassword=secret
"""
UPDATE, GET = RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG


def broker(disk: FakeDisk | None = None, path: str = PATH) -> SimulatedBroker:
    disk = disk or FakeDisk()
    if path and not disk.exists(path):
        disk.make_dirs(path.rpartition("/")[0])
        disk.open(path, create=True).pwrite(FILE.encode(), 0)
    made = SimulatedBroker(1, disk=disk, config=replace(BROKER, config_path=path))
    return made


def update(made: SimulatedBroker, text: str) -> RemotingCommand:
    return made.ask(RemotingCommand(UPDATE, body=text.encode()))


def settings(made: SimulatedBroker) -> dict[str, str]:
    answer = made.ask(RemotingCommand(GET))
    assert answer.code == 0
    return parse_properties(bytes(answer.body or b"").decode())


def test_a_change_applies_at_once_and_changes_one_line_of_the_file() -> None:
    made = broker()
    answer = update(made, "fileReservedTime=49\n")
    assert (answer.code, answer.remark, answer.fields) == (0, None, None)
    assert made.broker.store.config.file_reserved_hours == 49
    assert settings(made)["fileReservedTime"] == "49"
    text = made.disk.read_bytes(PATH).decode()
    assert text == FILE.replace("fileReservedTime=48", "fileReservedTime=49")
    made.stop()
    assert BROKER.config_path == "", "the settings of one broker are its own"


def test_a_setting_missing_from_the_file_is_appended() -> None:
    made = broker()
    update(made, "longPollingEnable=false")
    assert made.disk.read_bytes(PATH).decode() == f"{FILE}longPollingEnable=false\n"
    assert not made.broker.config.long_polling_enable


def test_a_change_that_needs_a_restart_is_reported() -> None:
    made = broker()
    answer = update(made, "mappedFileSizeCommitLog=131072\nfileReservedTime=50\nmadeUp=1")
    assert answer.code == 0
    assert answer.remark == "after a restart: mappedFileSizeCommitLog; unknown: madeUp"
    assert made.broker.store.config.commit_log_file_bytes == 65_536
    assert settings(made)["mappedFileSizeCommitLog"] == "131072"
    assert "madeUp" not in made.disk.read_bytes(PATH).decode()
    _, store, _ = parse_broker_config(made.disk.read_bytes(PATH).decode())
    assert store.commit_log_file_bytes == 131_072


def test_settings_are_returned_as_properties_with_their_version() -> None:
    made = broker()
    answer = made.ask(RemotingCommand(GET))
    assert answer.fields is not None
    assert DataVersion.decode(answer.fields["version"].encode()).counter == 0
    shown = settings(made)
    assert (shown["brokerName"], shown["mappedFileSizeCommitLog"]) == ("broker-a", "65536")
    assert shown["sendMessageThreadPoolNums"] == "4", "the file has it, and it does nothing"
    assert shown["useTLS"] == "false", "exportConfigs cannot do without"
    assert not any("Password" in key for key in shown)
    assert shown["tls.server.mode"] == "permissive"
    update(made, "fileReservedTime=49")
    answer = made.ask(RemotingCommand(GET))
    assert DataVersion.decode((answer.fields or {})["version"].encode()).counter == 1


@pytest.mark.parametrize(
    "key",
    [
        "brokerConfigPath",
        "configBlackList",
        "rocketmqHome",
        "rocketmq.home.dir",
        "storePathRootDir",
        "storePathCommitLog",
        "storePathDLedgerCommitLog",
        "readOnlyCommitLogStorePaths",
        "filterServerNums",
        "messageStorePlugIn",
        "kvConfigPath",
        "configStorePath",
        "configStorePathName",
        "tls.server.keyPath",
        "tls.config.file",
    ],
)
def test_settings_of_paths_and_commands_are_refused(key: str) -> None:
    made = broker()
    answer = update(made, f"fileReservedTime=49\n{key}=/tmp/x")
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, REFUSED)
    assert made.broker.store.config.file_reserved_hours == 72, "all of it is refused"
    assert made.disk.read_bytes(PATH).decode() == FILE


def test_escapes_and_line_breaks_cannot_inject_settings() -> None:
    made = broker()
    assert update(made, "broker\\u0043onfigPath=/x").code == ResponseCode.NO_PERMISSION
    update(made, "namesrvAddr=a:1\\nbrokerConfigPath=/x")
    text = made.disk.read_bytes(PATH).decode()
    assert "brokerConfigPath" not in parse_properties(text)


def test_a_forbidden_key_is_refused_in_any_spelling() -> None:
    made = broker()
    assert update(made, "=1\nfileReservedTime=49").code == 0
    assert made.broker.store.config.file_reserved_hours == 49
    answer = update(made, "regionId=\\ud800")
    assert (answer.code, answer.remark) == (1, "string2Properties error")
    made.stop()
    assert is_refused("sendQueue", "pullQueue; sendQueue")
    assert is_refused("jobsPython")  # a program


def test_the_operator_can_forbid_more_settings() -> None:
    assert is_refused("fileReservedTime", "fileReservedTime;deleteWhen")
    assert not is_refused("fileReservedTime", "")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("fileReservedTime=soon", "fileReservedTime is soon"),
        ("brokerPermission=9", "brokerPermission is 9"),
        ("deleteWhen=25", "deleteWhen is 25"),
        ("flushIntervalCommitLog=0", "flushIntervalCommitLog must be greater than 0"),
        ("mappedFileSizeCommitLog=2147483648", "must be at most 2147483647"),
        ("a=\\u12", "string2Properties error"),
        ("a=" + "\\\n" * UPDATE_BYTES_MAX, "bytes: at most 65536"),
    ],
)
def test_an_invalid_value_changes_nothing(text: str, word: str) -> None:
    made = broker()
    answer = update(made, f"longPollingEnable=false\n{text}")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert word in (answer.remark or "")
    assert made.broker.config.long_polling_enable
    assert made.disk.read_bytes(PATH).decode() == FILE


def test_a_failed_save_leaves_the_settings_unchanged() -> None:
    disk = FakeDisk()
    made = broker(disk)
    disk.fail_next("rename", OSError(EACCES, "Permission denied"))
    answer = update(made, "longPollingEnable=false")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "cannot save" in (answer.remark or "")
    assert made.broker.config.long_polling_enable


def test_without_a_file_a_change_lasts_until_the_stop_with_a_warning() -> None:
    made = broker(path="")
    answer = update(made, "longPollingEnable=false")
    assert answer.code == 0
    assert answer.remark == "lost at a restart: there is no settings file"
    assert not made.broker.config.long_polling_enable


def test_pending_settings_are_considered_when_others_are_checked() -> None:
    made = broker()
    assert update(made, "brokerRole=SLAVE").code == ResponseCode.SYSTEM_ERROR, "without an id"
    assert update(made, "brokerId=1").code == 0
    assert update(made, "brokerRole=SLAVE").code == 0
    config, _, _ = parse_broker_config(made.disk.read_bytes(PATH).decode())
    assert (config.broker_role, config.broker_id) == ("SLAVE", 1)
    assert made.broker.config.broker_role == "ASYNC_MASTER"


def test_a_settings_file_damaged_since_the_start_is_not_overwritten() -> None:
    made = broker()
    made.disk.open(PATH).pwrite(b"a=\\u12", 0)
    assert settings(made)["brokerName"] == "broker-a"
    answer = update(made, "longPollingEnable=false")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert made.broker.config.long_polling_enable


def test_an_empty_body_succeeds_without_a_change() -> None:
    made = broker()
    assert made.ask(RemotingCommand(UPDATE)).code == 0
    assert update(made, "").code == 0
    assert made.disk.read_bytes(PATH).decode() == FILE


def test_a_permission_change_applies_to_pulls_and_is_registered() -> None:
    made = broker()
    made.send()
    before = made.broker.tables.topic_table.value.data_version
    assert update(made, "brokerPermission=2").code == 0
    made.system.drain()
    assert made.pull().code == ResponseCode.NO_PERMISSION
    after = made.broker.tables.topic_table.value.data_version
    assert after.counter == before.counter + 1
    assert update(made, "brokerPermission=6").code == 0
    assert made.pull().code == 0


def test_transaction_and_group_settings_apply_to_the_next_request() -> None:
    half = "TRAN_MSG\x01true\x02PGROUP\x01p"
    made = broker()
    assert made.send(properties=half).code == 0
    update(made, "rejectTransactionMessage=true\nautoCreateSubscriptionGroup=false")
    assert made.send(properties=half).code == ResponseCode.NO_PERMISSION
    answer = made.pull(consumer_group="nobody")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_check_back_settings_apply_to_the_next_round() -> None:
    made = broker()
    made.make_topic()
    producer = producing(made)
    changed = update(made, "transactionTimeOut=3600000\ntransactionCheckInterval=20000")
    assert (changed.code, changed.remark) == (0, None)
    half(made)
    made.system.advance(INTERVAL_MS + 5_000)
    assert questions(producer) == []
    beat(producer)
    assert update(made, "transactionTimeOut=1000").code == 0
    made.system.advance(20_000)
    assert len(questions(producer)) == 1


NAMES_A_PLACE = r"port|host|address|addr|endpoint|path|dir|url|domain|peers"
NAMES_NONE = {"filterSupportRetry": "whether filters support retries"}


@pytest.mark.parametrize("server", [BrokerSettings, NamesrvSettings])
def test_settings_of_addresses_ports_and_paths_are_refused(
    server: type[Settings],
) -> None:
    named = {key for key in server.known_keys if search(NAMES_A_PLACE, key, IGNORECASE)}
    assert len(named) > 20
    assert {key for key in named if not is_refused(key)} <= NAMES_NONE.keys()
    assert is_refused("otelTraces") and is_refused("masters"), "nor what is not named so"


@pytest.mark.parametrize("config", [BrokerConfig, StoreConfig, NamesrvConfig])
def test_no_path_setting_is_live(config: Any) -> None:
    assert not [key for key in live_keys_of(config) if is_refused(key)]


# --- a name server's

NS_PATH = "/data/namesrv.properties"


@contextmanager
def name_server(**more: Any) -> Iterator[tuple[SimulatedSystem, NamesrvConfig]]:
    config = NamesrvConfig(config_store_path=NS_PATH, **more)
    with simulated() as system:
        system.start(ChildSpec("settings", lambda _: NamesrvSettings(config)))
        yield system, config


def test_a_name_servers_settings_can_be_changed_and_saved() -> None:
    with name_server() as (system, config):
        body = b"orderMessageEnable=true\nclusterTest=false\n"
        answer = ask(system, "settings", request(RequestCode.UPDATE_NAMESRV_CONFIG, body=body))
        assert (answer.code, answer.remark) == (0, "without effect here: clusterTest")
        assert config.order_message_enable
        assert system.disk.read_bytes(NS_PATH) == body
        answer = ask(system, "settings", request(RequestCode.GET_NAMESRV_CONFIG))
        shown = parse_properties(bytes(answer.body or b"").decode())
        assert (answer.code, answer.fields) == (0, None)
        assert shown["orderMessageEnable"] == "true"
        assert shown["configStorePath"] == NS_PATH


@pytest.mark.parametrize("key", ["kvConfigPath", "configStorePath", "rocketmqHome", "mine"])
def test_a_name_servers_paths_cannot_be_changed(key: str) -> None:
    with name_server(config_black_list="mine") as (system, _):
        body = f"{key}=/x".encode()
        answer = ask(system, "settings", request(RequestCode.UPDATE_NAMESRV_CONFIG, body=body))
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, REFUSED)
