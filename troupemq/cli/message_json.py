"""Messages as JSON objects, for printing."""

import base64
from typing import Any

from protocol.compression import CompressionError
from troupemq.client.message import MessageView


def as_object(view: MessageView) -> dict[str, Any]:
    """Return a message for JSON, with `body` if that is UTF-8, else with `body_base64`.

    One that cannot be decompressed has `body_unreadable`, which says why.
    """
    fields: dict[str, Any] = {
        "topic": view.topic,
        "message_id": view.message_id,
        "broker_name": view.queue.broker_name,
        "queue_id": view.queue.queue_id,
        "queue_offset": view.queue_offset,
        "tags": view.tags,
        "keys": list(view.keys),
        "properties": dict(view.properties),
        "store_timestamp_ms": view.store_timestamp_ms,
        "reconsume_times": view.reconsume_times,
    }
    try:
        fields["body"] = view.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(view.body).decode()
    except CompressionError as error:
        fields["body_unreadable"] = str(error)
    return fields
