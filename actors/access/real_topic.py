"""The topic that a stored message is of: for what waits elsewhere, the one it is on its way to."""

from protocol.properties import REAL_TOPIC
from protocol.property_shapes import find_pairs
from protocol.topic_names import REFUSED_TOPICS

_REAL_TOPIC = REAL_TOPIC.encode()


def real_topic(topic: str, properties: bytes) -> str:
    """Of a record in `topic`; half messages and delayed ones lie in topics of the broker's own.

    Nobody but the broker sends to those, so that their properties can be believed, of a record that
    has its unit there (storage/reading/record_place.py).
    """
    if topic not in REFUSED_TOPICS:
        return topic
    real = dict(find_pairs(properties)).get(_REAL_TOPIC)
    return topic if real is None else real.decode("utf-8", "replace")
