"""The messages of a batch, ready for the log: by columns if they are alike, else one by one."""

from typing import NamedTuple
from zlib import crc32

from actors.sending.appender import Follow
from actors.sending.send_prepare import BatchSuffix, Preparer
from actors.sending.send_rules import PROPERTIES_BYTES_MAX
from protocol.batch import decode_alike, decode_batch, first_properties
from storage.log.append import AlikeParts, BatchPart


class BatchParts(NamedTuple):
    """What a batch is made of."""

    parts: list[BatchPart] | AlikeParts
    parts_bytes: int
    """Of all bodies and properties together."""
    follow: list[Follow]
    """Of each part; of parts that are alike the first one's alone."""


def batch_parts(body: bytes, suffix: BatchSuffix, preparer: Preparer) -> BatchParts | None:
    """The parts of a batch body; None if one's properties are too long to be stored.

    Raises RemoteError for a body that cannot be cut.
    """
    found = _alike_parts(body, suffix, preparer)
    if found is not None:
        return found
    batch_part, parts_bytes = preparer.batch_part, 0
    parts: list[BatchPart] = []
    follow: list[Follow] = []
    for each, own, flag in decode_batch(body):
        behind, code, keys = batch_part(own, suffix)
        properties_bytes = len(own) + len(behind)
        if properties_bytes > PROPERTIES_BYTES_MAX:
            return None
        parts_bytes += len(each) + properties_bytes
        parts.append((flag, crc32(each) & 0x7FFFFFFF, each, own, behind))
        follow.append((code, keys))
    return BatchParts(parts, parts_bytes, follow)


def _alike_parts(body: bytes, suffix: BatchSuffix, preparer: Preparer) -> BatchParts | None:
    """The same by columns, in a quarter of the time; None: they are not alike, or wrong.

    So are most batches: bodies of one length, and properties that differ in the last digits of
    UNIQ_KEY, which is the only key.
    """
    own = first_properties(body)
    behind, code, keys = preparer.batch_part(own, suffix)
    around = suffix.around_tail(own)
    if around is None or len(keys) != 1:
        return None
    before, behind_key = around
    properties_bytes = len(own) + len(behind)
    found = decode_alike(body, before, behind_key)
    if found is None or properties_bytes > PROPERTIES_BYTES_MAX:
        return None
    flag, bodies, tails = found
    if not b"".join(tails).isalnum():
        return None
    crcs = [crc32(each) & 0x7FFFFFFF for each in bodies]
    parts = AlikeParts(flag, bodies, crcs, before, tails, behind_key + behind)
    parts_bytes = len(bodies) * (len(bodies[0]) + properties_bytes)
    return BatchParts(parts, parts_bytes, [(code, keys)])
