"""House rules that a program can check: sizes, first sentences, and what no file may hold."""

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("protocol", "storage", "remoting", "actors", "spark", "troupemq")
FOLDERS = (*PACKAGES, "tests", "docs", "conf", ".ci")

FILE_LINES_MAX, FUNCTION_LINES_MAX = 600, 60

CATCHES_EVERYTHING = {
    "actors/engine/actor.py": "whatever a handler raises is its actor's failure",
    "actors/engine/dispatchers.py": "the same; what is left must be answered even then",
    "actors/engine/loop.py": "the same, on the loop",
    "actors/engine/supervisor.py": "an actor that cannot be made is restarted like one that failed",
    "actors/engine/inbox.py": "a refusal that fails must not stop the refusal of the next message",
    "actors/network/hooks.py": "a user's hook must not stop a send",
    "spark/runner.py": "whatever a job raises is told to the parent as one sentence",
    "troupemq/client/producing/sending.py": "what the choice of a queue raises: a send's failure",
    "troupemq/client/producing/transaction.py": "what the application raises: state unknown",
    "troupemq/client/consuming/listener.py": "whatever a listener raises, its messages come again",
    "troupemq/client/aio/handler_tasks.py": "whatever a handler raises, its messages come again",
    "troupemq/client/aio/transaction.py": "what the application raises: state unknown",
    "troupemq/kombu/envelope.py": "whatever kombu's decoder raises, the message is a dead letter",
    "troupemq/testing/simulation.py": "what a handler raises, as in the engine",
    "troupemq/testing/virtual_loop.py": "what a function raises is the result of its future",
    "troupemq/client/aio/client.py": "a flow that fails must not end the ones after it",
    "troupemq/client/connection/client.py": "a broker's request must not end all connections",
    "troupemq/client/connection/task_thread.py": "a task that fails must not end the ones after it",
    "troupemq/console/watch.py": "one round that fails must not end the alerts",
}
"""Modules that may catch `Exception` or `BaseException` without raising it again, and why."""

WAITS_BY_SLEEPING = {
    "tests/compat/patience.py": "waits for processes that cannot tell when they are ready",
    "tests/compat/test_pop.py": "a stopped client must outlast its receipts",
    "tests/security/outcomes/reading.py": "an attacker who takes his time, on no test's",
    "tests/security/outcomes/servers.py": "the same",
}

