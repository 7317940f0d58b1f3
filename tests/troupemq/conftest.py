"""What a command leaves behind in its process is taken back after each test."""

import os
import sys
from collections.abc import Iterator

import pytest

from troupemq.logs import shut_down_logs


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    mask = os.umask(0o022)
    yield
    sys.setswitchinterval(interval_s)
    os.umask(mask)
    shut_down_logs()
