"""A21 on a real disk: what is written where an accounts file is a link, or a path ends in one."""

from pathlib import Path

import pytest

from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from storage.clock import SystemClock
from tests.support.guarded import signed
from tests.support.sockets import Line, serving_broker

OWN = """
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
"""
FOREIGN = """
accounts:
- {accessKey: shop-account, secretKey: secret-shop}
"""


def white_list(line: Line, path: Path) -> int:
    fields = {"globalWhiteAddrs": "192.0.2.9", "aclFileFullPath": str(path)}
    asked = RemotingCommand(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields)
    return line.ask(signed(asked, "administrator", now_ms=SystemClock().now_ms())).code


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a21_only_a_linked_accounts_file_is_written_through_its_link(
    tmp_path: Path, is_loaded: bool
) -> None:
    """A link below acl/ was made by a user with access there; it stays a link."""
    folder, other = tmp_path / "conf", tmp_path / "other" / "file.yml"
    for each in (folder / "acl", other.parent):
        each.mkdir(parents=True)
    own, link = folder / "plain_acl.yml", folder / ("acl" if is_loaded else ".") / "link.yml"
    own.write_text(OWN)
    other.write_text(FOREIGN)
    link.symlink_to(other)
    for each in (own, other):
        each.chmod(0o600)
    with (
        serving_broker(tmp_path / "store", acl_enable=True, acl_file=str(own)) as running,
        Line.to(running.ports.main) as line,
    ):
        assert white_list(line, link) == (0 if is_loaded else 211)
        assert white_list(line, other) == 211
        assert white_list(line, folder / "acl" / ".." / "plain_acl.yml") == 211
        assert white_list(line, own) == 0
    assert (other.read_text() == FOREIGN) is not is_loaded
    assert link.is_symlink() and link.read_text() == other.read_text()
    assert {each.name for each in other.parent.iterdir()} == {"file.yml"}
    assert own.read_text().count("192.0.2.9") == 1