TESTED_ELSEWHERE = {
    "troupemq/aio.py": "tests/troupemq/test_imports.py: of each public name",
    "troupemq/client/aio/": "tests/troupemq/client/aio/test_producer.py: over the whole client",
    "troupemq/client/connection/calls.py": "tests/troupemq/client/connection/test_route.py",
    "troupemq/client/consuming/group_work.py": "tests/troupemq/client/consuming/test_consumer.py",
    "troupemq/client/consuming/pull_work.py": (
        "tests/troupemq/client/consuming/test_pull_consumer.py"
    ),
    "troupemq/client/consuming/push_work.py": "tests/troupemq/client/consuming/test_consumer.py",
    "troupemq/client/receiving/receive_work.py": (
        "tests/troupemq/client/receiving/test_simple_consumer.py"
    ),
    "troupemq/client/consuming/running_info.py": (
        "tests/troupemq/client/consuming/test_consumer_requests.py: who answers with it"
    ),
    "troupemq/client/connection/pending.py": "tests/troupemq/client/connection/test_remoting.py",
    "actors/access/acl_store.py": "tests/actors/admin/test_access_control.py: who owns it",
    "actors/children/tls.py": "tests/security/test_tls_of_servers.py: the doors that it makes",
    "actors/children/metrics.py": "tests/actors/metrics/test_metrics_port.py: what it makes",
    "protocol/span_names.py": "tests/actors/spans/test_span_queue.py",
    "actors/delays/delay_offsets.py": "tests/actors/delays/test_schedule.py: its other side",
    "actors/delays/messages.py": "tests/actors/delays/test_schedule.py: both of their sides",
    "actors/engine/histogram.py": "tests/actors/metrics/test_broker_metrics.py: who shows them",
    "actors/naming/registration_reader.py": "tests/actors/naming/test_large_registrations.py",
    "actors/parts.py": "tests/actors/test_broker.py: names what is made there",
    "actors/replication/ha_slave.py": "tests/actors/replication/test_replication.py: the other end",
    "actors/sending/replication_progress.py": "tests/actors/replication/test_sync_master.py",
    "actors/settings/telemetry_settings.py": "tests/actors/metrics/test_selection.py: obeys them",
    "actors/retention/messages.py": "tests/actors/sending/test_put_message_tail.py: both ends",
    "actors/settings/known_keys.py": "tests/actors/test_config.py: names, and no rule",
    "troupemq/testing/collecting_consumer.py": "tests/troupemq/testing/test_local_broker.py",
    "protocol/headers/": "tests/protocol/test_headers.py: every header of every code, one table",
    "protocol/sql92/lexer.py": "tests/protocol/sql92/test_compile.py: what is refused, and where",
    "spark/analysis/scan.py": "tests/spark/jobs/test_duplicates.py: what jobs read",
    "spark/archive/run.py": "tests/spark/test_with_spark.py: the job as Spark runs it",
    "spark/jobs/archive.py": "tests/spark/test_with_spark.py: the job as Spark runs it",
    "storage/child_python.py": "tests/system/test_child_python.py: all processes that it starts",
    "storage/clock.py": "tests/actors/engine/test_system.py: the clock of every test",
    "protocol/delay_levels.py": "tests/storage/dispatching/test_dispatch.py: when they are due",
    "storage/files/checked_json.py": "tests/storage/tables/test_settings_file.py: one of them",
    "storage/index/index_layout.py": "tests/storage/index/test_index_file.py: its layout",
    "storage/reading/delayed.py": "tests/actors/delays/test_schedule.py: what it reads is due",
    "storage/replica/replica_mark.py": "tests/storage/recovery/test_start_findings.py: a mark",
    "storage/scrub/unit_reader.py": "tests/storage/scrub/test_round.py: what it is for",
    "troupemq/__main__.py": "tests/compat/test_wheel.py: the command of a wheel",
    "troupemq/cli/admin/": "tests/troupemq/cli/test_admin_commands.py: every command by its name",
    "troupemq/client/admin/": "tests/troupemq/cli/test_admin_commands.py: commands call them",
    "troupemq/console/changing/": "tests/troupemq/console/test_changes.py: each is carried out",
    "troupemq/console/pages/": "tests/troupemq/console/test_pages.py: every page by its path;"
    " beside it those with more of their own",
    "troupemq/cli/copying.py": "tests/troupemq/client/test_redrive.py: what it runs",
    "troupemq/client/arguments.py": "tests/troupemq/client/test_misuse.py: what is refused",
    "troupemq/client/log.py": "tests/troupemq/test_logs.py: beside the servers' lines",
    "troupemq/cluster_demo/__main__.py": "tests/compat/test_spark_cluster.py: as people run it",
    "troupemq/cluster_demo/story.py": "tests/compat/test_spark_cluster.py: as people run it",
    "troupemq/store_backup.py": "tests/manual/test_backup.py: the page is followed",
    "troupemq/copier.py": "tests/troupemq/client/test_redrive.py: one of its two uses",
    "troupemq/redrive.py": "tests/troupemq/client/test_redrive.py: beside the other clients",
    "troupemq/restore.py": "tests/troupemq/client/test_restore.py: beside the other clients",
}
"""Modules and folders whose tests stand somewhere else: where, and why there."""

SAME_NAMES = {
    "Admin": "the asyncio client has the names of the threaded one",
    "PullConsumer": "the asyncio client has the names of the threaded one",
    "QueueReader": "the asyncio client has the names of the threaded one",
    "TroupeMQBroker": "each task framework calls its own class a broker",
    "TransactionProducer": "the asyncio client has the names of the threaded one",
    "Delivery": "of the threaded client, of the asyncio client, and of the broker's receipts",
    "SimpleConsumer": "the asyncio client has the names of the threaded one",
    "PushConsumer": "the asyncio client has the names of the threaded one",
    "Producer": "the asyncio client has the names of the threaded one",
    "Arguments": "of each job: every module of spark/jobs/ has Arguments, check and main",
    "Message": "what an actor sends to another one, and what applications of the client send",
    "Transport": "of a connection of the server, and the name that kombu's transports have",
    "MessageQueue": "the key of tables on the wire, and what applications of the client handle",
}
"""Public classes that exist more than once in the product, and why that is right."""

