"""Commands about clusters and brokers, name servers and access control."""

from collections.abc import Iterable, Sequence
from time import sleep

import click

from troupemq.cli.admin.command import (
    BROKER,
    CLUSTER,
    THE_BROKER,
    changing,
    command,
    flag,
    listing,
    option,
    yes_no,
)
from troupemq.cli.admin.output import Output
from troupemq.cli.admin.times import SECONDS
from troupemq.client.admin import Admin, Answers
from troupemq.client.admin.answers import Row
from troupemq.client.admin.brokers import (
    BrokerDays,
    BrokerRates,
    CleaningBegun,
    FilesToClean,
    setting,
)
from troupemq.client.errors import ArgumentIllegal

SECTION, NAME_SERVERS, ACCESS = "Clusters and brokers", "Name servers", "Access control"
TRANSACTIONS = "Transactions"
ONE_OF = "one_of"
"""In a row of a broker that is one of several under one process: the name of the first."""
_NOT_ADDED = frozenset(("send_wait_ms", "pull_wait_ms", "page_cache_ms", "kept_hours", "disk"))
"""Figures of which a host has the highest of its brokers."""
_ITS_CLUSTER = option("c", "cluster", "All masters of this cluster.", metavar="NAME")
_ACCESS_KEY = option("a", "accessKey", "The account.", required=True)
_NAMESPACE = option("s", "namespace", "The table.", required=True)
_KEY = option("k", "key", "The entry.", required=True)
_VALUE = option("v", "value", "Its value.", required=True)
_BROKER_NAME = option("b", "brokerName", "The broker's name.", required=True)


@command(
    "clusterList",
    SECTION,
    flag("m", "moreStats", "Messages yesterday and today instead of rates."),
    flag("e", "each", "A line for each of several brokers under one process."),
    option("i", "interval", "Again every so many seconds, until Ctrl-C.", type=SECONDS),
    until_interrupted=True,
)
def cluster_list(
    admin: Admin, out: Output, *, more_stats: bool, each: bool, interval: float | None
) -> None:
    """List all brokers, how busy they are and how full; several under one process as one."""
    while True:
        found: Answers[BrokerDays] | Answers[BrokerRates]
        found = admin.broker_days() if more_stats else admin.broker_rates()
        rows = (one.row() for one in found.tell(out.fail))
        out.table(rows if each or out.as_json else as_hosts(rows), "No broker has answered.")
        if interval is None:
            return
        sleep(interval)


def as_hosts(rows: Iterable[Row]) -> list[Row]:
    """Return one row for all brokers of one process, with their figures added up."""
    hosts: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        host = row["cluster"], row.get(ONE_OF, row["broker"]), row["id"]
        hosts.setdefault(host, []).append(row)
    return [_together(each) for each in hosts.values()]


def _together(rows: Sequence[Row]) -> Row:
    first = {key: value for key, value in rows[0].items() if key != ONE_OF}
    if len(rows) == 1:
        return first
    found = dict(first, broker=f"{rows[0][ONE_OF]} ({len(rows)})")
    for key, value in first.items():
        if isinstance(value, int | float) and key != "id":
            numbers = [value for row in rows if isinstance(value := row[key], int | float)]
            found[key] = max(numbers) if key in _NOT_ADDED else sum(numbers)
    return found


def _show(out: Output, address: str, values: Row, key: str = "broker_address") -> None:
    out.fields({key: address, **values} if out.as_json else values, title=address)


@command("brokerStatus", SECTION, BROKER, CLUSTER, needs_target=True)
def broker_status(admin: Admin, out: Output, **where: str | None) -> None:
    """Show what a broker says of itself."""
    for each in admin.broker_status(**where).tell(out.fail):
        _show(out, each.address, each.values)


@command("storeState", SECTION, BROKER, CLUSTER, needs_target=True)
def store_state(admin: Admin, out: Output, **where: str | None) -> None:
    """Show what a broker's store holds, and what of it is damaged; of our brokers only.

    Exit code 1 if something is damaged.
    """
    for each in admin.store_reports(**where).tell(out.fail):
        row = each.row()
        _show(out, str(row.pop("broker_address")), row)


@command("getBrokerConfig", SECTION, BROKER, CLUSTER, needs_target=True)
def get_broker_config(admin: Admin, out: Output, **where: str | None) -> None:
    """Show a broker's settings."""
    for each in admin.broker_settings(**where).tell(out.fail):
        _show(out, each.address, each.values)


def _check_setting(key: str, value: str) -> None:
    try:
        setting(key, value)
    except ArgumentIllegal as error:
        raise click.UsageError(str(error)) from None


@command(
    "updateBrokerConfig",
    SECTION,
    BROKER,
    CLUSTER,
    option("k", "key", "The setting.", required=True),
    option("v", "value", "Its value.", required=True),
    needs_target=True,
)
def update_broker_config(
    admin: Admin, out: Output, *, key: str, value: str, **where: str | None
) -> None:
    """Change a broker's setting, while it runs and in its file."""
    _check_setting(key, value)
    out.changes(admin.update_broker_setting(key, value, **where))


def _cleaning(name: str, what: FilesToClean, help: str) -> None:
    def clean(admin: Admin, **where: str | None) -> Answers[CleaningBegun]:
        return admin.clean(what, **where)

    changing(name, SECTION, clean, help, BROKER, _ITS_CLUSTER)


