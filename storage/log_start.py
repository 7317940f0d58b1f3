"""From where the log is read at a start, where nothing better is known than 4.9.7 knows.

Source: store/CommitLog.java (recoverNormally, recoverAbnormally, isMappedFileMatchedRecover).
"""

from protocol.message import BLANK_MAGIC, RecordError, scan_head
from storage.mapped_file_queue import MappedFileQueue

FILES_READ_AFTER_CLEAN_STOP = 3
"""The last three, as the original does."""


def start_after_clean_stop(queue: MappedFileQueue) -> int:
    """Where to begin reading: at the third last file, or the first."""
    files = queue.files
    return files[-FILES_READ_AFTER_CLEAN_STOP:][0].first_offset if files else 0


def start_after_crash(queue: MappedFileQueue, trusted_until_ms: int) -> int:
    """Where to begin reading: at the newest file whose first record is old enough to be trusted.

    Without one, as with a checkpoint that knows nothing, at the first file.
    """
    for file in reversed(queue.files):
        try:
            head = scan_head(file.view, 0)
        except RecordError:
            continue
        if head.magic != BLANK_MAGIC and 0 < head.store_timestamp <= trusted_until_ms:
            return file.first_offset
    return queue.min_offset
