"""`python -m docs.site FOLDER`: the manual, built into FOLDER/site; exit code 1 at any broken link.

Sphinx reads a copy of the documents in FOLDER/source, in the tree's own order, so that a link which
works in a file works in the site; the pages made from the code are put beside them.
"""

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from docs.site import reference

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
AT_ROOT = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "LICENSE",
)


def main(arguments: list[str]) -> int:
    """Copy the documents, make the generated pages, build the site."""
    folder = Path(arguments[0]).resolve()
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    skipped = shutil.ignore_patterns("__pycache__", "site")
    shutil.copytree(ROOT / "docs", source / "docs", ignore=skipped)
    shutil.copytree(ROOT / "conf", source / "conf", ignore=skipped)
    for name in AT_ROOT:
        shutil.copy(ROOT / name, source / name)
    shutil.copy(HERE / "conf.py", source / "conf.py")
    reference.main([str(source / "docs" / "reference")])
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "doctrees")]
    code = build_main([*options, str(source), str(folder / "site")])
    if code == 0:
        print(f"{folder / 'site' / 'docs' / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
