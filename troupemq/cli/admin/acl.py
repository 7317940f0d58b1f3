"""Commands about access control: accounts, addresses without one, and which version is where."""

from protocol.bodies_own import AclRefusals
from protocol.codes import RequestCode
from protocol.headers.admin import (
    CreateAccessConfigHeader,
    DeleteAccessConfigHeader,
    GetBrokerAclInfoResponseHeader,
    UpdateGlobalWhiteAddressesHeader,
)
from troupemq.cli.admin.command import BROKER, CLUSTER, command, flag, one_of, option, parse_bool
from troupemq.cli.admin.output import Output, Row, Time, snake_case
from troupemq.cli.admin.session import Session, json_object
from troupemq.client.errors import understood

SECTION = "Access control"
_ACCESS_KEY = option("a", "accessKey", "The account.", required=True)


@command(
    "updateAclConfig",
    SECTION,
    BROKER,
    CLUSTER,
    _ACCESS_KEY,
    option("s", "secretKey", "Its secret, longer than six characters.", required=True),
    option("w", "whiteRemoteAddress", "From where it needs no signature."),
    option("i", "defaultTopicPerm", "For topics that are not named: DENY, PUB, SUB, PUB|SUB."),
    option("u", "defaultGroupPerm", "For groups that are not named."),
    option("t", "topicPerms", "topicA=DENY,topicB=PUB|SUB"),
    option("g", "groupPerms", "groupA=DENY,groupB=SUB"),
    option("m", "admin", "It may do everything.", metavar="true|false"),
    flag("k", "keepPreviousSecret", "The secret before this one stays valid; of our brokers only."),
)
def update_acl_config(
    session: Session,
    out: Output,
    *,
    broker_addr: str | None,
    cluster_name: str | None,
    access_key: str,
    secret_key: str,
    white_remote_address: str | None,
    default_topic_perm: str | None,
    default_group_perm: str | None,
    topic_perms: str | None,
    group_perms: str | None,
    admin: str | None,
    keep_previous_secret: bool,
) -> None:
    """Create an account, or change it."""
    one_of(broker_addr, cluster_name)
    header = CreateAccessConfigHeader(
        access_key,
        secret_key,
        white_remote_address,
        parse_bool(admin or "false"),
        default_topic_perm,
        default_group_perm,
        topic_perms,
        group_perms,
        keep_previous_secret or None,
    )
    for address in session.targets(broker_addr, cluster_name, masters_only=False):
        with out.attempt():
            session.ask(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)
            out.done(
                f"The account {access_key} is set at {address}.",
                broker_address=address,
                access_key=access_key,
            )


@command("deleteAclConfig", SECTION, BROKER, CLUSTER, _ACCESS_KEY, aliases=("deleteAccessConfig",))
def delete_acl_config(
    session: Session,
    out: Output,
    *,
    broker_addr: str | None,
    cluster_name: str | None,
    access_key: str,
) -> None:
    """Delete an account."""
    one_of(broker_addr, cluster_name)
    for address in session.targets(broker_addr, cluster_name, masters_only=False):
        with out.attempt():
            header = DeleteAccessConfigHeader(access_key)
            session.ask(address, RequestCode.DELETE_ACL_CONFIG, header)
            out.done(
                f"The account {access_key} is deleted at {address}.",
                access_key=access_key,
                deleted_at=address,
            )


@command(
    "updateGlobalWhiteAddr",
    SECTION,
    BROKER,
    CLUSTER,
    option("g", "globalWhiteRemoteAddresses", "10.10.103.*,192.168.0.*", required=True),
    option("p", "aclFileFullPath", "In this file.", default="", show_default=False),
)
def update_global_white_addr(
    session: Session,
    out: Output,
    *,
    broker_addr: str | None,
    cluster_name: str | None,
    global_white_remote_addresses: str,
    acl_file_full_path: str,
) -> None:
    """Set the addresses from which nobody needs an account."""
    one_of(broker_addr, cluster_name)
    header = UpdateGlobalWhiteAddressesHeader(global_white_remote_addresses, acl_file_full_path)
    for address in session.targets(broker_addr, cluster_name, masters_only=False):
        with out.attempt():
            session.ask(address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)
            out.done(
                f"{address} takes {global_white_remote_addresses} without an account.",
                broker_address=address,
                addresses=global_white_remote_addresses,
            )


