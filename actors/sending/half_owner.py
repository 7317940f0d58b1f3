"""Owner of a half message: the account that sent it, on a broker with access control.

    TROUPE_OWNER    behind its other properties: a checksum of the account, 16 hexadecimal digits

Only the owner, or a producer that the broker has checked back with, can end the transaction. The
committed message and the check-back do not carry the property; copies among the half messages do.
"""

from protocol.properties import TROUPE_OWNER
from protocol.send_values import Send
from protocol.sink import owner_of

OWNER = TROUPE_OWNER.encode()
_BEHIND = b"\x02%b\x01" % OWNER


def with_owner(properties: bytes, send: Send) -> bytes:
    """Return the stored properties of a half message; a TROUPE_OWNER from the sender is removed."""
    properties = without_owner(properties)
    if send.signature is None or not send.signature.access_key:
        return properties
    return b"%b%b%b" % (properties, _BEHIND, owner_of(send.signature.access_key).encode())


def without_owner(properties: bytes) -> bytes:
    """Return the properties without the owner, for records that leave the half topic."""
    if OWNER not in properties:
        return properties
    pairs = properties.split(b"\x02")
    return b"\x02".join(each for each in pairs if not each.startswith(OWNER + b"\x01"))
