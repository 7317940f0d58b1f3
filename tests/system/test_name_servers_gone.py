"""All name servers are stopped for a while: clients that have a route go on as if nothing was.

5 minutes in `make trials` without ROUNDS=, some seconds else.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from threading import Event

import pytest

from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from tests.compat.servers import SMALL_FILES, OurBroker, OurNameServer, free_port
from troupemq import Message, MessageView, Producer, PushConsumer

TOPIC = "T"
PAUSE_S = 0.02
SHORT_S, LONG_S = 3.0, 300.0
BACK_S = 30.0
SETTINGS = {**SMALL_FILES, "registerNameServerPeriod": "10000"}


class BrokerOfBoth(OurBroker):
    """Registers at two name servers."""

    addresses = ""

    def launch(self) -> None:
        self._run("broker", self._write_config(self._config(0)), "-n", self.addresses)


@pytest.mark.slow(seconds=15)
@pytest.mark.trial(short=0, long=2)
def test_clients_with_a_route_continue_without_name_servers(
    seed: int, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    random, over = Random(seed), Event()
    whole = pytestconfig.getoption("--trials") and pytestconfig.getoption("--rounds") is None
    gone_s = LONG_S if whole else SHORT_S
    names = [OurNameServer(tmp_path / name, {"listenPort": str(free_port())}) for name in "ab"]
    consumed: set[bytes] = set()

    def listen(views: Sequence[MessageView]) -> None:
        consumed.update(view.body for view in views)

    with ExitStack() as stack:
        for each in names:
            stack.enter_context(each)
        broker = BrokerOfBoth(tmp_path / "broker", names[0], SETTINGS)
        broker.addresses = ";".join(each.address for each in names)
        stack.enter_context(broker)
        producer = stack.enter_context(Producer("P", broker.addresses))
        consumer = stack.enter_context(PushConsumer("G", listen, broker.addresses))
        consumer.subscribe(TOPIC)
        producer.send(Message(TOPIC, b"before"))
        wait_until(lambda: b"before" in consumed, "the first message", BACK_S)
        for each in random.sample(names, 2):
            each.stop()
        sent = {b"%d" % number for number in range(round(gone_s / PAUSE_S))}
        for body in sent:
            producer.send(Message(TOPIC, body))
            over.wait(PAUSE_S)
        wait_until(lambda: consumed >= sent, "all of them", BACK_S)
        for each in names:
            each.start()
        for address in broker.addresses.split(";"):
            wait_until(partial(has_route, address, TOPIC), "its topics again", BACK_S)
