"""Commands about name servers: their settings, their tables, and who may be written to."""

from protocol.codes import RequestCode
from protocol.headers.namesrv import (
    AddWritePermResponseHeader,
    BrokerNameHeader,
    WipeWritePermResponseHeader,
)
from troupemq.cli.admin.command import command, option
from troupemq.cli.admin.output import Output
from troupemq.cli.admin.properties import and_says, check_known, properties_of, setting
from troupemq.cli.admin.session import Session
from troupemq.client.errors import understood

SECTION = "Name servers"
_NAMESPACE = option("s", "namespace", "The table.", required=True)
_KEY = option("k", "key", "The entry.", required=True)
_VALUE = option("v", "value", "Its value.", required=True)
_BROKER_NAME = option("b", "brokerName", "The broker's name.", required=True)


@command("getNamesrvConfig", SECTION)
def get_namesrv_config(session: Session, out: Output) -> None:
    """Show the settings of each name server."""
    for address, answer in session.ask_all_namesrvs(out.attempt, RequestCode.GET_NAMESRV_CONFIG):
        found = properties_of(answer.body)
        out.fields({"namesrv": address, **found} if out.as_json else found, title=address)


@command("updateNamesrvConfig", SECTION, _KEY, _VALUE)
def update_namesrv_config(session: Session, out: Output, *, key: str, value: str) -> None:
    """Change a setting of every name server."""
    body = setting(key, value)
    for address in session.namesrvs:
        check_known(session, address, RequestCode.GET_NAMESRV_CONFIG, key)
    code = RequestCode.UPDATE_NAMESRV_CONFIG
    for address, answer in session.ask_all_namesrvs(out.attempt, code, body=body):
        out.done(
            f"{key} is {value} at {address}." + and_says(answer.remark),
            namesrv=address,
            key=key,
            value=value,
            remark=answer.remark,
        )


@command("updateKvConfig", SECTION, _NAMESPACE, _KEY, _VALUE)
def update_kv_config(
    session: Session, out: Output, *, namespace: str, key: str, value: str
) -> None:
    """Set an entry of a table that every name server keeps."""
    for address in session.put_kv(out.attempt, namespace, key, value):
        out.done(
            f"{namespace}: {key} is {value} at {address}.",
            namesrv=address,
            namespace=namespace,
            key=key,
            value=value,
        )


@command("deleteKvConfig", SECTION, _NAMESPACE, _KEY)
def delete_kv_config(session: Session, out: Output, *, namespace: str, key: str) -> None:
    """Delete an entry of a table that every name server keeps."""
    for address in session.delete_kv(out.attempt, namespace, key):
        out.done(
            f"{namespace}: {key} is deleted at {address}.",
            namesrv=address,
            namespace=namespace,
            key=key,
            value=None,
        )


@command("wipeWritePerm", SECTION, _BROKER_NAME)
def wipe_write_perm(session: Session, out: Output, *, broker_name: str) -> None:
    """Have producers avoid a broker: its topics can only be read, say the name servers."""
    header = BrokerNameHeader(broker_name)
    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    for address, answer in session.ask_all_namesrvs(out.attempt, code, header):
        count = understood(WipeWritePermResponseHeader.decode, answer.fields).wipe_topic_count
        out.done(
            f"{address}: {count} topics of {broker_name} can only be read.",
            namesrv=address,
            broker=broker_name,
            topics=count,
        )
    _check_known(session, out, broker_name)


@command("addWritePerm", SECTION, _BROKER_NAME)
def add_write_perm(session: Session, out: Output, *, broker_name: str) -> None:
    """Have producers come back to a broker."""
    header = BrokerNameHeader(broker_name)
    code = RequestCode.ADD_WRITE_PERM_OF_BROKER
    for address, answer in session.ask_all_namesrvs(out.attempt, code, header):
        count = understood(AddWritePermResponseHeader.decode, answer.fields).add_topic_count
        out.done(
            f"{address}: {count} topics of {broker_name} can be written again.",
            namesrv=address,
            broker=broker_name,
            topics=count,
        )
    _check_known(session, out, broker_name)


def _check_known(session: Session, out: Output, broker_name: str) -> None:
    """A name server answers 0 topics for a broker that it does not know, and it is a success."""
    with out.attempt():
        if broker_name not in session.cluster_info().broker_addr_table:
            out.fail(f"no broker {broker_name} is registered")
