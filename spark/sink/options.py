"""Options of the sink: parsed, compared with each other, and named in errors.

docs/pipeline.md has the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.java_numbers import plain_number
from protocol.signature import Credentials
from protocol.sink import SINK_MESSAGES_MAX, is_query_name
from protocol.topic_names import topic_name_fault
from remoting.address import split_addresses
from spark.accounts import ACCOUNT_NAMES, account_in
from storage.errors import StoreError
from storage.spelling import did_you_mean

NAMES = (
    "nameServer",
    "topic",
    "brokers",
    "sortRows",
    "messagesPerRequest",
    "sendTimeoutMs",
    "txnAppId",
    "txnVersion",
    *ACCOUNT_NAMES,
)
_SPARKS_OWN = ("checkpointlocation",)
"""Options of Spark itself that it passes on."""
_LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SinkOptions:
    name_servers: tuple[str, ...]
    topic: str | None = None
    """None: a column says it."""
    brokers: tuple[str, ...] = ()
    """The names of those that may be written to; empty: all that the topic has."""
    sort_rows: bool = False
    messages_per_request: int = 256
    send_timeout_ms: int = 60_000
    """Time in which a task tries to reach a broker."""
    application: str | None = None
    version: int = 0
    """Version of a repeatable batch write: the names of its query and batch."""
    credentials: Credentials | None = field(default=None, repr=False)

    def check_stream(self) -> None:
        """Refuse options for batch writes only. Raises StoreError."""
        if self.application is not None:
            raise StoreError(
                "txnAppId and txnVersion are for write: a stream has its checkpoint, leave them out"
            )


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse the options. Raises StoreError for one that is unknown, invalid, or half of a pair."""
    given = _known(raw)
    if not given.get("nameServer"):
        raise StoreError(
            "nameServer is missing: give host:port of a name server to write to topics"
        )
    try:
        name_servers = split_addresses(given["nameServer"])
    except ValueError as error:
        raise StoreError(f"nameServer: {error}; several have ; between them") from None
    topic = given.get("topic")
    if topic is not None and (fault := topic_name_fault(topic)):
        raise StoreError(f"topic is {topic}: {fault}")
    application, version = given.get("txnAppId"), given.get("txnVersion")
    if (application is None) != (version is None):
        raise StoreError("txnAppId and txnVersion belong together: give both or none")
    if application is not None and not is_query_name(application):
        raise StoreError(
            f"txnAppId is {application}: it must be up to 128 letters, digits, '.', '_' and '-'"
        )
    return SinkOptions(
        name_servers,
        topic,
        _names(given, "brokers"),
        _flag(given, "sortRows", False),
        _number(given, "messagesPerRequest", 256, 1, SINK_MESSAGES_MAX),
        _number(given, "sendTimeoutMs", 60_000, 0, _LONG_MAX),
        application,
        _number(given, "txnVersion", 0, 0, _LONG_MAX),
        account_in(given),
    )


def _known(raw: Mapping[str, str]) -> dict[str, str]:
    spelling = {name.lower(): name for name in NAMES}
    given: dict[str, str] = {}
    for name, value in raw.items():
        if name.lower() in _SPARKS_OWN:
            continue
        if name.lower() in ("path", "store"):
            raise StoreError(f"{name}: messages are not written into a store: give nameServer")
        known = spelling.get(name.lower())
        if known is None:
            hint = did_you_mean(name, NAMES, f"it has {', '.join(NAMES)}")
            raise StoreError(f"the sink of troupemq has no option {name}: {hint}")
        given[known] = value
    return given


def _names(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    if name not in given:
        return ()
    names = tuple(sorted({each.strip() for each in given[name].split(",")}))
    if not all(names):
        raise StoreError(f"{name} has an empty name in it: give names with commas between")
    return names


def _number(given: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    number = plain_number(text.strip(), most)
    if number is None or number < least:
        raise StoreError(f"{name} is {text}: it must be a number from {least} to {most}")
    return number


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise StoreError(f"{name} is {given[name]}: it must be true or false")
    return text == "true"
