"""Limits of a name server's tables, which any client can fill.

4.9.7 has none. Each limit is at least ten times what the largest known clusters need.
"""

from collections.abc import Sequence
from typing import NoReturn

from protocol.codes import ResponseCode
from protocol.errors import LimitReached
from protocol.headers.namesrv import RegisterBrokerHeader

NAME_CHARS_MAX = 1024
"""Characters of a broker name, a cluster name or an address."""
BROKERS_MAX = 10_000
BROKERS_OF_PEER_MAX = 100
"""Brokers of one connection; a broker needs one of its own."""
TOPICS_OF_BROKER_MAX = 500_000
TOPICS_MAX = 1_000_000
TOPICS_OF_ALL_MAX = 4_000_000
"""Topics, counted once for each broker that has them; some 150 bytes each."""
TOPIC_CHARS_MAX = 512
"""Characters of a topic; in 4.9.7 topics have 127 at most, retry topics 262."""
FILTER_SERVERS_MAX = 100
"""Filter servers of one broker."""
READING_BYTES_MAX = 256 << 20
"""Bytes of registrations that wait to be read."""

KV_KEY_CHARS_MAX = 4096
"""Characters of a namespace or a key."""
KV_VALUE_CHARS_MAX = 1 << 20
KV_NAMESPACES_MAX = 1000
"""Namespaces with entries; empty ones are removed when others need room."""
KV_ENTRIES_MAX = 100_000
KV_CHARS_MAX = 64 << 20
"""Characters of all entries: each change writes the whole file."""
KV_LISTED_CHARS_MAX = 256 << 10
"""Characters of a namespace that are listed on the loop: 1 ms; control characters take 10 ms."""
KV_ORDERED_CHARS_MAX = 1 << 20
"""Characters of ORDER_TOPIC_CONFIG, some 10,000 topics.

Each answer to a broker contains them, and a broker accepts frames up to 16 MiB. A character takes
up to six bytes there, and 0.5 µs.
"""


def check_names(header: RegisterBrokerHeader) -> None:
    """Raise RemoteError if a name is too long."""
    for name, text in (
        ("brokerName", header.broker_name),
        ("clusterName", header.cluster_name),
        ("brokerAddr", header.broker_address),
        ("haServerAddr", header.ha_server_address),
    ):
        if len(text) > NAME_CHARS_MAX:
            refuse(
                "name limit exceeded",
                f"{name} has {len(text)} characters, more than {NAME_CHARS_MAX}",
            )


def check_brokers(brokers: int, of_peer: int) -> None:
    """Raise RemoteError if one more broker would exceed a limit."""
    if brokers >= BROKERS_MAX:
        refuse("broker limit reached", f"broker limit of {BROKERS_MAX} reached")
    if of_peer >= BROKERS_OF_PEER_MAX:
        refuse(
            "broker limit of a connection reached",
            f"limit of {BROKERS_OF_PEER_MAX} brokers per connection reached",
        )


def check_topics(count: int) -> None:
    """Raise RemoteError if one broker has too many topics."""
    if count > TOPICS_OF_BROKER_MAX:
        refuse(
            "topic limit of a broker exceeded",
            f"the broker has {count} topics, more than {TOPICS_OF_BROKER_MAX}",
        )


def check_filter_servers(servers: Sequence[str] | None) -> None:
    """Raise RemoteError if one broker has too many filter servers."""
    if servers and (len(servers) > FILTER_SERVERS_MAX or max(map(len, servers)) > NAME_CHARS_MAX):
        refuse(
            "filter server limit exceeded",
            f"at most {FILTER_SERVERS_MAX} filter servers of {NAME_CHARS_MAX} characters",
        )


def refuse(kind: str, remark: str) -> NoReturn:
    """Raise RemoteError; `kind` is the log event of this refusal."""
    raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, kind)
