"""Names in documents: files, folders, links, make targets and modules of the wheel exist."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = {
    "protocol",
    "storage",
    "remoting",
    "actors",
    "spark",
    "troupemq",
    "tests",
    "docs",
    "conf",
    ".ci",
}
"""Made by a measurement: see `make bench`."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_everything_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = {ROOT / path for path in re.findall(r"`([.\w]+/[\w./-]*)`", text) if in_tree(path)}
    linked = {
        document.parent / target
        for target in re.findall(r"\]\(([^)#]+)", text)
        if "://" not in target
    }
    wanted = {path.resolve() for path in named | linked}
    assert [str(path.relative_to(ROOT)) for path in wanted if not path.exists()] == []


def in_tree(path: str) -> bool:
    return path.partition("/")[0] in FOLDERS


def test_the_documents_name_only_existing_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    named = {
        target
        for document in DOCUMENTS
        for target in re.findall(r"`make ([\w-]+)", document.read_text(encoding="utf-8"))
    }
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_import_only_modules_of_the_wheel(document: Path) -> None:
    """There all our packages lie below `troupemq`; a clone has them beside it."""
    assert [
        f"{module}.{name}"
        for module, name in imported(document)
        if module.partition(".")[0] in FOLDERS and not is_in_wheel(module, name)
    ] == []


def imported(document: Path) -> Iterator[tuple[str, str]]:
    text = document.read_text(encoding="utf-8")
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for node in ast.walk(ast.parse(example)):
            if isinstance(node, ast.ImportFrom):
                yield from ((node.module or "", each.name) for each in node.names)


def is_in_wheel(module: str, name: str) -> bool:
    """Whether our source for the module, which the wheel has below troupemq, says the name."""
    first, *rest = module.split(".")
    if first != "troupemq":
        return False
    within = (
        ROOT.joinpath(*rest) if rest[:1] and rest[0] in FOLDERS else ROOT.joinpath(first, *rest)
    )
    if (within / f"{name}.py").is_file():
        return True
    source = within / "__init__.py" if within.is_dir() else within.with_suffix(".py")
    return source.is_file() and re.search(rf"\b{name}\b", source.read_text("utf-8")) is not None


def test_the_documents_install_the_built_wheel_with_its_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "".join(each.read_text(encoding="utf-8") for each in DOCUMENTS)
    wheels = set(re.findall(r"troupemq-[\d.]+-[\w-]+\.whl", text))
    assert wheels == {f"troupemq-{project['version']}-py3-none-any.whl"}
    extras = {
        each
        for found in re.findall(r"\[([a-z]+(?:,[a-z]+)*)\]['`]", text)
        for each in found.split(",")
    }
    assert extras and extras <= project["optional-dependencies"].keys()


ATTEMPT = re.compile(r"^\| A(\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)
TLS_NEGOTIATOR = ROOT / "tests" / "actors" / "network" / "test_tls_negotiator.py"
LOCKS = "locks"
"""Word of the table for what is no attempt by its name: tests/test_locks.py."""


def test_each_attempt_of_the_table_has_a_test_in_the_named_file() -> None:
    found = ATTEMPT.findall((ROOT / "docs" / "security.md").read_text(encoding="utf-8"))
    assert [int(number) for number, _ in found] == [*range(1, 59)]
    assert [
        f"A{number}: {word}"
        for number, words in found
        for word in words.split(", ")
        if word != LOCKS and not any(are_of(word, int(number)))
    ] == []


def are_of(word: str, attempt: int) -> Iterator[bool]:
    """For each test in the files that a word means, whether it is of this attempt, or hole."""
    is_hole = re.fullmatch(r"H\d+", word) is not None
    letter, number = ("h", int(word[1:])) if is_hole else ("a", attempt)
    names = "holes_of_*" if is_hole else f"*{word}"
    in_security = (ROOT / "tests" / "security").glob(f"test_{names}.py")
    named = re.compile(rf"^def test_{letter}(\d+)_(?:to_{letter}(\d+)_)?", re.MULTILINE)
    for path in [TLS_NEGOTIATOR] if word == "entrance" else in_security:
        for first, last in named.findall(path.read_text(encoding="utf-8")):
            yield int(first) <= number <= int(last or first)


def test_the_page_of_log_lines_has_every_error() -> None:
    """An operator looks up a line at level error or critical, and finds no line of the past."""
    page = (ROOT / "docs" / "log-lines.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`.+?`) \|", page, re.MULTILINE)
    listed = {event for cell in first_cells for event in re.findall(r"`([^`]+)`", cell)}
    sources = [
        path.read_text(encoding="utf-8")
        for package in ("remoting", "actors", "troupemq")
        for path in (ROOT / package).rglob("*.py")
    ]
    error_call = re.compile(r'\blog\.(?:error|critical|exception)\(\s*"([^"]+)"')
    errors = {event for source in sources for event in error_call.findall(source)}
    assert sorted(errors - listed) == []
    assert sorted(event for event in listed if not any(f'"{event}"' in s for s in sources)) == []
