"""Messages that consumers can no longer read once a topic has fewer queues."""

from contextlib import suppress

from protocol.bodies import TopicConfig
from protocol.bodies_admin import TopicStatsTable
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.admin import TopicHeader
from protocol.table_rules import asked_topic_fault
from troupemq.cli.admin.output import Output
from troupemq.cli.admin.session import Session
from troupemq.client.errors import ClientError, understood

TIMEOUT_MS = 3000.0


def unread_messages(session: Session, address: str, config: TopicConfig) -> dict[int, int]:
    """Return how many messages each queue holds that `config` would not let consumers read.

    Ask before the change: afterwards no broker lists these queues. Where the broker does not
    answer, the change itself tells.
    """
    table = TopicStatsTable()
    header = TopicHeader(config.topic_name).encode()
    question = RemotingCommand(RequestCode.GET_TOPIC_STATS_INFO, header)
    if not asked_topic_fault(config):
        with suppress(ClientError):
            answer = session.call(address, question, TIMEOUT_MS)
            if answer.code == ResponseCode.SUCCESS:
                table = understood(TopicStatsTable.decode, answer.body)
    return {
        queue.queue_id: count
        for queue, ends in table.offset_table.items()
        if queue.queue_id >= config.read_queue_nums
        and (count := ends.max_offset - ends.min_offset) > 0
    }


def note_unread(out: Output, address: str, config: TopicConfig, unread: dict[int, int]) -> None:
    """Warn of messages that can no longer be read, and of queues without a reader."""
    name, reads, writes = config.topic_name, config.read_queue_nums, config.write_queue_nums
    if unread:
        queues = ", ".join(map(str, sorted(unread)))
        out.note(
            f"warning: {sum(unread.values())} messages of {name} at {address} can no longer be "
            f"read (queues {queues}): readQueueNums of {max(unread) + 1} makes them readable"
        )
    if writes > reads:
        out.note(
            f"warning: queues {reads} to {writes - 1} of {name} at {address} are written and not "
            f"read: consumers do not get what is sent there"
        )
