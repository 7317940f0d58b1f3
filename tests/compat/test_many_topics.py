"""Sixty thousand topics on one broker: with an official broker or name server on the other side.

4.9.7 on both sides fails there: the name server cuts the connection at the frame of 21 MB.
"""

from pathlib import Path

import pytest

from protocol.bodies_tables import DataVersion, TopicConfig, TopicConfigTable
from storage.tables.topics import format_topics
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route

pytestmark = pytest.mark.slow(seconds=8)

COUNT = 60_000
PAD = "x" * 100
DEADLINE_S = 90.0


def topic(number: int) -> str:
    return f"many-{number:05d}-{PAD}"


@pytest.mark.parametrize(
    ("name_server_kind", "broker_kind"),
    [
        ("official", "ours"),
        pytest.param("ours", "ours", marks=pytest.mark.whole),
        pytest.param("ours", "official", marks=pytest.mark.whole),
    ],
)
def test_sixty_thousand_topics_register(
    name_server_kind: str,
    broker_kind: str,
    tmp_path: Path,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> None:
    configs = {topic(number): TopicConfig(topic(number), 4, 4) for number in range(COUNT)}
    folder = tmp_path / "store" / "config"
    folder.mkdir(parents=True)
    table = TopicConfigTable(configs, DataVersion(1_700_000_000_000, COUNT))
    (folder / "topics.json").write_text(format_topics(table))
    with make_name_server(name_server_kind, tmp_path / "names") as names:
        broker = make_broker(broker_kind, tmp_path / "broker", names, store=tmp_path / "store")
        broker.start_deadline_s = DEADLINE_S
        with broker:
            wanted = (0, COUNT // 2, COUNT - 1)
            wait_until(
                lambda: all(has_route(names.address, topic(number)) for number in wanted),
                "routes to the first and the last topic",
                DEADLINE_S,
            )
