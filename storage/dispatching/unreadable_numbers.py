"""Numbers in stored properties that Java cannot parse, and their effect on RocketMQ 4.9.7.

Earlier versions stored numbers as Python reads them, such as ` 2` and `1_0`. 4.9.7 parses DELAY
while it checks a record of SCHEDULE_TOPIC_XXXX. There its recovery cuts the log, and a slave stops
dispatching.

Source: CommitLog.checkMessageAndReturnSize, ScheduleMessageService.messageTimeup,
EndTransactionProcessor.endMessageTransaction.
"""

from protocol.java_numbers import NumberFormatError, int_in
from protocol.message import RecordHead
from protocol.properties import DELAY, REAL_QID
from protocol.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from storage.dispatching.dispatch import property_of

_DELAY, _REAL_QID = (f"\x02{name}\x01".encode() for name in (DELAY, REAL_QID))
_SCHEDULE_TOPIC, _HALF_TOPIC = SCHEDULE_TOPIC.encode(), HALF_TOPIC.encode()
_SHOWN_BYTES_MAX = 32


def has_unreadable_delay(properties: bytes) -> bool:
    """Return whether these properties have a DELAY that is not an int in Java."""
    return _unreadable(properties, _DELAY) is not None


def unreadable_number(head: RecordHead) -> tuple[str, bool] | None:
    """Return a sentence about a record with such a number, and whether 4.9.7 fails at it."""
    name, text = DELAY, _unreadable(head.properties, _DELAY)
    stops = {_SCHEDULE_TOPIC: "cuts the log there", _HALF_TOPIC: "cannot commit it"}
    effect = stops.get(head.topic)
    if text is None and effect is not None:
        name, text = REAL_QID, _unreadable(head.properties, _REAL_QID)
        effect = "cannot deliver it"
    if text is None:
        return None
    shown = text[:_SHOWN_BYTES_MAX].decode("utf-8", "replace")
    place = f"record at {head.physical_offset} of {head.topic.decode('utf-8', 'backslashreplace')}"
    return (
        f"{place}: {name} is {shown!r}, not a number in Java; "
        f"RocketMQ 4.9.7 {effect or 'ignores it there'}",
        effect is not None,
    )


def _unreadable(properties: bytes, name: bytes) -> bytes | None:
    if name[1:] not in properties:
        return None
    text = property_of(b"\x02" + properties, name)
    try:
        int_in(text or b"0")
    except NumberFormatError:
        return text
    return None
