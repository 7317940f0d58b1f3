"""Offset resets of a group that an administrator requests and brokers pass on to its members.

    220 RESET_CONSUMER_CLIENT_OFFSET      continue at other offsets

Source: client/impl/ClientRemotingProcessor.java, client/impl/factory/MQClientInstance.java.
"""

from collections.abc import Iterable

from protocol.bodies_client import ResetOffsetBody, ResetOffsetList
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.client import ResetOffsetHeader
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue

log = client_logger(__name__)


def requested_offsets(command: RemotingCommand, group: str) -> list[tuple[MessageQueue, int]]:
    """Return queues and offsets of a reset of this group; log another or an invalid one."""
    try:
        header = ResetOffsetHeader.decode(command.fields)
        offsets = list(_offsets(command.body))
    except RemoteError as error:
        log.warning("invalid offset reset rejected", reason=error.remark)
        return []
    if header.group != group:
        log.info("offset reset of another group ignored", group=header.group)
        return []
    return [each for each in offsets if each[0].topic == header.topic]


def _offsets(body: bytes | memoryview | None) -> Iterable[tuple[MessageQueue, int]]:
    """Yield queues and offsets of a reset, from the form of Java or that of C++ clients."""
    try:
        table = ResetOffsetBody.decode(body).offset_table
    except RemoteError:
        for each in ResetOffsetList.decode(body).offset_table:
            yield MessageQueue(each.topic, each.broker_name, each.queue_id), each.offset
        return
    for key, offset in table.items():
        yield MessageQueue(key.topic, key.broker_name, key.queue_id), offset
