"""Sphinx configuration of the manual's site; `make docs` builds a copy of the documents."""

import tomllib
from pathlib import Path

PROJECT = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text(encoding="utf-8"))

project = "TroupeMQ"
copyright = "the TroupeMQ authors"
release = version = PROJECT["project"]["version"]
extensions = ["myst_parser"]
root_doc = "docs/index"
html_theme = "furo"
html_title = f"TroupeMQ {version}"
html_copy_source = False
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]
suppress_warnings = ["misc.highlighting_failure"]
nitpicky = True
