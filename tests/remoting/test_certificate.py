"""Tests of remoting/certificate.py: when certificates are over, against what made them."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from trustme import CA

from remoting.certificate import not_after_s


def pem(until: datetime) -> str:
    leaf = CA().issue_cert("localhost", not_before=datetime(2001, 1, 1), not_after=until)
    return "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems[:1])


@pytest.mark.parametrize(
    "until",
    [
        datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC),
        datetime(2049, 12, 31, tzinfo=UTC),  # the last year of two digits
        datetime(2051, 1, 1, tzinfo=UTC),
    ],
)
def test_the_earliest_expiry_of_a_certificate_chain_counts(until: datetime) -> None:
    later = pem(datetime(2060, 1, 1, tzinfo=UTC))
    assert not_after_s(pem(until)) == until.timestamp()
    assert not_after_s(f"a comment\n{later}{pem(until)}") == until.timestamp()


def test_a_missing_certificate_has_no_expiry_and_a_truncated_one_is_an_error(
    tmp_path: Path,
) -> None:
    assert not_after_s("nothing") is None
    for body in ("MA==", "MIIB", ""):
        text = f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"
        with pytest.raises(ValueError):
            not_after_s(text)
