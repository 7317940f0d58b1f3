"""Page of access control: accounts and allowlisted addresses of the brokers, and refusals.

Brokers without access control are not asked for accounts, because RocketMQ brokers then send no
answer. Secrets are never shown, even if a broker sends them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from protocol.bodies_own import AclRefusal, AclRefusals
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from troupemq.client.admin import Time
from troupemq.client.admin.access import AclVersions
from troupemq.client.admin.answers import snake_case
from troupemq.client.admin.base import json_object
from troupemq.client.admin.brokers import properties_of
from troupemq.client.errors import BrokerError, ClientError, understood
from troupemq.console.asking import PageRequest, failures_of, page, snapshot_page
from troupemq.console.changes import change_link, change_links
from troupemq.console.findings import spoken_code
from troupemq.console.parts import Cells, Note, Notes, Page, RowTable
from troupemq.console.snapshot import BrokerSummary

SHOWN_MAX = 1000
"""Limit of rows of a table."""

OFF = "These brokers have no access control, so every client has every permission (aclEnable):"

Value = TypeVar("Value")


class Access:
    """Access control data of the brokers; `failures` are sentences."""

    def __init__(self, asked: PageRequest, brokers: Sequence[BrokerSummary]) -> None:
        self._asked = asked
        self.failures: list[str] = []
        self.places = {each.place.address: each.place for each in brokers if each.says}
        self.enabled: list[str] = []
        self.disabled: list[str] = []
        for address, answer in self._ask([*self.places], RequestCode.GET_BROKER_CONFIG).items():
            is_on = properties_of(answer.body).get("aclEnable", "").lower() == "true"
            (self.enabled if is_on else self.disabled).append(address)

    def _ask(
        self, addresses: Sequence[str], code: RequestCode, *, perhaps: bool = False
    ) -> dict[str, RemotingCommand]:
        """Return the answers by address; add errors to the failures.

        `perhaps`: brokers that do not support the request are no failure.
        """
        answers = self._asked.cluster.session.ask_all(addresses, code)
        found = {}
        for address, answer in answers.items():
            if isinstance(answer, ClientError):
                self._fail(f"{address}: {answer}" if address not in str(answer) else f"{answer}")
            elif answer.code == ResponseCode.SUCCESS:
                found[address] = answer
            elif not perhaps or answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._fail(str(BrokerError(answer.code, answer.remark, address)))
        return found

    def _fail(self, sentence: str) -> None:
        if sentence not in self.failures:
            self.failures.append(sentence)

    def _read(
        self,
        code: RequestCode,
        decode: Callable[[RemotingCommand], Value],
        *,
        perhaps: bool = False,
    ) -> Iterator[tuple[str, Value]]:
        """Yield the address and the decoded answer of each broker with access control."""
        for address, answer in self._ask(self.enabled, code, perhaps=perhaps).items():
            try:
                found = decode(answer)
            except ClientError as error:
                self._fail(f"{address}: {error}")
            else:
                yield address, found

    def configurations(self) -> dict[str, Mapping[str, object]]:
        """Return accounts and allowlisted addresses by broker address, under RocketMQ's names."""
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        return {
            address: {str(name): value for name, value in said.items()}
            for address, said in self._read(code, lambda answer: json_object(answer.body))
        }

    def refusals(self) -> list[tuple[str, AclRefusal]]:
        """Return each refusal with the broker's address, of TroupeMQ brokers only."""

        def refused(answer: RemotingCommand) -> AclRefusals:
            return understood(AclRefusals.decode, answer.body)

        answers = self._read(RequestCode.GET_ACL_REFUSALS, refused, perhaps=True)
        return [(address, each) for address, found in answers for each in found.refusals]

    def versions(self) -> list[Cells]:
        return [
            {
                "broker": self.places[address].name,
                "address": address,
                "file": path,
                "version": version,
                "content": found.fingerprints.get(path),
                "changed_ms": changed_ms,
            }
            for address, found in self._read(
                RequestCode.GET_BROKER_CLUSTER_ACL_INFO, AclVersions.decode
            )
            for path, (version, changed_ms) in found.files.items()
        ]


