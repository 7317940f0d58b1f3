"""The ceilings of a name server's tables: how much of what strangers tell it is kept.

4.9.7 keeps everything. Whoever is refused here is no broker that works: each of these numbers is
ten times and more what the largest known clusters have.
"""

from collections.abc import Sequence
from typing import NoReturn

from protocol.codes import ResponseCode
from protocol.errors import LimitReached
from protocol.headers.namesrv import RegisterBrokerHeader

NAME_CHARS_MAX = 1024
"""Of a broker's or cluster's name, and of an address."""
BROKERS_MAX = 10_000
BROKERS_OF_PEER_MAX = 100
"""Over one connection: a broker has its own."""
TOPICS_OF_BROKER_MAX = 500_000
TOPICS_MAX = 1_000_000
TOPICS_OF_ALL_MAX = 4_000_000
"""A topic counts as often as there are brokers that have it: some 150 bytes each."""
TOPIC_CHARS_MAX = 512
"""Of a topic's name: 4.9.7's are 127 long, those of its groups' retries 262."""
FILTER_SERVERS_MAX = 100
"""Of one broker."""
READING_BYTES_MAX = 256 << 20
"""Of registrations that wait to be read."""

KV_KEY_CHARS_MAX = 4096
"""Of a namespace, too."""
KV_VALUE_CHARS_MAX = 1 << 20
KV_NAMESPACES_MAX = 1000
"""With an entry: empty ones make room for others."""
KV_ENTRIES_MAX = 100_000
KV_CHARS_MAX = 64 << 20
"""Of all values, with their namespaces and keys: the file is written whole with each change."""
KV_ORDERED_CHARS_MAX = 1 << 20
"""Of ORDER_TOPIC_CONFIG, some 10,000 topics: all of them are in each answer to a broker, which
takes no frame of more than 16 MiB. A character may be six bytes there, and take 0.5 µs."""


def check_names(header: RegisterBrokerHeader) -> None:
    """Raises RemoteError for names that are too long."""
    for name, text in (
        ("brokerName", header.broker_name),
        ("clusterName", header.cluster_name),
        ("brokerAddr", header.broker_address),
        ("haServerAddr", header.ha_server_address),
    ):
        if len(text) > NAME_CHARS_MAX:
            refuse(
                "a name is too long", f"{name} has {len(text)} characters: at most {NAME_CHARS_MAX}"
            )


def check_brokers(brokers: int, of_peer: int) -> None:
    """A broker more, beside those that there are. Raises RemoteError."""
    if brokers >= BROKERS_MAX:
        refuse("too many brokers", f"there are {brokers} brokers already: at most {BROKERS_MAX}")
    if of_peer >= BROKERS_OF_PEER_MAX:
        refuse(
            "too many brokers of one connection",
            f"this connection has registered {of_peer} brokers: at most {BROKERS_OF_PEER_MAX}",
        )


def check_topics(count: int) -> None:
    """Of one broker. Raises RemoteError."""
    if count > TOPICS_OF_BROKER_MAX:
        refuse(
            "too many topics of one broker",
            f"a broker with {count} topics: at most {TOPICS_OF_BROKER_MAX}",
        )


def check_filter_servers(servers: Sequence[str] | None) -> None:
    """Of one broker. Raises RemoteError."""
    if servers and (len(servers) > FILTER_SERVERS_MAX or max(map(len, servers)) > NAME_CHARS_MAX):
        refuse(
            "too many filter servers",
            f"at most {FILTER_SERVERS_MAX} filter servers of {NAME_CHARS_MAX} characters",
        )


def refuse(kind: str, remark: str) -> NoReturn:
    """Raises RemoteError; the operator is told of this kind of refusal."""
    raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, kind)
