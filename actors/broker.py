"""The broker on one page: its children in start order, and the routes of its ports.

    parts        settings, the store (opened and recovered first), published tables
    children     tables, flushing, the log, reading, network; stopped in reverse order
    ports        listenPort; the fast port two below it, without pulls; the HA port one above it

actors/children/ constructs the children, with one file per group.
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
from actors.children.tables import table_children
from actors.consumers.assignments import Assignments
from actors.consumers.clients import Clients
from actors.consumers.consume_stats import ConsumeStats
from actors.consumers.consumer_calls import ConsumerCalls
from actors.consumers.offset_reset import OffsetReset
from actors.delays.delay_offsets import DelayOffsets
from actors.delays.recalls import Recalls
from actors.delays.schedule import schedule_children
from actors.engine.supervisor import ChildSpec
from actors.network.connections import Connections, Listener
from actors.network.request import Responders, Service, codes_of
from actors.parts import Parts, physical_memory_bytes
from actors.pulling.pull_message import PullMessage
from actors.pulling.query_message import QueryMessage
from actors.pulling.queue_view import QueueOffsets, QueueView
from actors.pulling.raw_read import RawRead
from actors.receipts.receipts import Receipts
from actors.retention.clean_files import CleanFiles
from actors.sending.reply_message import ReplyMessage
from actors.sending.send_back import SendBack
from actors.sending.sink import Sink
from actors.statistics.statistics import Statistics
from actors.tables.consumer_offsets import ConsumerOffsets
from actors.tables.groups import GroupTable
from actors.tables.request_modes import RequestModes
from actors.tables.topics import TopicTable
from actors.transactions.half_messages import OpenTransactionView
from actors.transactions.transactions import Transactions
from protocol.codes import RequestCode

RESPONDERS: Responders = (
    ("topics", TopicTable),
    ("groups", GroupTable),
    ("consumer_offsets", ConsumerOffsets),
    ("delay_offsets", DelayOffsets),
    ("recalls", Recalls),
    ("clients", Clients),
    ("request_modes", RequestModes),
    ("assignments", Assignments),
    ("pull_message", PullMessage),
    ("receipts", Receipts),
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
"""Address of each responder; its class declares the request codes."""

NOT_ON_THE_FAST_PORT = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.READ_RECORDS,
    RequestCode.READ_UNITS,
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
)
"""Bulk reads, which the fast port excludes because its clients must not wait behind them."""

TOLD_OF_CLOSED_PEERS = ("client_calls", "clients", "pull_hold", "receipts")


class Broker(Parts):
    """A broker with an open store. Raises StoreError; `close` it after its system has stopped."""

    # --- routes

    def service(self, *, fast: bool = False, more: Responders = ()) -> Service:
        """Return the routes of a port; `more` responders are started beside the broker's own."""
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

    # --- children, in start order

    def children(self) -> list[ChildSpec]:
        """Return all children except those with sockets, which tests may leave out."""
        shared = [*self._span_children(), *log_children(self), *reading_children(self)]
        if self.config.is_slave:  # its master sends it the delivered messages
            return [*table_children(self), *shared, *slave_children(self)]
        recent_bytes = physical_memory_bytes() // 10
        schedule = schedule_children(
            self.store,
            recent_bytes,
            self.timer_rules,
            self.timer_figures,
            self.system.address,
        )
        return [*table_children(self), *master_children(self), *shared, *schedule]

    def network_children(self, listeners: Sequence[tuple[Listener, socket]]) -> list[ChildSpec]:
        """Return the children with sockets, which stop first, except Connections."""
        return network_children(self, listeners)

    def connections_child(self) -> ChildSpec:
        idle_ms = self.config.channel_max_idle_seconds * 1000
        return ChildSpec("connections", lambda _: Connections(idle_ms, self.places))

    def _span_children(self) -> list[ChildSpec]:
        queue, config = self.spans, self.config
        if queue is None:
            return []
        from actors.spans.span_export import SpanExport

        name = config.broker_name
        return [ChildSpec("span_export", lambda _: SpanExport(queue, self.store, config, name))]

    def close(self) -> None:
        self.store.close()
