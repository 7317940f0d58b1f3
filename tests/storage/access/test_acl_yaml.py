"""One file of access control: every key, and every entry that is refused with its name."""

from collections.abc import Iterator
from ipaddress import ip_address

import pytest
import yaml

from protocol.bodies_tables import DataVersion
from storage.access.acl_file import DENY, PUB, SUB, AclFile, AclFileError
from storage.access.acl_yaml import FILE_BYTES_MAX, encode_acl_file, parse_acl_file

PATH = "conf/plain_acl.yml"
WHOLE = """
# as it comes with RocketMQ, with other secrets
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*
accounts:
  - accessKey: RocketMQ
    secretKey: 1234567890
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC = SUB|PUB
    groupPerms:
      - groupA=DENY
      - '%RETRY%groupB=PUB|SUB'
      - groupC=ANY
  - accessKey: rocketmq2
    secretKey: "0123456789"
    whiteRemoteAddress: 192.168.1.*
    admin: true
    previousSecretKey: before-that
    monitor: yes
    broker: "true"
    requireTls: true
    aclMaxAgeSeconds: 300
    allowedRemoteAddresses: [10.0.0.0/8]
dataVersion:
  - {counter: 3, timestamp: 1700000000000}
"""


def parse(text: str) -> AclFile:
    return parse_acl_file(PATH, text.encode())


def account(text: str) -> str:
    return f"accounts:\n- accessKey: account1\n  secretKey: secret12\n{text}"


def test_every_key_is_understood() -> None:
    file = parse(WHOLE)
    assert ip_address("192.168.0.5") in file.white
    assert file.version == DataVersion(1_700_000_000_000, 3)
    first, second = file.accounts
    assert not first.admin and first.has_lists
    assert (first.default_topic_perm, first.default_group_perm) == (DENY, SUB)
    assert first.topic_perms == {"topicA": DENY, "topicB": PUB | SUB, "topicC": PUB | SUB}
    assert first.group_perms == {"groupA": DENY, "groupB": PUB | SUB, "groupC": DENY}
    assert first.secrets[0].sign(b"x", None) != second.secrets[0].sign(b"x", None)
    assert second.admin and second.monitor and second.broker and second.require_tls
    assert second.max_age_s == 300 and len(second.secrets) == 2
    assert ip_address("192.168.1.9") in second.white
    assert second.allowed is not None and ip_address("10.9.9.9") in second.allowed
    assert (second.default_topic_perm, second.default_group_perm) == (DENY, DENY)
    assert file.unknown_keys == () and file.samples == ()


def test_a_written_acl_file_parses_to_the_same_accounts() -> None:
    file = parse(WHOLE + "futureKey: 1\n")
    again = parse_acl_file(PATH, encode_acl_file(file.raw))
    assert again.raw == file.raw
    assert again.unknown_keys == file.unknown_keys == ("futureKey",)
    shown = [repr(each) for each in (file, again)]
    assert shown[0] == shown[1]


def test_secrets_are_absent_from_the_repr() -> None:
    shown = repr(parse(WHOLE))
    assert not any(secret in shown for secret in ("1234567890", "0123456789", "before-that"))


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "accounts:\n", "accounts: []\n"])
def test_an_empty_file_has_no_accounts(text: str) -> None:
    assert parse(text).accounts == ()


def test_accounts_with_publicly_known_secrets_are_listed() -> None:
    text = account("").replace("account1", "RocketMQ").replace("secret12", "12345678")
    assert parse(text).samples == ("RocketMQ",)
    both = "secretKey: another-secret\n  previousSecretKey"
    assert parse(text.replace("secretKey", both)).samples == ("RocketMQ",)


