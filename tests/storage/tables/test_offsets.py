"""consumerOffset.json, as the original writes it."""

from pathlib import Path

import pytest

from protocol.bodies_tables import ConsumerOffsetTable
from storage.tables.offsets import format_offsets, offset_key, parse_offsets
from tests.support.by_hand import BY_HAND
from tests.support.golden import store

TEXT = """{
	"offsetTable":{
		"T@G":{0:383,1:42
		},
		"%RETRY%G@G":{0:0
		}
	}
}"""


def test_a_table_has_the_json_form_of_the_original() -> None:
    table = parse_offsets(TEXT)
    assert table == ConsumerOffsetTable({"T@G": {0: 383, 1: 42}, "%RETRY%G@G": {0: 0}})
    assert format_offsets(table) == TEXT
    assert offset_key("T", "G") in table.offset_table


def test_quoted_queue_ids_are_read() -> None:
    assert parse_offsets('{"offsetTable":{"T@G":{"7":1}}}').offset_table == {"T@G": {7: 1}}


def test_an_empty_table_has_the_form_of_the_original() -> None:
    text = format_offsets(ConsumerOffsetTable())
    assert text == '{\n\t"offsetTable":{}\n}'
    assert parse_offsets(text) == ConsumerOffsetTable()


@pytest.mark.parametrize("name", ["clean", "slave", "ext", "v6", "torn-recovered", BY_HAND])
def test_files_of_the_original_are_rewritten_byte_for_byte(name: str, tmp_path: Path) -> None:
    path = store(name, tmp_path, "config") / "config" / "consumerOffset.json"
    text = path.read_text(encoding="utf-8")
    assert format_offsets(parse_offsets(text)) == text