NAME_OTHER_FILES = {"hatch_build.py": "an example", "tests/compat/test_wheel.py": "of a wheel"}

LONG_FUNCTIONS = {
    "actors/sending/admission.py:put_of": "the path of every send: a call saved is 0.1 µs of its 7",
}

TEXT_SUFFIXES = {".py", ".md", ".conf", ".toml", ".java", ".go", ".xml", ".mod", ".sh", ""}


def text_files() -> list[Path]:
    """Every file that people wrote: no caches, no build results."""
    at_root = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return sorted(
        path
        for path in at_root + below
        if path.is_file()
        and path.name != ".git"  # of a second work tree: it says where the first one is
        and path.suffix in TEXT_SUFFIXES
        and not {"target", "__pycache__"} & set(path.relative_to(ROOT).parts)
    )


TEXT_FILES = text_files()
MODULES = [path for path in TEXT_FILES if path.suffix == ".py"]
TESTS = [path for path in MODULES if path.relative_to(ROOT).parts[0] == "tests"]


def in_product(path: str) -> bool:
    return path.partition("/")[0] in PACKAGES


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), name(path))


@cache
def statements(path: Path) -> tuple[ast.AST, ...]:
    """Return the statements of a file without their expressions, which are most of a tree."""
    return tuple(_below(parsed(path)))


def _below(node: ast.AST) -> Iterator[ast.AST]:
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(node, part, ()):
            yield each
            yield from _below(each)


@pytest.fixture(scope="module", autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """Avoid repeated scans of millions of small objects, which take three seconds of four."""
    gc.disable()
    yield
    parsed.cache_clear()
    statements.cache_clear()
    gc.enable()


def found(files: list[Path], pattern: str) -> list[str]:
    """Return where a pattern occurs, except in this file, which must contain it."""
    wanted, here = re.compile(pattern, re.MULTILINE), Path(__file__).resolve()
    return [
        f"{name(path)}:{number}: {line.strip()[:80]}"
        for path in files
        if path != here and wanted.search(text := path.read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), 1)
        if wanted.search(line)
    ]


def test_no_module_is_too_long_to_read_in_one_go() -> None:
    sizes = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path: lines for path, lines in sizes.items() if lines > FILE_LINES_MAX} == {}