@pytest.mark.parametrize(
    "lines",
    [
        "  topicPerms: [my-own-secret]\n",
        "  my-own-secret: 1\n  my-own-secret: 2\n",
        "  admin: my-own-secret\n",
        "  aclMaxAgeSeconds: my-own-secret\n",
        "  ? [my-own-secret]\n  : 1\n",
    ],
)
def test_an_error_about_a_misplaced_secret_does_not_quote_it(lines: str) -> None:
    with pytest.raises(AclFileError) as refused:
        parse(account(lines))
    assert "my-own-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("accounts: [{accessKey: short, secretKey: secret12}]", "account short"),
        ("accounts: [{accessKey: account1, secretKey: short}]", "account account1"),
        ("accounts: [{accessKey: account1}]", "account account1"),
        ("accounts: [{secretKey: secret12}]", "account 1"),
        ("accounts: [account1]", "account 1"),
        (account("  previousSecretKey: short\n"), "account account1"),
        (account("- accessKey: account1\n  secretKey: secret12\n"), "duplicate entry"),
        (account("  topicPerms: [noEquals]\n"), "invalid entry 1 of topicPerms"),
        (account("  topicPerms: [a=b=SUB]\n"), "entry 1 of topicPerms"),
        (account("  groupPerms: ['=SUB']\n"), "entry 1 of groupPerms"),
        (account("  groupPerms: ['a=']\n"), "entry 1 of groupPerms"),
        (account("  admin: maybe\n"), "invalid admin"),
        (account("  aclMaxAgeSeconds: soon\n"), "invalid aclMaxAgeSeconds"),
        (account("  aclMaxAgeSeconds: -1\n"), "invalid aclMaxAgeSeconds"),
        (account("  whiteRemoteAddress: 10.*.1.1\n"), "netaddress is 10.*.1.1"),
        (account("  allowedRemoteAddresses: [x.y]\n"), "netaddress is x.y"),
        ("globalWhiteRemoteAddresses: ['10.0.0.4-0']", "globalWhiteRemoteAddresses"),
        ("accounts: [{accessKey: account1, secretKey: 0123456701}]", "put it in quotes"),
        ("accounts: [{accessKey: account1, secretKey: 1_234_567_890}]", "put it in quotes"),
        ("accounts: [{accessKey: account1, secretKey: 123456.789}]", "put it in quotes"),
        ("accounts: [{accessKey: account1, secretKey: 2026-11-22}]", "put it in quotes"),
        ("accounts: &all []", "anchors are not supported"),
        ("a: &x [1]\naccounts: *x", "anchors are not supported"),
        ("accounts: !!python/object/apply:os.system [id]", "tags are not supported"),
        ("accounts: !!set {a}", "tags are not supported"),
        ("accounts: []\naccounts: []", "duplicate key: accounts"),
        (account("  admin: true\n  admin: false\n"), "duplicate key: admin"),
        ("? [a]\n: b", "line 1: a key is not text"),
        ("accounts: " + "[" * 20 + "]" * 20, "too deep"),
        ("accounts: {accessKey: account1, secretKey: secret12}", "accounts: not a list"),
        ("accounts: {account1: {secretKey: secret12}}", "accounts: not a list"),
        ("globalWhiteRemoteAddresses: {10.0.0.1: 10.0.0.2}", "is not a list of texts"),
        (account("  topicPerms: {a=SUB: b}\n"), "topicPerms is not a list of texts"),
        (account("  topicPerms: [[a=SUB]]\n"), "topicPerms is not a list of texts"),
        (account("  previousSecretKey: [secret12, secret34]\n"), "previousSecretKey has several"),
        (account("  defaultTopicPerm: [SUB]\n"), "defaultTopicPerm has several values"),
        (account("") + "---\n" + account(""), "line 4: a second document begins"),
        ("accounts: []\n---\n", "line 2: a second document begins"),
        ("- a list", "must begin with keys"),
        ("accounts: [", "invalid YAML in line"),
        ("\x00", "invalid YAML"),
        ("x: " + "y" * FILE_BYTES_MAX, "more than"),
    ],
)
def test_an_invalid_acl_entry_is_refused_and_named(text: str, named: str) -> None:
    with pytest.raises(AclFileError) as refused:
        parse(text)
    assert str(refused.value).startswith(PATH)
    assert named in str(refused.value)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("opening", [b"[", b"{", b"- ", b"? ", b"[{"])
def test_yaml_nested_too_deep_is_refused_early(
    opening: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []

    def noted(data: bytes, Loader: type) -> Iterator[object]:
        for event in parse_events(data, Loader=Loader):
            events.append(event)
            yield event

    parse_events = yaml.parse
    monkeypatch.setattr(yaml, "parse", noted)
    with pytest.raises(AclFileError, match="too deep"):
        parse_acl_file(PATH, b"a:\n " + opening * 5000)
    assert len(events) < 40


def test_a_number_of_any_length_is_read_as_text() -> None:
    digits = "9" * 5000
    (found,) = parse(f"accounts: [{{accessKey: {digits}, secretKey: {digits}}}]").accounts
    assert found.access_key == digits
    with pytest.raises(AclFileError, match="invalid aclMaxAgeSeconds"):
        parse(account(f"  aclMaxAgeSeconds: {digits}\n"))
    with pytest.raises(AclFileError, match="put it in quotes"):
        parse(account("  previousSecretKey: -0\n"))


def test_a_retry_topic_sets_its_groups_permission_and_overrides_as_in_4_9_7() -> None:
    """One table, in which the topics come behind the groups: Permission.parseResourcePerms."""
    lists = "  topicPerms: ['%RETRY%g=SUB', '%RETRY%both=DENY', t=PUB]\n  groupPerms: [both=SUB]\n"
    (found,) = parse(account(lists)).accounts
    assert found.topic_perms == {"t": PUB}
    assert found.group_perms == {"g": SUB, "both": DENY}


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(AclFileError, match="invalid YAML"):
        parse_acl_file(PATH, b"accounts: \xff\xfe\xfa")
