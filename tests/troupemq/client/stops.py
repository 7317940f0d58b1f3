"""What the log line of a stop says."""

from typing import Any

import pytest


def last_stop(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Return the fields of the last stop without its time, and its level."""
    records = [each for each in caplog.records if vars(each).get("event") == "client stopped"]
    last = vars(records[-1])
    fields: dict[str, Any] = {**last["fields"], "level": last["levelname"]}
    assert fields.pop("took_ms") >= 0 and fields.pop("client")
    return fields
