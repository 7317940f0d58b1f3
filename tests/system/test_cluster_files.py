"""conf/2m-2s-async, 2m-2s-sync, 2m-noslave: the original's names, keys and values; each starts."""

from pathlib import Path

import pytest

from actors.broker_server import start_broker
from actors.config import load_broker_config
from actors.engine.system import ActorSystem
from protocol.properties_file import parse_properties
from storage.files.disk import RealDisk
from tests.compat.servers import SMALL_FILES

CONF = Path(__file__).resolve().parents[2] / "conf"
ROLES = {
    "2m-2s-async": {"broker-a": "ASYNC_MASTER", "broker-a-s": "SLAVE"},
    "2m-2s-sync": {"broker-a": "SYNC_MASTER", "broker-a-s": "SLAVE"},
    "2m-noslave": {"broker-a": "ASYNC_MASTER", "broker-trace": "ASYNC_MASTER"},
}
"""Roles by folder and file; the files of broker-b equal those of broker-a."""

FILES = [
    (folder, name.replace("-a", letter), role)
    for folder, files in ROLES.items()
    for name, role in files.items()
    for letter in (("-a", "-b") if "-a" in name else ("",))
]


def official(name: str, role: str) -> dict[str, str]:
    """Return the settings of this file in the release of 4.9.7."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": name.removesuffix("-s"),
        "brokerId": "1" if role == "SLAVE" else "0",
        "deleteWhen": "04",
        "fileReservedTime": "48",
        "brokerRole": role,
        "flushDiskType": "ASYNC_FLUSH",
    }


def test_every_cluster_file_is_tested() -> None:
    there = {str(path.relative_to(CONF)) for path in CONF.glob("*/*.properties")}
    assert there == {f"{folder}/{name}.properties" for folder, name, _ in FILES}


@pytest.mark.parametrize(("folder", "name", "role"), FILES)
def test_a_cluster_file_has_the_originals_settings_and_starts(
    folder: str, name: str, role: str, tmp_path: Path
) -> None:
    path = CONF / folder / f"{name}.properties"
    assert parse_properties(path.read_text()) == official(name, role)
    place = {"storePathRootDir": str(tmp_path / "store"), "listenPort": "0", **SMALL_FILES}
    config, store_config, findings = load_broker_config(str(path), place)
    assert findings.sentence() == ""
    system = ActorSystem.real(disk=RealDisk())
    running = start_broker(config, store_config, system=system)
    assert running.broker.config.broker_role == role
    assert running.stop(20)
