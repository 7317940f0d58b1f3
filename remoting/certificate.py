"""The end of validity of certificates, read from their DER (X.509).

    Certificate ::= SEQUENCE {                  tag  0x30
        tbsCertificate SEQUENCE {
            [0] version          OPTIONAL            0xa0
            serialNumber INTEGER
            signature    SEQUENCE
            issuer       SEQUENCE
            validity     SEQUENCE { notBefore, notAfter }    UTCTime 0x17, GeneralizedTime 0x18
            …

A tag is followed by the length: one byte below 128, else 128 + n and n bytes, big-endian.

Source: RFC 5280, 4.1.
"""

import re
from calendar import timegm
from ssl import PEM_cert_to_DER_cert
from time import strptime

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
_VERSION, _UTC_TIME = 0xA0, 0x17
_LONG = 0x80
_BEFORE_VALIDITY = 3
"""Fields between version and validity."""


def not_after_s(pem: str) -> float | None:
    """Return the end of validity of the first certificate, seconds since 1970; None without one.

    Raises ValueError for an invalid one.
    """
    ends = [_not_after_s(PEM_cert_to_DER_cert(found)) for found in _PEM.findall(pem)]
    return min(ends, default=None)


def _not_after_s(der: bytes) -> float:
    try:
        _, at, _ = _head(der, 0)  # Certificate
        _, at, _ = _head(der, at)  # tbsCertificate
        tag, _, end = _head(der, at)
        if tag == _VERSION:
            at = end
        for _ in range(_BEFORE_VALIDITY):
            _, _, at = _head(der, at)
        _, at, _ = _head(der, at)
        _, _, at = _head(der, at)  # notBefore
        tag, at, end = _head(der, at)
        text = der[at:end].decode("ascii")
    except IndexError:
        raise ValueError("a certificate ends too early") from None
    if tag == _UTC_TIME:  # two digits of the year: 50 and above are of the last century
        text = ("19" if text >= "50" else "20") + text
    return float(timegm(strptime(text, "%Y%m%d%H%M%SZ")))


def _head(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of a DER value, and the start and end of its content."""
    tag, size = der[at], der[at + 1]
    at += 2
    if size >= _LONG:
        count = size - _LONG
        size = int.from_bytes(der[at : at + count])
        at += count
    return tag, at, at + size
