"""Builder of the manual: `python -m docs.site FOLDER` writes FOLDER/site.

The exit code is 1 if a link is broken. Sphinx reads a copy of the documents in FOLDER/source. The
copy keeps the folders of the tree, so links that work in a file work in the site. Pages generated
from the code are added to it.
"""

import shutil
import sys
from pathlib import Path

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
    """Copy the documents, generate the reference pages and run Sphinx; return the exit code."""
    try:
        from sphinx.cmd.build import build_main
    except ImportError as error:
        print(f"{error}: run {sys.executable} -m pip install -e '.[docs]'", file=sys.stderr)
        return 1
    folder = Path(arguments[0]).resolve()
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    skipped = shutil.ignore_patterns("__pycache__", "site")
    shutil.copytree(ROOT / "docs", source / "docs", ignore=skipped)
    shutil.copytree(ROOT / "conf", source / "conf", ignore=skipped)
    for name in AT_ROOT:
        shutil.copy2(ROOT / name, source / name)  # with its time: a second build skips it
    shutil.copy2(HERE / "conf.py", source / "conf.py")
    reference.main([str(source / "docs" / "reference")])
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "doctrees")]
    code = build_main([*options, str(source), str(folder / "site")])
    if code == 0:
        print(f"{folder / 'site' / 'docs' / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
