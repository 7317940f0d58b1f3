"""Tests of the folders of several masters' stores, and of starts without them."""

from pathlib import Path

import pytest

from storage.config import StoreConfig
from storage.errors import StoreError
from troupemq.masters.plan import check_none_is_left_out, folder_of, masters_with_stores


def stores(tmp_path: Path, *used: str) -> StoreConfig:
    """Return the stores that are found beside the first when these folders have content."""
    for name in used:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "lock").touch()
    return StoreConfig(str(tmp_path / "store"), str(tmp_path / "log"))


def test_other_masters_have_folders_beside_the_firsts() -> None:
    found = [folder_of("/data/store/", number) for number in range(3)]
    assert found == ["/data/store/", "/data/store-masters/1", "/data/store-masters/2"]


@pytest.mark.parametrize(
    "used, count",
    [
        ((), 1),
        (("store",), 1),
        (("store", "store-masters/1"), 2),
        (("store", "store-masters/1", "store-masters/10"), 11),
        (("store", "store-1", "store-masters/old", "store-masters/3.moved"), 1),
        (("store", "log-masters/2"), 3),
    ],
)
def test_the_highest_folder_number_gives_the_number_of_masters(
    tmp_path: Path, used: tuple[str, ...], count: int
) -> None:
    assert masters_with_stores(stores(tmp_path, *used)) == count


def test_an_empty_folder_does_not_count_as_a_store(tmp_path: Path) -> None:
    (tmp_path / "store-masters" / "1").mkdir(parents=True)
    assert masters_with_stores(stores(tmp_path)) == 1


def test_fewer_masters_than_stores_are_refused_with_the_steps(tmp_path: Path) -> None:
    store = stores(tmp_path, "store", "store-masters/1", "store-masters/2")
    check_none_is_left_out(store, 3)
    check_none_is_left_out(store, 4)
    with pytest.raises(StoreError) as refused:
        check_none_is_left_out(store, 2)
    assert "--masters 3" in str(refused.value) and "wipeWritePerm" in str(refused.value)