def accounts_of(configuration: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the accounts of a broker under snake-case names, without secrets."""
    listed = configuration.get("plainAccessConfigs")
    return [
        {name: value for name, value in snake_case(each).items() if "secret" not in name.lower()}
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict)
    ]


@page("/access", "admin")
def access(asked: PageRequest) -> Page:
    now = asked.snapshot()
    found = Access(asked, now.brokers)
    page = snapshot_page("Access control", now, [])
    if found.disabled:
        where = f"{OFF} {', '.join(found.disabled[:20])}"
        page.parts.append(Notes("off", "", [Note("watch", f"{where}.")]))
    if not found.enabled:
        page.parts += failures_of(found.failures, "access")
        return page
    configurations = found.configurations()
    refusals = found.refusals()
    times: Counter[str] = Counter()
    last_ms: dict[str, int] = {}
    for _, each in refusals:
        times[each.account] += each.count
        last_ms[each.account] = max(last_ms.get(each.account, 0), each.last_timestamp)
    page.parts = [
        *page.parts,
        Notes("differing", "", _differing(found, configurations)),
        RowTable(
            "accounts",
            "Accounts",
            _account_rows(asked, found, configurations, times, last_ms)[:SHOWN_MAX],
            "No broker has accounts: create one.",
        ),
        change_links(
            asked, [("Create an account", "acl-account", {"cluster": _cluster_of(found)})]
        ),
        RowTable(
            "white_addresses",
            "Allowlisted addresses",
            _white_rows(asked, found, configurations),
            "No addresses are allowlisted.",
        ),
        RowTable(
            "refusals",
            "Refusals since the broker start",
            [_refusal_row(*each) for each in _latest(refusals)],
            "No refusals; RocketMQ brokers do not count them.",
        ),
        RowTable("files", "Account files", found.versions()),
    ]
    page.parts[1:1] = failures_of(found.failures, "access")
    return page


def _cluster_of(found: Access) -> str:
    return found.places[found.enabled[0]].cluster


def _differing(found: Access, configurations: Mapping[str, Mapping[str, object]]) -> list[Note]:
    """Return notes about differing brokers of a cluster; their files are not replicated."""
    by_cluster: dict[str, dict[str, list[str]]] = {}
    for address, each in configurations.items():
        accounts = sorted(map(repr, accounts_of(each)))
        cluster = by_cluster.setdefault(found.places[address].cluster, {})
        cluster.setdefault(repr((accounts, each.get("globalWhiteAddrs"))), []).append(address)
    return [
        Note(
            "trouble",
            f"The brokers of {cluster} have different accounts:"
            f" {'; '.join(', '.join(group) for group in kinds.values())}.",
        )
        for cluster, kinds in by_cluster.items()
        if len(kinds) > 1
    ]


def _account_rows(
    asked: PageRequest,
    found: Access,
    configurations: Mapping[str, Mapping[str, object]],
    times: Mapping[str, int],
    last_ms: Mapping[str, int],
) -> list[Cells]:
    """Return a row for each account of a cluster, or for each variant of it."""
    where: dict[tuple[str, str], tuple[dict[str, object], list[str]]] = {}
    for address, configuration in configurations.items():
        cluster = found.places[address].cluster
        for account in accounts_of(configuration):
            key = cluster, repr(sorted(account.items(), key=str))
            where.setdefault(key, (account, []))[1].append(address)
    rows: list[Cells] = []
    for (cluster, _), (account, addresses) in sorted(
        where.items(), key=lambda item: (item[0][0], str(item[1][0].get("access_key")))
    ):
        name = str(account.get("access_key"))
        given = {"cluster": cluster, "account": name}
        rows.append(
            {
                "account": name,
                "admin": bool(account.get("admin")),
                "topics": _perms(account, "topic"),
                "groups": _perms(account, "group"),
                "unsigned_from": account.get("white_remote_address"),
                **{key: account[key] for key in ("broker", "monitor") if account.get(key)},
                "refused": times.get(name, 0),
                "last_refused_ms": Time(last_ms.get(name, 0)),
                "at": "all" if len(addresses) == len(configurations) else [cluster, *addresses],
                "change": change_link(asked, "Change", "acl-account", given),
                "delete": change_link(asked, "Delete", "acl-delete", given),
            }
        )
    names = list(dict.fromkeys(key for row in rows for key in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _perms(account: Mapping[str, object], kind: str) -> list[str]:
    """Return permissions by name, and the default as `all others`; without one it is DENY."""
    named = account.get(f"{kind}_perms")
    default = account.get(f"default_{kind}_perm") or "DENY"
    listed = [str(each) for each in named] if isinstance(named, list) else []
    return listed if account.get("admin") else [*listed, f"all others={default}"]


def _white_rows(
    asked: PageRequest,
    found: Access,
    configurations: Mapping[str, Mapping[str, object]],
) -> list[Cells]:
    rows: list[Cells] = []
    seen: set[tuple[str, str]] = set()
    for address, configuration in configurations.items():
        cluster, white = found.places[address].cluster, configuration.get("globalWhiteAddrs")
        listed = [str(each) for each in white] if isinstance(white, list) else []
        if (cluster, repr(listed)) in seen:
            continue
        seen.add((cluster, repr(listed)))
        given = {"cluster": cluster}
        rows.append(
            {
                "cluster": cluster,
                "addresses": listed or "none",
                "change": change_link(asked, "Change", "acl-white", given),
            }
        )
    return rows


def _latest(refusals: Sequence[tuple[str, AclRefusal]]) -> list[tuple[str, AclRefusal]]:
    return sorted(refusals, key=lambda each: -each[1].last_timestamp)[:SHOWN_MAX]


def _refusal_row(broker: str, each: AclRefusal) -> Cells:
    return {
        "last_ms": Time(each.last_timestamp),
        "account": each.account or "unknown",
        "group": each.group or None,
        "what": spoken_code(each.code),
        "times": each.count,
        "from": each.address,
        "why": each.remark,
        "broker": broker,
    }