@command("clusterAclConfigVersion", SECTION, BROKER, CLUSTER)
def cluster_acl_config_version(
    session: Session, out: Output, *, broker_addr: str | None, cluster_name: str | None
) -> None:
    """Show which version of the access control files each broker has."""
    one_of(broker_addr, cluster_name)
    rows: list[Row] = []
    for address in session.targets(broker_addr, cluster_name, masters_only=False):
        with out.attempt():
            answer = session.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
            found = understood(GetBrokerAclInfoResponseHeader.decode, answer.fields)
            where = {
                "cluster": found.cluster_name,
                "broker": found.broker_name,
                "address": found.broker_address,
            }
            versions = json_object(found.all_acl_file_version)
            rows += ({**where, **_version(path, each)} for path, each in versions.items())
    if rows or not out.failed:
        out.table(rows, "No broker has access control files.")


def _version(path: object, found: object) -> Row:
    parts = found if isinstance(found, dict) else {}
    timestamp = parts.get("timestamp")
    return {
        "file": str(path),
        "version": parts.get("counter"),
        "last_updated_ms": Time(timestamp if isinstance(timestamp, int) else 0),
    }


@command("getAclConfig", SECTION, BROKER, CLUSTER, aliases=("getAccessConfigSubCommand",))
def get_acl_config(
    session: Session, out: Output, *, broker_addr: str | None, cluster_name: str | None
) -> None:
    """Show the accounts of each broker; their secrets are not shown."""
    one_of(broker_addr, cluster_name)
    for address in session.targets(broker_addr, cluster_name, masters_only=False):
        with out.attempt():
            answer = session.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
            found = json_object(answer.body)
            listed = found.get("plainAccessConfigs")
            accounts = listed if isinstance(listed, list) else []
            shown = [
                snake_case({str(name): each[name] for name in each if name != "secretKey"})
                for each in accounts
                if isinstance(each, dict)
            ]
            addresses = found.get("globalWhiteAddrs")
            out.fields({"broker_address": address, "white_addresses": addresses, "accounts": shown})


@command("compareAcl", SECTION, CLUSTER)
def compare_acl(session: Session, out: Output, *, cluster_name: str | None) -> None:
    """Show which brokers have other accounts than the others.

    mqadmin changes the brokers one by one, and a file by hand is nobody's but its broker's.
    Compared is what the files say; of official brokers, which do not tell that, their versions.
    Exit code 1 if they differ, or if one of them says nothing.
    """
    rows: list[Row] = []
    for address in session.targets(None, cluster_name, masters_only=False):
        with out.attempt():
            answer = session.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
            found = understood(GetBrokerAclInfoResponseHeader.decode, answer.fields)
            versions = json_object(found.all_acl_file_version)
            prints = json_object(found.fingerprints) if found.fingerprints else {}
            rows.append(
                {
                    "broker": found.broker_name,
                    "address": address,
                    "files": len(versions),
                    "versions": [str(_version("", each)["version"]) for each in versions.values()],
                    "content": "-".join(map(str, prints.values())) if prints else None,
                }
            )
    out.table(rows, "No broker has access control files.")
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(str(row["content"] or row["versions"]), []).append(str(row["address"]))
    if len(kinds) > 1:
        groups = "; ".join(", ".join(each) for each in kinds.values())
        out.fail(f"The brokers have different accounts: {groups}.")


@command("aclRefusals", SECTION, BROKER, CLUSTER)
def acl_refusals(
    session: Session, out: Output, *, broker_addr: str | None, cluster_name: str | None
) -> None:
    """Show whom access control has refused what since the start; with -b of a name server, too."""
    rows: list[Row] = []
    for address in session.targets(broker_addr, cluster_name, masters_only=False):
        with out.attempt():
            found = session.read(AclRefusals, address, RequestCode.GET_ACL_REFUSALS)
            rows += (
                {
                    "account": each.account,
                    "group": each.group,
                    "code": each.code,
                    "times": each.count,
                    "last_ms": Time(each.last_timestamp),
                    "address": each.address,
                    "why": each.remark,
                    "broker": address,
                }
                for each in found.refusals
            )
    if rows or not out.failed:
        further = "" if broker_addr else " Name servers are asked with -b and their address."
        out.table(rows, f"Nobody was refused anything.{further}")
