"""The owner of a half message: the account that sent it, to a broker with access control.

    TROUPE_OWNER    behind its other properties: a checksum of the account, 16 hexadecimal digits

Only its owner ends it, or a producer that the broker has asked about it. The committed message and
the question to a producer do not have the property; copies among the half messages keep it.
"""

from protocol.properties import TROUPE_OWNER
from protocol.send_values import Send
from protocol.sink import owner_of

OWNER = TROUPE_OWNER.encode()
_BEHIND = b"\x02%b\x01" % OWNER


def with_owner(properties: bytes, send: Send) -> bytes:
    """Return the properties of a half message as they are stored; no sender names the owner."""
    properties = without_owner(properties)
    if send.signature is None or not send.signature.access_key:
        return properties
    return b"%b%b%b" % (properties, _BEHIND, owner_of(send.signature.access_key).encode())


def without_owner(properties: bytes) -> bytes:
    """Return the properties of what is made of a half message for others."""
    if OWNER not in properties:
        return properties
    pairs = properties.split(b"\x02")
    return b"\x02".join(each for each in pairs if not each.startswith(OWNER + b"\x01"))
