"""What Reput and FlushRealTime tell each other."""

from actors.dispatching.sync_queues import QueuesWritten, WriteOutQueues
from storage.queues.unsynced import Unsynced
from tests.support.peers import Told


def test_without_reput_nothing_is_synced_and_nothing_is_vouched_for() -> None:
    flusher = Told("flush_real_time")
    WriteOutQueues(0, flusher.address).refuse("reput has stopped")
    (told,) = flusher.take()
    assert isinstance(told, QueuesWritten)
    assert told.unsynced.store_timestamp is None
    assert told.unsynced.files == Unsynced()
    assert (told.full_index, told.table, told.sinks) == (None, None, None)
