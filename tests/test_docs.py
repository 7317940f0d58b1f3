"""What the documents name is there: files, folders, links, make targets."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = {"protocol", "storage", "actors", "spark", "troupemq", "tests", "docs", "conf", ".ci"}
"""Made by a measurement: see `make bench`."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_is_there(document: Path) -> None:
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


def test_the_documents_name_only_targets_that_make_has() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    named = {
        target
        for document in DOCUMENTS
        for target in re.findall(r"`make (\w+)", document.read_text(encoding="utf-8"))
    }
    assert named <= targets
