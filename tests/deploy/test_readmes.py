"""The pages beside the deployment files: what their commands name is there, and fits.

The commands themselves need root, a cluster or a registry; what they name is compared.
"""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.manual.following import ROOT, blocks, commands

DEPLOY = ROOT / "conf/deploy"
UNITS = {path.stem: path.read_text("utf-8") for path in (DEPLOY / "systemd").glob("*.service")}


def lines_of(page: str) -> list[list[str]]:
    (block,) = blocks(f"../conf/deploy/{page}/README.md")
    return commands(block)


def of_units(key: str) -> set[str]:
    return {found for text in UNITS.values() for found in re.findall(rf"^{key}=(.+)$", text, re.M)}


def test_the_kubernetes_readme_names_all_manifests_and_an_existing_set() -> None:
    apply, wait = lines_of("kubernetes")
    manifests = {path.name: path for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert apply[:2] == ["kubectl", "apply"] and apply[2::2] == ["-f"] * len(manifests)
    assert sorted(apply[3::2]) == sorted(manifests)
    kind, _, name = wait[-1].partition("/")
    assert wait[:-1] == ["kubectl", "rollout", "status"] and kind == "statefulset"
    found = [
        document["metadata"]["name"]
        for path in manifests.values()
        for document in yaml.safe_load_all(path.read_text("utf-8"))
        if document["kind"] == "StatefulSet"
    ]
    assert name in found


def test_the_systemd_readme_creates_what_the_units_use() -> None:
    user, environment, settings, units, start = lines_of("systemd")
    assert user[0] == "useradd" and of_units("User") == {user[-1]}
    (store,) = of_units("StateDirectory")
    assert user[user.index("--home-dir") + 1] == f"/var/lib/{store}"
    (place,) = {shlex.split(each)[0] for each in of_units("ExecStart")}
    assert place == f"{environment[environment.index('venv') + 1]}/bin/troupemq"
    at = environment.index("&&") + 1
    assert environment[at : at + 2] == [str(Path(place).with_name("pip")), "install"]
    source, target = settings[-2:]
    assert (ROOT / source).is_file()
    assert settings[settings.index("-g") + 1] in of_units("Group")
    assert any(f"-c {target}" in each for each in of_units("ExecStart"))
    assert sorted(path.stem for path in ROOT.glob(units[-2])) == sorted(UNITS)
    assert units[-1] == "/etc/systemd/system/"
    assert start[:3] == ["systemctl", "daemon-reload", "&&"]
    assert start[3:6] == ["systemctl", "enable", "--now"] and sorted(start[6:]) == sorted(UNITS)


def test_the_image_readme_names_the_archive_that_make_writes() -> None:
    make, copy = lines_of("container")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (written,) = re.findall(r"container/build\.py --output (\S+)", makefile)
    assert make == ["make", "image"]
    assert copy[:3] == ["skopeo", "copy", f"oci-archive:{written}"]


@pytest.mark.parametrize("page", ["kubernetes", "systemd", "container"])
def test_a_page_has_one_block_of_commands(page: str) -> None:
    assert lines_of(page)
