"""Messages of a batch, prepared for the commit log."""

from typing import NamedTuple
from zlib import crc32

from actors.sending.property_rewriter import BatchSuffix, PropertyRewriter
from actors.sending.send_rules import PROPERTIES_BYTES_MAX
from protocol.batch import decode_batch
from storage.log.append import BatchPart


class BatchParts(NamedTuple):
    """Values of a batch's messages, in the order of the fields of PutBatch."""

    parts: list[BatchPart]
    parts_bytes: int
    codes: list[int]
    keys: list[tuple[bytes, ...]]


def batch_parts(body: bytes, suffix: BatchSuffix, preparer: PropertyRewriter) -> BatchParts | None:
    """Return the parts of a batch body; None if a message's properties are too long.

    Raises RemoteError for a body that cannot be cut.
    """
    parts_bytes = 0
    parts: list[BatchPart] = []
    codes: list[int] = []
    all_keys: list[tuple[bytes, ...]] = []
    before, key_at, key_end, behind_key, known = suffix.like
    for each, own, flag in decode_batch(body):
        key = own[key_at:key_end]
        # Most messages differ from the one before only in their UNIQ_KEY: 0.3 µs instead of 1.0. A
        # key of letters and digits contains no separator.
        if own[:key_at] == before and own[key_end:] == behind_key and key.isalnum():
            behind, code, words = known
            keys = (key, *words) if words else (key,)
        else:
            behind, code, keys = preparer.batch_part(own, suffix)
            before, key_at, key_end, behind_key, known = suffix.like
        properties_bytes = len(own) + len(behind)
        if properties_bytes > PROPERTIES_BYTES_MAX:
            return None
        parts_bytes += len(each) + properties_bytes
        parts.append((flag, crc32(each) & 0x7FFFFFFF, each, own, behind))
        codes.append(code)
        all_keys.append(keys)
    return BatchParts(parts, parts_bytes, codes, all_keys)