def test_no_function_is_too_long_to_see_at_once() -> None:
    long = {
        f"{name(path)}:{node.name}": lines
        for path in MODULES
        for node in statements(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert {where: lines for where, lines in long.items() if where not in LONG_FUNCTIONS} == {}
    assert [where for where in LONG_FUNCTIONS if where not in long] == [], "no longer needed"


def test_every_module_has_a_first_sentence() -> None:
    assert [
        name(path)
        for path in MODULES
        if path.read_text(encoding="utf-8") and not first_sentence(path).endswith((".", ":", "`"))
    ] == []


def test_no_module_begins_with_a_question_word() -> None:
    """A module is something: "The route table of …", not "Which broker holds …"."""
    words = {"From", "How", "What", "When", "Where", "Whether", "Which", "Who", "Why"}
    first = {name(path): first_sentence(path).partition(" ")[0] for path in MODULES}
    assert [path for path, word in first.items() if word in words and in_product(path)] == []


def first_sentence(path: Path) -> str:
    """Return the docstring up to its first blank line."""
    return (ast.get_docstring(parsed(path)) or "").partition("\n\n")[0].rstrip()


def test_only_the_marker_files_of_tests_are_empty() -> None:
    empty = [path for path in MODULES if not path.read_text(encoding="utf-8").strip()]
    assert [name(path) for path in empty if path.name != "__init__.py" or path not in TESTS] == []


def test_every_folder_of_tests_is_a_package() -> None:
    """Otherwise the folder tests/storage becomes the package `storage`."""
    folders = {path.parent for path in TESTS}
    assert [name(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_tests_mirror_the_tree() -> None:
    """Every module has tests where its path says.

    That is a file in the same folder below tests/ that is named after it, or begins so, or imports
    it. A part that only its own folder or one module knows of is tested through the module that
    uses it, if that one has tests of its name. What holds declarations only needs none.
    """
    ours = [each for each in MODULES if each.relative_to(ROOT).parts[0] in PACKAGES]
    modules = {each: imports(each) for each in ours}
    tested: dict[Path, set[str]] = defaultdict(set)  # by the folder of the tests
    for each in TESTS:
        if each.stem.startswith("test_"):
            tested[each.parent] |= imports(each)
    names = {each: module(each) for each in ours}
    users = {
        each: [
            user
            for user in ours
            if names[each] in modules[user]
            and (user.parent == each.parent or user.parent.name != "testing")
        ]
        for each in ours
    }
    untested = [
        name(path)
        for path in modules
        if path.name != "__init__.py"
        and defines_functions(path)
        and not has_tests_of_its_name(path)
        and names[path] not in tested[ROOT / "tests" / path.relative_to(ROOT).parent]
        and not is_part_of_what_is_tested(path, users[path])
    ]
    excepted = {one: where for one in untested for where in TESTED_ELSEWHERE if is_in(one, where)}
    assert [path for path in untested if path not in excepted] == []
    assert [path for path in TESTED_ELSEWHERE if path not in excepted.values()] == [], "not needed"
    said = {ROOT / where.partition(":")[0] for where in TESTED_ELSEWHERE.values()}
    assert [str(path) for path in said if not path.is_file()] == []


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports(path: Path) -> set[str]:
    return {node.module or "" for node in statements(path) if isinstance(node, ast.ImportFrom)}


def has_tests_of_its_name(path: Path) -> bool:
    folder = ROOT / "tests" / path.relative_to(ROOT).parent
    return any(folder.glob(f"test_{path.stem}.py")) or any(folder.glob(f"test_{path.stem}_*.py"))


def is_part_of_what_is_tested(path: Path, users: list[Path]) -> bool:
    is_inner = len(users) == 1 or all(user.parent == path.parent for user in users)
    return is_inner and any(has_tests_of_its_name(user) for user in users)


def defines_functions(path: Path) -> bool:
    return any(isinstance(node, ast.FunctionDef) for node in statements(path))


def is_in(path: str, where: str) -> bool:
    return path == where or (where.endswith("/") and path.startswith(where))


def test_a_public_class_name_exists_once() -> None:
    """A reader who looks for it finds one."""
    where: dict[str, list[str]] = {}
    for path in MODULES:
        if in_product(name(path)):
            for node in parsed(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    where.setdefault(node.name, []).append(name(path))
    doubled = {each: paths for each, paths in where.items() if len(paths) > 1}
    assert {each: paths for each, paths in doubled.items() if each not in SAME_NAMES} == {}
    assert [each for each in SAME_NAMES if each not in doubled] == [], "no longer needed"


def test_nothing_is_left_for_later() -> None:
    assert found(TEXT_FILES, r"\b(TODO|FIXME|XXX|HACK)\b") == []


def test_no_file_contains_a_path_of_one_machine() -> None:
    assert found(TEXT_FILES, r"(?<![\w.~$}])/(work|root|home|Users|tmp/\w+|mnt)/") == []


def test_files_that_code_names_exist() -> None:
    """In docstrings and comments; test_docs.py looks at the documents."""
    path_of_ours = re.compile(rf"(?<![\w/])(?:{'|'.join(PACKAGES)}|tests)/[\w/]+\.py\b")
    assert [
        f"{name(path)}: {each}"
        for path in MODULES
        if name(path) not in NAME_OTHER_FILES
        for each in path_of_ours.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / each).is_file()
    ] == []


def test_tests_do_not_sleep() -> None:
    assert [
        f"{name(path)}:{node.lineno}"
        for path in TESTS
        if name(path) not in WAITS_BY_SLEEPING
        if "sleep(" in path.read_text(encoding="utf-8")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sleep", "time.sleep")
    ] == []


def test_only_listed_modules_catch_every_exception() -> None:
    catchers = {
        name(path): where
        for path in MODULES
        if path not in TESTS and (where := list(swallowing(path)))
    }
    assert {path: where for path, where in catchers.items() if path not in CATCHES_EVERYTHING} == {}
    assert [path for path in CATCHES_EVERYTHING if path not in catchers] == [], "no longer needed"


def swallowing(path: Path) -> Iterator[int]:
    """The lines of handlers that catch everything and do not raise it again at their end."""
    for node in statements(path):
        if isinstance(node, ast.ExceptHandler) and catches_everything(node):
            last = node.body[-1]
            if not (isinstance(last, ast.Raise) and last.exc is None):
                yield node.lineno


def catches_everything(handler: ast.ExceptHandler) -> bool:
    kind = handler.type
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))
        for kind in kinds
    )


def test_no_error_is_dropped_silently() -> None:
    assert [
        f"{name(path)}:{node.lineno}"
        for path in MODULES
        for node in statements(path)
        if isinstance(node, ast.ExceptHandler)
        and catches_everything(node)
        and all(isinstance(line, ast.Pass) for line in node.body)
    ] == []


PERSONS = r"\b([Nn]obody|[Ss]omebody|[Ee]verybody|[Aa]nybody|[Ww]hoever|he|him|his)\b"
DIALECT = re.compile(rf"{PERSONS}|\banew\b|\b(is|are) none\b")
"""Words that no text uses: those for people, and those of no field."""
VAGUE_START = re.compile(
    r"(Who|Whom|Whose|The same|Those|These|Both|Of|As|It|They|Its|By|Once|Now|What|Where|How|Why"
    r"|When|Which)\b"
)
"""First words that leave open what a docstring, a note or a help text describes."""
WORDS_MIN = 3
LONG_SENTENCE_WORDS = 25
LONG_SENTENCES_PERCENT_MAX = 10
MANUAL = [
    path
    for path in TEXT_FILES
    if path.suffix == ".md"
    and (
        path.parent in (ROOT, ROOT / "docs", ROOT / "docs/decisions")
        or ROOT / "conf" in path.parents
    )
]
"""Markdown files of the root, conf/ and docs/, except the laboratory."""


def described(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, attribute note and help text of a module."""
    texts = [
        each.value
        for node in (parsed(path), *statements(path))
        for each in getattr(node, "body", ())
        if isinstance(each, ast.Expr)
    ]
    if "help=" in path.read_text(encoding="utf-8"):
        texts += [
            node.value
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.keyword) and node.arg in ("help", "short_help", "epilog")
        ]
    for text in texts:
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield text.lineno, text.value.strip()


def test_descriptions_open_with_a_phrase_that_is_clear_alone() -> None:
    assert [
        f"{name(path)}:{line}: {text[:60]}"
        for path in MODULES
        for line, text in described(path)
        if VAGUE_START.match(text) or len(text.split()) < WORDS_MIN or DIALECT.search(text)
    ] == []


def test_texts_are_without_dialect() -> None:
    """In all lines of the product, the manual and the samples of settings."""
    files = [path for path in TEXT_FILES if in_product(name(path)) or path in MANUAL]
    samples = [path for path in TEXT_FILES if path.suffix == ".conf"]
    assert found([*files, *samples], DIALECT.pattern) == []


def test_names_of_tests_state_behaviour_in_the_field_s_terms() -> None:
    """A number such as a17 or h1 leads to the attempt or the hole in docs/security.md."""
    numbered = re.compile(r"test_(?:[ah]\d+_(?:to_a\d+_)?)?")
    names = {
        f"{name(path)}: {node.name}": numbered.sub("", node.name, count=1).replace("_", " ")
        for path in TESTS
        for node in statements(path)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    components = re.compile(r"\bwho\b|\bwhom\b")
    vague = re.compile(VAGUE_START.pattern, re.IGNORECASE)
    assert [
        where
        for where, words in names.items()
        if vague.match(words) or DIALECT.search(words) or components.search(words)
    ] == []


def test_headings_of_the_manual_do_not_ask() -> None:
    assert found(MANUAL, r"^#+ (Who|Whose|What|Where|How|Why|When|Which|If|That)\b") == []


def test_nine_of_ten_sentences_of_the_manual_are_short() -> None:
    for path in MANUAL:
        sentences = list(sentences_of(path.read_text(encoding="utf-8")))
        long = [each for each in sentences if len(each.split()) > LONG_SENTENCE_WORDS]
        percent = 100 * len(long) / max(1, len(sentences))
        assert percent <= LONG_SENTENCES_PERCENT_MAX, f"{name(path)}: {long[:3]}"


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences of paragraphs and lists; leave out code, tables and headings."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^(\||#|<).*$", "", prose, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|^\s*(?:[*-]|\d+\.) ", prose, flags=re.MULTILINE):
        yield from (each for each in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", block) if each.strip())
