"""Construction of the replication actors of a master and of a slave."""

from actors.engine.interfaces import SnapshotRef
from actors.engine.supervisor import ChildSpec
from actors.network.tls_contexts import to_call_with
from actors.parts import Parts, physical_memory_bytes
from actors.pulling.cold_read import ColdRead
from actors.replication.ha_master import HaMaster
from actors.settings.tls_settings import ENFORCING
from protocol.host import host_port
from storage.reading.page_probe import PageProbe


def master_children(parts: Parts) -> list[ChildSpec]:
    """Return a master's children; they start before GroupCommit, which waits for slaves."""
    address, commit_log = parts.system.address, parts.store.commit_log
    probe = PageProbe(commit_log, physical_memory_bytes() // 10)
    names = ("group_commit", "ha_cold_read")
    return [
        ChildSpec("ha_cold_read", lambda _: ColdRead()),
        ChildSpec(
            "ha_master",
            lambda _: HaMaster(
                parts.config,
                commit_log,
                parts.replicas,
                probe,
                addresses={name: address(name) for name in names},
                guard=parts.guard,
            ),
        ),
    ]


def slave_children(parts: Parts) -> list[ChildSpec]:
    """Return a slave's children; they start after PutReplica, which writes the received log."""
    # Imported here: masters need none of them.
    from actors.network.dial import Dialler
    from actors.replication.ha_slave import HaSlave
    from actors.replication.slave_sync import SlaveSync

    address = parts.system.address
    names = ("ha_dial", "put_message", "flusher")
    tables = (
        "topics",
        "consumer_offsets",
        "delay_offsets",
        "groups",
        "request_modes",
        "clean_files",
        "flusher",
    )
    agrees = SnapshotRef(False)
    to_call_ha = to_call_with(parts.tls, wanted=parts.config.tls_ha_mode == ENFORCING)
    return [
        ChildSpec("ha_dial", lambda _: Dialler(to_call_ha)),
        ChildSpec(
            "ha_slave",
            lambda _: HaSlave(
                parts.config,
                parts.store.commit_log,
                parts.replica_log,
                agrees=agrees,
                addresses={name: address(name) for name in names},
                why_behind=parts.attachment.why_behind,
            ),
        ),
        ChildSpec(
            "slave_sync",
            lambda _: SlaveSync(
                host_port(parts.config.broker_ip1, parts.ports.main),
                commit_log=parts.store.commit_log,
                agrees=agrees,
                addresses={name: address(name) for name in tables},
                credentials=parts.config.credentials,
                tls=to_call_with(parts.tls, wanted=parts.config.calls_with_tls),
            ),
        ),
    ]
