"""Commands for clusters, brokers, name servers, access control and transactions."""

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
"""Key in a row: the first broker's name, where several brokers run under one supervisor."""
_NOT_ADDED = frozenset(("send_wait_ms", "pull_wait_ms", "page_cache_ms", "kept_hours", "disk"))
"""Keys of which a host shows the maximum; of all others it shows the sum."""
_ITS_CLUSTER = option("c", "cluster", "All masters of this cluster.", metavar="NAME")
_ACCESS_KEY = option("a", "accessKey", "The account's access key.", required=True)
_NAMESPACE = option("s", "namespace", "The table's name.", required=True)
_KEY = option("k", "key", "The key.", required=True)
_VALUE = option("v", "value", "The value.", required=True)
_BROKER_NAME = option("b", "brokerName", "The broker's name.", required=True)


@command(
    "clusterList",
    SECTION,
    flag("m", "moreStats", "Show message counts of yesterday and today instead of rates."),
    flag("e", "each", "Show one line per broker, also for brokers under one supervisor."),
    option("i", "interval", "Refresh every N seconds until Ctrl-C.", type=SECONDS, metavar="N"),
    until_interrupted=True,
)
def cluster_list(
    admin: Admin, out: Output, *, more_stats: bool, each: bool, interval: float | None
) -> None:
    """List all brokers with their load and disk use; brokers under one supervisor share a line."""
    while True:
        found: Answers[BrokerDays] | Answers[BrokerRates]
        found = admin.broker_days() if more_stats else admin.broker_rates()
        rows = (one.row() for one in found.tell(out.fail))
        out.table(rows if each or out.as_json else as_hosts(rows), "No broker answered.")
        if interval is None:
            return
        sleep(interval)


def as_hosts(rows: Iterable[Row]) -> list[Row]:
    """Combine the rows of brokers under one supervisor into one."""
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
    """Show the runtime statistics of a broker."""
    for each in admin.broker_status(**where).tell(out.fail):
        _show(out, each.address, each.values)


@command("storeState", SECTION, BROKER, CLUSTER, needs_target=True)
def store_state(admin: Admin, out: Output, **where: str | None) -> None:
    """Show the contents of a broker's store, and any damage. A TroupeMQ extension.

    Exit code 1 if the store is damaged.
    """
    for each in admin.store_reports(**where).tell(out.fail):
        row = each.row()
        _show(out, str(row.pop("broker_address")), row)


listing(
    "timers",
    SECTION,
    Admin.timers,
    """Show the pending timers of brokers by delay level. A TroupeMQ extension.

    Timers are messages with a delivery time of their own. Counts are since the broker's start.
    """,
    "No broker has a timer.",
    BROKER,
    CLUSTER,
)


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
    option("v", "value", "Its new value.", required=True),
    needs_target=True,
)
def update_broker_config(
    admin: Admin, out: Output, *, key: str, value: str, **where: str | None
) -> None:
    """Change a setting of a running broker and in its file."""
    _check_setting(key, value)
    out.changes(admin.update_broker_setting(key, value, **where))


def _cleaning(name: str, what: FilesToClean, help: str) -> None:
    def clean(admin: Admin, **where: str | None) -> Answers[CleaningBegun]:
        return admin.clean(what, **where)

    changing(name, SECTION, clean, help, BROKER, _ITS_CLUSTER)


_cleaning(
    "cleanExpiredCQ",
    FilesToClean.QUEUES,
    "Delete consume queue files that point to no existing message.",
)
_cleaning("deleteExpiredCommitLog", FilesToClean.LOG, "Delete expired files of the commit log now.")
_cleaning(
    "cleanUnusedTopic",
    FilesToClean.TOPICS,
    "Delete the consume queues of topics that no longer exist.",
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
    "Set an entry in the key-value table of every name server.",
    _NAMESPACE,
    _KEY,
    _VALUE,
)
changing(
    "deleteKvConfig",
    NAME_SERVERS,
    Admin.delete_kv,
    "Delete an entry from the key-value table of every name server.",
    _NAMESPACE,
    _KEY,
)
changing(
    "wipeWritePerm",
    NAME_SERVERS,
    Admin.wipe_writes,
    "Remove a broker's write permission at the name servers: producers avoid it.",
    _BROKER_NAME,
)
changing(
    "addWritePerm",
    NAME_SERVERS,
    Admin.restore_writes,
    "Restore a broker's write permission at the name servers.",
    _BROKER_NAME,
)

