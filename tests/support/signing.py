"""Signed requests as the official Java client writes them."""

from protocol.codes import SerializeType
from protocol.frame import RemotingCommand, encode
from protocol.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    Credentials,
    SecretKey,
    signed_values,
)

_FIELDS_AT = 8 + 21
"""In a frame with a binary header."""


def java_signed(command: RemotingCommand, account: Credentials) -> bytes:
    """The frame of this send, which has no account yet.

    In a binary header each of its own fields is there twice: its fast encoder writes them from the
    header, and then come all that were put together to be signed.
    """
    plain = encode(command)
    own = command.fields or {}
    shown = {ACCESS_KEY: account.access_key}
    if account.security_token is not None:
        shown[SECURITY_TOKEN] = account.security_token
    key = SecretKey(account.secret_key)
    signature = key.sign(signed_values({**own, **shown}), command.body).decode()
    command.fields = {**own, SIGNATURE: signature, **shown}
    frame = encode(command)
    if command.serialize_type == SerializeType.JSON:
        return frame
    first = plain[_FIELDS_AT : len(plain) - len(command.body or b"")]
    mark = int.from_bytes(frame[4:8]) + len(first)
    fields_bytes = int.from_bytes(frame[25:29]) + len(first)
    return b"".join(
        (
            (int.from_bytes(frame[:4]) + len(first)).to_bytes(4),
            mark.to_bytes(4),
            frame[8:25],
            fields_bytes.to_bytes(4),
            first,
            frame[_FIELDS_AT:],
        )
    )
