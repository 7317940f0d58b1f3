"""Changes of access control: accounts and allowlisted addresses of the brokers.

The last step asks for a secret; pages, command lines and logs never contain it. The brokers of a
cluster are changed one after the other, because their files are not replicated.
"""

from collections.abc import Iterable, Mapping, Sequence

from troupemq.client.admin import Admin, Result
from troupemq.client.admin.access import BrokerAccounts
from troupemq.client.admin.answers import Row
from troupemq.console.asking import PageRequest, failures_of
from troupemq.console.changes import ConsoleChange, Given, Preview, register
from troupemq.console.changing.cluster_changes import YES_NO, cluster_input
from troupemq.console.parts import Facts, Input, Note, Notes, Part

PERMISSIONS = ("DENY", "PUB", "SUB", "PUB|SUB")
_SHOWN = (
    *("access_key", "admin", "default_topic_perm", "default_group_perm", "topic_perms"),
    *("group_perms", "white_remote_address"),
)


def _brokers_of(asked: PageRequest, cluster: str) -> tuple[list[BrokerAccounts], list[str]]:
    found = asked.cluster.ask(lambda admin: admin.accounts(cluster=cluster))
    return found.found, found.failures


def _account_now(asked: PageRequest, cluster: str, name: str) -> tuple[Row, list[str]]:
    """Return an account without secrets, from the first broker that has it; and failures."""
    brokers, failures = _brokers_of(asked, cluster)
    for broker in brokers:
        for each in broker.accounts:
            if str(each.get("access_key")) == name:
                return {key: each[key] for key in _SHOWN if key in each}, failures
    return {}, failures