# --- access control

changing(
    "updateAclConfig",
    ACCESS,
    Admin.update_account,
    "Create or change an account.",
    BROKER,
    CLUSTER,
    _ACCESS_KEY,
    option("s", "secretKey", "Its secret key, at least seven characters.", required=True),
    option(
        "w",
        "whiteRemoteAddress",
        "Address that needs no signature, and reads and writes everything.",
        to="white_address",
    ),
    option("i", "defaultTopicPerm", "Permission for other topics: DENY, PUB, SUB, PUB|SUB."),
    option("u", "defaultGroupPerm", "Permission for other groups: DENY, PUB, SUB, PUB|SUB."),
    option("t", "topicPerms", "Permissions by topic: topicA=DENY,topicB=PUB|SUB."),
    option("g", "groupPerms", "Permissions by group: groupA=DENY,groupB=SUB."),
    yes_no("m", "admin", "Grant all permissions.", "", show_default=False),
    flag("k", "keepPreviousSecret", "Keep the previous secret valid, too. A TroupeMQ extension."),
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
    "Set the allowlisted addresses: clients there need no account.",
    BROKER,
    CLUSTER,
    option(
        "g",
        "globalWhiteRemoteAddresses",
        "The addresses: 10.10.103.*,192.168.0.*",
        to="addresses",
        required=True,
    ),
    option(
        "p",
        "aclFileFullPath",
        "Change this access control file.",
        to="file",
        default="",
        show_default=False,
    ),
    needs_target=True,
)
listing(
    "clusterAclConfigVersion",
    ACCESS,
    Admin.acl_files,
    "Show the version of the access control files at each broker.",
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
    """Show the accounts of each broker, without their secret keys."""
    for each in admin.accounts(**where).tell(out.fail):
        out.fields(each.row())


listing(
    "compareAcl",
    ACCESS,
    Admin.compare_accounts,
    """Show which brokers have different accounts.

    Brokers can differ after a failed change or an edited file. The contents of the files are
    compared; for RocketMQ's brokers, which do not send these, the versions. Exit code 1 if brokers
    differ or do not answer.
    """,
    "No broker has access control files.",
    CLUSTER,
)


@command("aclRefusals", ACCESS, BROKER, CLUSTER, needs_target=True)
def acl_refusals(admin: Admin, out: Output, **where: str | None) -> None:
    """Show the requests that access control has refused since the start of a broker or name server.

    Name a name server with -b.
    """
    found = admin.acl_refusals(**where).tell(out.fail)
    if found or not found.failures:
        further = "" if where["broker"] else " For a name server, give its address with -b."
        out.table(found, f"No request was refused.{further}")


# --- transactions

listing(
    "transactions",
    TRANSACTIONS,
    Admin.transactions,
    """List the open transactions, oldest first. A TroupeMQ extension.

    An open transaction is neither committed nor rolled back.
    """,
    "No transaction is open.",
    BROKER,
    CLUSTER,
    option("g", "producerGroup", "Only those of this producer group."),
)


@command(
    "resumeTransaction",
    TRANSACTIONS,
    THE_BROKER,
    option("i", "msgId", "The broker's id of the half message.", required=True),
)
def resume_transaction(admin: Admin, out: Output, *, broker: str, msg_id: str) -> None:
    """Resume the check-backs of a transaction that ran out of them."""
    out.done(admin.resume_transaction(broker, msg_id))
