"""The bit flags of a message (`sysFlag` of a record) and of a pull request, each with its meaning.

Source: common/sysflag/MessageSysFlag.java, PullSysFlag.java, common/compression/CompressionType.
"""

# A message.
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300  # 0 means ZLIB too: clients older than the type bits

# A pull request.
PULL_COMMIT_OFFSET = 0x1
PULL_SUSPEND = 0x2
PULL_SUBSCRIPTION = 0x4
PULL_CLASS_FILTER = 0x8
PULL_LITE = 0x10


def transaction_type(sys_flag: int) -> int:
    return sys_flag & TRANSACTION_MASK


def has_queue_unit(sys_flag: int) -> bool:
    """Return whether consumers see a record: it is neither prepared nor rolled back."""
    return not sys_flag & TRANSACTION_PREPARED
