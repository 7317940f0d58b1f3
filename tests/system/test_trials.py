"""The long counts: what the suite tries with some seeds, tried with many (`make trials`)."""

import pytest

from tests.storage import test_power_loss as store_power_loss
from tests.system import test_crash_and_recover as crash_and_recover
from tests.system import test_power_loss as power_loss


@pytest.mark.trial(short=0, long=500)
def test_power_loss_under_sync_flush(seed: int) -> None:
    power_loss.test_sync_flush_loses_nothing_acknowledged(seed)


@pytest.mark.trial(short=0, long=500)
def test_power_loss_under_async_flush(seed: int) -> None:
    power_loss.test_async_flush_loses_only_the_tail(seed)


@pytest.mark.trial(short=0, long=1000)
def test_power_loss_of_a_store(seed: int) -> None:
    store_power_loss.replay(seed)


@pytest.mark.trial(short=0, long=200)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_five_lives_of_a_broker(seed: int, flush: str) -> None:
    acknowledged, found, _ = crash_and_recover.live(seed, flush)
    assert acknowledged <= set(found)