def _listed(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _account_inputs(asked: PageRequest) -> Sequence[Input]:
    cluster = cluster_input(asked)
    name = asked.text("account")
    has: Mapping[str, object] = {}
    if name:
        has, _ = _account_now(asked, asked.text("cluster") or cluster.value, name)
    topics, groups = has.get("default_topic_perm"), has.get("default_group_perm")
    return (
        cluster,
        Input("account", "Account (accessKey)", needed=True, hint="at least 7 characters"),
        Input("admin", "Administrator", "choice", _yes(has.get("admin")), YES_NO),
        Input("topics", "Default for topics", "choice", _perm(topics), PERMISSIONS),
        Input("groups", "Default for groups", "choice", _perm(groups), PERMISSIONS),
        Input(
            "topic_perms",
            "Topics by name",
            value=_listed(has.get("topic_perms")),
            hint="Orders=PUB|SUB,Bills=SUB",
        ),
        Input("group_perms", "Groups by name", value=_listed(has.get("group_perms")), hint="g=SUB"),
        Input(
            "white",
            "Allowlisted address",
            value=str(has.get("white_remote_address") or ""),
            hint="needs neither signature nor permissions: 10.0.0.*",
        ),
        Input(
            "keeps",
            "Keep the previous secret valid",
            "choice",
            "false",
            YES_NO,
            "TroupeMQ brokers only",
        ),
        Input(
            "secret",
            "Secret",
            "secret",
            hint="at least 7 characters; empty: unchanged (TroupeMQ brokers only)",
        ),
    )


def _yes(value: object) -> str:
    return "true" if value is True or str(value).lower() == "true" else "false"


def _perm(value: object) -> str:
    text = str(value or "DENY")
    return "PUB|SUB" if text == "SUB|PUB" else text if text in PERMISSIONS else "DENY"


def _account_words(given: Given) -> list[str]:
    return [
        *("admin", "updateAclConfig", "-c", given["cluster"], "-a", given["account"]),
        *("-s", given["secret"], "-m", given["admin"] or "false"),
        *("-i", given["topics"] or "DENY", "-u", given["groups"] or "DENY"),
        *("-t", given["topic_perms"], "-g", given["group_perms"], "-w", given["white"]),
        *(("-k",) if given["keeps"] == "true" else ()),
    ]


def _set_account(admin: Admin, given: Given) -> Iterable[Result]:
    return admin.update_account(
        given["account"],
        given["secret"],
        admin=given["admin"] == "true",
        default_topic_perm=given["topics"] or "DENY",
        default_group_perm=given["groups"] or "DENY",
        topic_perms=given["topic_perms"],
        group_perms=given["group_perms"],
        white_address=given["white"],
        keep_previous_secret=given["keeps"] == "true",
        cluster=given["cluster"],
    )


def _account_preview(asked: PageRequest, given: Given) -> Preview:
    before, failures = _account_now(asked, given["cluster"], given["account"])
    notes = [
        Note("fine", "The brokers of the cluster are changed one after the other."),
        Note("watch", "Accounts of name servers are not changed: edit their files."),
    ]
    if not before:
        sentence = "The account is new: it needs a secret."
        notes.insert(0, Note("fine", sentence))
    if given["admin"] == "true":
        notes.append(
            Note("trouble", "The account may do everything, including changes of accounts.")
        )
    if given["white"]:
        sentence = "At the allowlisted address its name is enough to read and write everything."
        notes.append(Note("trouble", sentence))
    parts: list[Part] = [*failures_of(failures, "now"), Notes("effect", "Effect", notes)]
    if before:
        parts.append(Facts("now", "Now", before))
    return Preview(parts, {"account": before})


def _delete_preview(asked: PageRequest, given: Given) -> Preview:
    before, failures = _account_now(asked, given["cluster"], given["account"])
    notes = [Note("trouble", "Clients with this account are then refused at every request.")]
    parts: list[Part] = [*failures_of(failures, "now"), Notes("effect", "Effect", notes)]
    parts.append(Facts("now", "Now", before or {"access_key": "not found"}))
    return Preview(parts, {"account": before})


def _white_now(asked: PageRequest, cluster: str) -> str:
    brokers, _ = _brokers_of(asked, cluster)
    return _listed(brokers[0].white_addresses) if brokers else ""


def _white_inputs(asked: PageRequest) -> Sequence[Input]:
    cluster = cluster_input(asked)
    has = _white_now(asked, asked.text("cluster")) if asked.text("cluster") else ""
    hint = "separated by commas: 10.0.0.*,192.168.1.4-9; empty: none"
    return cluster, Input("addresses", "Addresses", value=has, hint=hint)


def _white_preview(asked: PageRequest, given: Given) -> Preview:
    before = _white_now(asked, given["cluster"])
    notes = [
        Note(
            "trouble" if given["addresses"] else "fine",
            "Clients at these addresses read and write everything without an account."
            " At RocketMQ brokers they may also administer.",
        )
    ]
    facts = {"now": before or "none", "then": given["addresses"] or "none"}
    parts: list[Part] = [
        Notes("effect", "Effect", notes),
        Facts("addresses", "Addresses", facts),
    ]
    return Preview(parts, {"addresses": before})


def _named(asked: PageRequest) -> Sequence[Input]:
    return cluster_input(asked), Input("account", "Account", needed=True)


register(
    ConsoleChange(
        "acl-account",
        "Create or change an account of the brokers",
        "admin",
        _account_inputs,
        _account_words,
        _account_preview,
        _set_account,
    ),
    ConsoleChange(
        "acl-delete",
        "Delete an account of the brokers",
        "admin",
        _named,
        lambda given: ["admin", "deleteAclConfig", "-c", given["cluster"], "-a", given["account"]],
        _delete_preview,
        lambda admin, given: admin.delete_account(given["account"], cluster=given["cluster"]),
    ),
    ConsoleChange(
        "acl-white",
        "Set the allowlisted addresses",
        "admin",
        _white_inputs,
        lambda given: [
            *("admin", "updateGlobalWhiteAddr", "-c", given["cluster"]),
            *("-g", given["addresses"]),
        ],
        _white_preview,
        lambda admin, given: admin.update_white_addresses(
            given["addresses"], cluster=given["cluster"]
        ),
    ),
)
