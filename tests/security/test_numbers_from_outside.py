"""`int` sees no text from outside: numbers of peers go through protocol/java_numbers.py.

Files in which `int` is called otherwise are listed, with how often and why that is no such text. A
new call fails until it is counted here, or uses parse_int, parse_long or plain_number.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("actors", "protocol", "remoting", "storage", "troupemq")
NUMERIC = {"sum", "max", "min", "argmin", "argmax", "searchsorted", "timestamp", "time"}

PATTERN = "digits that an expression has matched, at most 18"
VALUE = "a number, or a member of an enumeration"
OWN = "text that this program, or the system, has written"
NAMES = "names of files, as long as the system allows"
HASH = "pieces of at most 255 digits of base 31"
CALLS = {
    "actors/jobs/jobs_conf.py": (3, PATTERN),
    "actors/jobs/timetable.py": (5, OWN),
    "actors/metrics/broker_page.py": (4, VALUE),
    "actors/metrics/exporter_page.py": (1, PATTERN),
    "actors/metrics/own_page.py": (2, VALUE),
    "actors/metrics/page.py": (2, VALUE),
    "actors/network/dial.py": (1, OWN),
    "actors/network/request.py": (2, VALUE),
    "actors/parts.py": (1, VALUE),
    "actors/pulling/pull_message.py": (1, VALUE),
    "actors/receipts/settlement.py": (3, VALUE),
    "protocol/properties_file.py": (1, OWN),
    "actors/statistics/statistics.py": (1, VALUE),
    "actors/tables/persisted.py": (1, VALUE),
    "protocol/end_wire.py": (2, "at most 18 digits"),
    "protocol/errors.py": (1, VALUE),
    "protocol/fastjson.py": (1, OWN),
    "protocol/fastjson_reader.py": (3, PATTERN),
    "protocol/frame.py": (7, PATTERN),
    "protocol/java_numbers.py": (5, "it is the place"),
    "protocol/json_body.py": (1, VALUE),
    "protocol/send_wire.py": (13, PATTERN),
    "protocol/signature.py": (1, VALUE),
    "protocol/span_names.py": (3, PATTERN),
    "protocol/sql92/nodes.py": (3, "its own, and a literal of at most 19 digits"),
    "protocol/standard_json.py": (1, "at most 20 characters"),
    "storage/access/acl_yaml.py": (1, "at most 18 digits"),
    "storage/access/addresses.py": (8, "at most 4 digits, and addresses"),
    "storage/backup/backup.py": (1, NAMES),
    "storage/backup/record.py": (4, OWN),
    "storage/checking/store_layout.py": (3, NAMES),
    "protocol/delay_levels.py": (1, PATTERN),
    "storage/dispatching/sink_table.py": (5, OWN),
    "storage/dump/store.py": (2, NAMES),
    "storage/files/lock_file.py": (1, OWN),
    "storage/files/mapped_file.py": (2, NAMES),
    "storage/index/index.py": (1, NAMES),
    "storage/index/key_hash.py": (2, HASH),
    "storage/queues/queue_files.py": (1, OWN),
    "storage/queues/queue_run.py": (2, NAMES),
    "storage/reading/delayed.py": (1, VALUE),
    "storage/recovery/clean_stop.py": (2, OWN),
    "storage/retention/archive_manifest.py": (1, NAMES),
    "storage/retention/leases.py": (1, OWN),
    "storage/retention/unarchived.py": (1, NAMES),
    "storage/scrub/unit_reader.py": (1, VALUE),
    "storage/tables/crc_sidecar.py": (2, OWN),
    "storage/tables/store_traces.py": (2, NAMES),
    "troupemq/cli/admin/command.py": (1, "one of three choices"),
    "troupemq/cli/admin/output.py": (2, VALUE),
    "troupemq/client/admin/answers.py": (1, VALUE),
    "troupemq/client/admin/brokers.py": (9, VALUE),
    "troupemq/client/consuming/consumer_requests.py": (1, VALUE),
    "troupemq/client/producing/request_reply.py": (1, VALUE),
    "troupemq/cluster_demo/standalone.py": (1, OWN),
    "troupemq/cluster_overview.py": (3, VALUE),
    "troupemq/console/app.py": (1, VALUE),
    "troupemq/console/changing/offset_changes.py": (1, VALUE),
    "troupemq/console/pages/brokers.py": (4, VALUE),
    "troupemq/console/pages/messages.py": (1, VALUE),
    "troupemq/console/pages/message.py": (1, VALUE),
    "troupemq/console/pages/overview.py": (1, VALUE),
    "troupemq/console/parts.py": (1, VALUE),
    "troupemq/console/rendering.py": (3, VALUE),
    "troupemq/console/search.py": (1, VALUE),
    "troupemq/console/server.py": (1, OWN),
    "troupemq/console_child.py": (1, OWN),
    "troupemq/doctor.py": (2, OWN),
    "troupemq/health/notify.py": (1, OWN),
    "troupemq/java.py": (1, OWN),
    "troupemq/masters/plan.py": (2, NAMES),
    "troupemq/masters/supervisor.py": (3, OWN),
    "troupemq/numbers.py": (1, PATTERN),
    "troupemq/testing/local_broker.py": (1, VALUE),
    "troupemq/testing/simulation.py": (2, VALUE),
    "troupemq/tour.py": (1, OWN),
}


def is_number(value: ast.expr) -> bool:
    """Whether it is no text, as far as can be seen."""
    if isinstance(value, ast.BinOp):
        return not isinstance(value.op, ast.Add)
    if isinstance(value, ast.Attribute):
        return isinstance(value.value, ast.Name) and value.value.id[0].isupper()
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr in NUMERIC
    return isinstance(value, ast.Constant | ast.Compare)


def calls_of_int(source: str) -> int:
    count = 0
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
            continue
        first = node.args[0]
        is_mapped = node.func.id == "map" and isinstance(first, ast.Name) and first.id == "int"
        count += is_mapped or (node.func.id == "int" and not is_number(first))
    return count


@pytest.mark.heavy
def test_each_call_of_int_is_listed_as_safe_from_outside_text() -> None:
    found = {}
    called = re.compile(r"\bint\(|\(int,")  # without it there is nothing to parse
    for path in sorted(each for name in PACKAGES for each in (ROOT / name).rglob("*.py")):
        source = path.read_text()
        count = calls_of_int(source) if called.search(source) else 0
        if count:
            found[str(path.relative_to(ROOT))] = count
    assert found == {path: count for path, (count, _) in CALLS.items()}


def test_a_call_on_text_is_counted() -> None:
    assert calls_of_int("int(text)\nint(a + b)\nmap(int, texts)\nint(found[1])") == 4
    assert calls_of_int("int(a * b)\nint(Code.OK)\nint(x.max())\nint(a == b)\nint(3.5)") == 0
