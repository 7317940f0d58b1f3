"""The broker on one page: its store, its children in start order, and what a connection is given.

parts        settings, the store (opened and recovered before any actor starts), published tables
children     tables → flushing → the log → reading → talking; stopped in reverse
ports        listenPort, two below it the fast one (no pulls), one above it HA's

What each child is made with: `actors/children/`, one file for each floor.
"""

from collections.abc import Sequence
from socket import socket

from actors.admin.access_control import AccessControl
from actors.admin.broker_info import BrokerInfo
from actors.admin.settings import BrokerSettings
from actors.children.log import log_children
from actors.children.network import network_children
from actors.children.reading import reading_children
from actors.children.replication import master_children, slave_children
from actors.children.spans import span_children
from actors.children.tables import table_children
from actors.consumers.clients import Clients
from actors.consumers.consume_stats import ConsumeStats
from actors.consumers.consumer_calls import ConsumerCalls
from actors.consumers.offset_reset import OffsetReset
from actors.delays.delay_offsets import DelayOffsets
from actors.delays.schedule import schedule_children
from actors.engine.supervisor import ChildSpec
from actors.network.connections import Connections, Listener
from actors.network.request import Responders, codes_of
from actors.network.service import Service
from actors.parts import Parts, physical_memory_bytes
from actors.pulling.pull_message import PullMessage
from actors.pulling.query_message import QueryMessage
from actors.pulling.queue_offsets import QueueOffsets
from actors.pulling.queue_view import QueueView
from actors.pulling.raw_read import RawRead
from actors.retention.clean_files import CleanFiles
from actors.sending.reply_message import ReplyMessage
from actors.sending.send_back import SendBack
from actors.sending.sink import Sink
from actors.statistics.statistics import Statistics
from actors.tables.consumer_offsets import ConsumerOffsets
from actors.tables.groups import GroupTable
from actors.tables.topics import TopicTable
from actors.transactions.open_transactions import OpenTransactionView
from actors.transactions.transactions import Transactions
from protocol.codes import RequestCode

RESPONDERS: Responders = (
    ("topics", TopicTable),
    ("groups", GroupTable),
    ("consumer_offsets", ConsumerOffsets),
    ("delay_offsets", DelayOffsets),
    ("clients", Clients),
    ("pull_message", PullMessage),
    ("queue_offsets", QueueOffsets),
    ("queue_view", QueueView),
    ("query_message", QueryMessage),
    ("raw_read", RawRead),
    ("send_back", SendBack),
    ("sink", Sink),
    ("consumer_calls", ConsumerCalls),
    ("consume_stats", ConsumeStats),
    ("offset_reset", OffsetReset),
    ("reply_message", ReplyMessage),
    ("transactions", Transactions),
    ("open_transactions", OpenTransactionView),
    ("broker_info", BrokerInfo),
    ("clean_files", CleanFiles),
    ("settings", BrokerSettings),
    ("access_control", AccessControl),
    ("statistics", Statistics),
)
"""Which address serves which request codes: those its class declares."""

NOT_ON_THE_FAST_PORT = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.READ_RECORDS,
    RequestCode.READ_UNITS,
)
"""Whatever reads messages in numbers: that port is for those who must not wait behind them."""

TOLD_OF_CLOSED_PEERS = ("client_calls", "clients", "pull_hold")


class Broker(Parts):
    """A broker whose store is open; `children` is what its supervisor starts.

    Raises StoreError (locked, unusable) from the constructor; `close` comes after the system has
    stopped.
    """

    # --- what connections need to know

    def service(self, *, fast: bool = False, more: Responders = ()) -> Service:
        """What a port serves; the fast one does not serve pulls. `more`: who is started beside."""
        codes = codes_of([*RESPONDERS, *more])
        routes = {code: self.system.address(name) for code, name in codes.items()}
        if fast:
            for code in NOT_ON_THE_FAST_PORT:
                del routes[code]
        return Service(
            routes,
            self.system.address("put_message"),
            is_fast=fast,
            tell_closed=[self.system.address(name) for name in TOLD_OF_CLOSED_PEERS],
            answers_to=self.system.address("client_calls"),
            guard=self.guard,
            stats=self.answer_stats,
            administration=self.administration,
        )

    # --- the children, in start order

    def children(self) -> list[ChildSpec]:
        """Everything but what listens, so that tests can do without sockets."""
        shared = [*span_children(self), *log_children(self), *reading_children(self)]
        if self.config.is_slave:  # it gets what its master has delivered
            return [*table_children(self), *shared, *slave_children(self)]
        recent_bytes = physical_memory_bytes() // 10
        schedule = schedule_children(self.store, recent_bytes, self.system.address)
        return [*table_children(self), *master_children(self), *shared, *schedule]

    def network_children(self, listeners: Sequence[tuple[Listener, socket]]) -> list[ChildSpec]:
        """What needs sockets: stopped first, except that connections may send what is left."""
        return network_children(self, listeners)

    def connections_child(self) -> ChildSpec:
        """Started before everything else, stopped after it."""
        idle_ms = self.config.channel_max_idle_seconds * 1000
        return ChildSpec("connections", lambda _: Connections(idle_ms, self.places))

    def close(self) -> None:
        """Flushes and closes the store; call it when the system has stopped. Raises StoreError."""
        self.store.close()