_cleaning(
    "cleanExpiredCQ",
    FilesToClean.QUEUES,
    "Have consume queue files deleted whose messages are gone.",
)
_cleaning(
    "deleteExpiredCommitLog", FilesToClean.LOG, "Have expired files of the commit log deleted now."
)
_cleaning(
    "cleanUnusedTopic",
    FilesToClean.TOPICS,
    "Have the consume queues of topics deleted that no longer exist.",
)


# --- name servers


@command("getNamesrvConfig", NAME_SERVERS)
def get_namesrv_config(admin: Admin, out: Output) -> None:
    """Show the settings of each name server."""
    for each in admin.namesrv_settings().tell(out.fail):
        _show(out, each.address, each.values, "namesrv")


@command("updateNamesrvConfig", NAME_SERVERS, _KEY, _VALUE)
def update_namesrv_config(admin: Admin, out: Output, *, key: str, value: str) -> None:
    """Change a setting of every name server."""
    _check_setting(key, value)
    out.changes(admin.update_namesrv_setting(key, value))


changing(
    "updateKvConfig",
    NAME_SERVERS,
    Admin.put_kv,
    "Set an entry of a table that every name server keeps.",
    _NAMESPACE,
    _KEY,
    _VALUE,
)
changing(
    "deleteKvConfig",
    NAME_SERVERS,
    Admin.delete_kv,
    "Delete an entry of a table that every name server keeps.",
    _NAMESPACE,
    _KEY,
)
changing(
    "wipeWritePerm",
    NAME_SERVERS,
    Admin.wipe_writes,
    "Have producers avoid a broker: its topics can only be read, say the name servers.",
    _BROKER_NAME,
)
changing(
    "addWritePerm",
    NAME_SERVERS,
    Admin.restore_writes,
    "Have producers come back to a broker.",
    _BROKER_NAME,
)

# --- access control

changing(
    "updateAclConfig",
    ACCESS,
    Admin.update_account,
    "Create an account, or change it.",
    BROKER,
    CLUSTER,
    _ACCESS_KEY,
    option("s", "secretKey", "Its secret, longer than six characters.", required=True),
    option("w", "whiteRemoteAddress", "From where it needs no signature.", to="white_address"),
    option("i", "defaultTopicPerm", "For topics that are not named: DENY, PUB, SUB, PUB|SUB."),
    option("u", "defaultGroupPerm", "For groups that are not named."),
    option("t", "topicPerms", "topicA=DENY,topicB=PUB|SUB"),
    option("g", "groupPerms", "groupA=DENY,groupB=SUB"),
    yes_no("m", "admin", "It may do everything.", "", show_default=False),
    flag("k", "keepPreviousSecret", "The secret before this one stays valid; of our brokers only."),
    needs_target=True,
)
changing(
    "deleteAclConfig",
    ACCESS,
    Admin.delete_account,
    "Delete an account.",
    BROKER,
    CLUSTER,
    _ACCESS_KEY,
    aliases=("deleteAccessConfig",),
    needs_target=True,
)
changing(
    "updateGlobalWhiteAddr",
    ACCESS,
    Admin.update_white_addresses,
    "Set the addresses from which clients need no account.",
    BROKER,
    CLUSTER,
    option(
        "g", "globalWhiteRemoteAddresses", "10.10.103.*,192.168.0.*", to="addresses", required=True
    ),
    option("p", "aclFileFullPath", "In this file.", to="file", default="", show_default=False),
    needs_target=True,
)
listing(
    "clusterAclConfigVersion",
    ACCESS,
    Admin.acl_files,
    "Show which version of the access control files each broker has.",
    "No broker has access control files.",
    BROKER,
    CLUSTER,
    is_quiet=True,
    needs_target=True,
)


@command(
    "getAclConfig",
    ACCESS,
    BROKER,
    CLUSTER,
    aliases=("getAccessConfigSubCommand",),
    needs_target=True,
)
def get_acl_config(admin: Admin, out: Output, **where: str | None) -> None:
    """Show the accounts of each broker; their secrets are not shown."""
    for each in admin.accounts(**where).tell(out.fail):
        out.fields(each.row())


listing(
    "compareAcl",
    ACCESS,
    Admin.compare_accounts,
    """Show which brokers have other accounts than the others.

    mqadmin changes the brokers one by one, and a file that is edited by hand changes one broker.
    Compared is what the files say; of official brokers, which do not tell that, their versions.
    Exit code 1 if they differ, or if one of them says nothing.
    """,
    "No broker has access control files.",
    CLUSTER,
)


@command("aclRefusals", ACCESS, BROKER, CLUSTER, needs_target=True)
def acl_refusals(admin: Admin, out: Output, **where: str | None) -> None:
    """Show whom access control has refused what since the start; with -b of a name server, too."""
    found = admin.acl_refusals(**where).tell(out.fail)
    if found or not found.failures:
        further = "" if where["broker"] else " Name servers are asked with -b and their address."
        out.table(found, f"No request was refused.{further}")


# --- transactions

listing(
    "transactions",
    TRANSACTIONS,
    Admin.transactions,
    """List the transactions that are neither committed nor rolled back, oldest first.

    Of our brokers only: RocketMQ keeps no table of them.
    """,
    "No transaction is open.",
    BROKER,
    CLUSTER,
    option("g", "producerGroup", "Of this producer group only."),
)


@command(
    "resumeTransaction",
    TRANSACTIONS,
    THE_BROKER,
    option("i", "msgId", "The broker's id of what was given up.", required=True),
)
def resume_transaction(admin: Admin, out: Output, *, broker: str, msg_id: str) -> None:
    """Have the producers asked again about a transaction that was given up."""
    out.done(admin.resume_transaction(broker, msg_id))
