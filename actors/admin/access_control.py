"""Access control of a server: reloads its files and changes them for administrators.

Owns: the files (plain_acl.yml and those below acl/) and the accounts in force.
Receives: Request (connections).
Publishes: the accounts, which every Authorizer reads (`actors/access/`).

The five request codes are those of 4.9.7. Without aclEnable they fail as there, but with a reason.
Answers contain no secrets. Each file version comes with a fingerprint of the content, which shows
files that differ despite equal versions.

Source: AdminBrokerProcessor.java (updateAndCreateAccessConfig and the four beside it).
"""

from dataclasses import dataclass
from typing import ClassVar

from actors.access.acl_store import AclStore, ChangeRefused
from actors.access.refusals import Refusals
from actors.engine.actor import Where, handles
from actors.engine.server_log import get_logger
from actors.network.messages import Request
from actors.network.request import Responder, serves
from protocol import fastjson
from protocol.bodies_own import AclRefusals
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import (
    CreateAccessConfigHeader,
    DeleteAccessConfigHeader,
    GetBrokerAclInfoResponseHeader,
    UpdateGlobalWhiteAddressesHeader,
)

log = get_logger(__name__)

WATCH_MS = 5000
"""Time within which a changed file is in force."""
SETTLED_MS = 250
"""Time for which a changed file must stay the same, because it may be half-written."""
ACL_IS_OFF = "access control is off: aclEnable is false"
_FAILURES = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    RequestCode.DELETE_ACL_CONFIG: ResponseCode.DELETE_ACL_CONFIG_FAILED,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: (
        ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    ),
}


@dataclass(frozen=True, slots=True)
class _Look:
    """Timer tick: reload changed files."""


class AclWatch(Responder):
    """Reloads changed files and lists refusals.

    Runs on a thread, because it reads files.
    """

    where: ClassVar[Where] = "thread"

    def __init__(self, store: AclStore | None, refusals: Refusals) -> None:
        super().__init__()
        self.store = store
        self._refusals = refusals

    def on_start(self) -> None:
        if self.store is not None:
            self.every(WATCH_MS - SETTLED_MS, _Look())

    @handles(_Look)
    def on_look(self, _: _Look) -> None:
        """Reload the files; unusable ones change nothing."""
        if self.store is not None and not self.store.look(at_once=False):
            self.after(SETTLED_MS, _Look())

    @serves(RequestCode.GET_ACL_REFUSALS)
    def on_refusals(self, request: Request) -> RemotingCommand:
        self._store()
        body = AclRefusals([each.shown() for each in self._refusals.all()])
        return request.command.answer(body=body.encode())

    def _store(self) -> AclStore:
        """Return the store, or raise RemoteError without access control.

        4.9.7 without aclEnable does not answer, and the client waits for its timeout.
        """
        if self.store is None:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, ACL_IS_OFF)
        return self.store


class AccessControl(AclWatch):
    """Access control of a broker, which administrators change over the network."""

    def __init__(
        self,
        store: AclStore | None,
        refusals: Refusals,
        *,
        broker_name: str,
        broker_address: str,
        cluster_name: str,
    ) -> None:
        super().__init__(store, refusals)
        self._names = broker_name, broker_address, cluster_name

    @serves(*_FAILURES)
    def on_change(self, request: Request) -> RemotingCommand:
        """Change or delete an account, or set the allowlisted addresses of a file."""
        command = request.command
        failure = _FAILURES[RequestCode(command.code)]
        if self.store is None:
            raise RemoteError(failure, ACL_IS_OFF)
        try:
            with self.store.changing():
                self._check_asker(request)
                self.begin_change()
                what = self._change(self.store, command)
        except ChangeRefused as refused:
            self.system.rarely.warn(
                "access control not changed", peer=request.peer.remote, why=str(refused)
            )
            raise RemoteError(failure, str(refused)) from None
        by = request.grant.account.access_key if request.grant is not None else ""
        log.info("access control changed", peer=request.peer.remote, by=by, **what)
        return command.answer()

    @staticmethod
    def _check_asker(request: Request) -> None:
        """Check the account against the files as they are now.

        An account that was removed must not restore itself. Raises AccessRefused.
        """
        grant = request.grant.current() if request.grant is not None else None
        if grant is not None and not grant.is_admin:
            grant.refuse_administration(request.command.code)

    def _change(self, store: AclStore, command: RemotingCommand) -> dict[str, str]:
        if command.code == RequestCode.UPDATE_AND_CREATE_ACL_CONFIG:
            account = CreateAccessConfigHeader.decode(command.fields)
            store.update_account(account, keeps_previous=bool(account.keep_previous_secret))
            return {"account": account.access_key}
        if command.code == RequestCode.DELETE_ACL_CONFIG:
            name = DeleteAccessConfigHeader.decode(command.fields).access_key
            store.delete_account(name)
            return {"deleted": name}
        white = UpdateGlobalWhiteAddressesHeader.decode(command.fields)
        store.set_white_list(white.global_white_addresses, white.acl_file_full_path or "")
        return {"addresses": white.global_white_addresses}

    @serves(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    def on_versions(self, request: Request) -> RemotingCommand:
        store = self._store()
        files = store.published.value.files
        versions = {path: file.version.to_json() for path, file in files.items()}
        fields = GetBrokerAclInfoResponseHeader(
            fastjson.dumps(versions[store.path]).decode(),
            fastjson.dumps(versions).decode(),
            *self._names,
            fingerprints=fastjson.dumps(store.fingerprints()).decode(),
        ).encode()
        return request.command.answer(fields=fields)

    @serves(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    def on_accounts(self, request: Request) -> RemotingCommand:
        """Answer with all accounts, without secrets."""
        body = fastjson.dumps(self._store().shown(), sort_keys=True)
        return request.command.answer(fields={}, body=body)
