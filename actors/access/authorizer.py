"""Authenticates and authorizes the requests of one connection.

The checks run before a body is parsed, in this order: allowlisted address, key, account, the
account's addresses, signature, age and seal, required permission (rights.py). Permissions that an
allowlisted address has without a key are checked first, so that nothing is hashed for it.
"""

from collections.abc import Sequence
from typing import NoReturn

from actors.access.access_state import AccessState, address_of, may_come_from
from actors.access.grant import NOBODY, AccessRefused, Grant
from actors.access.rights import Fields, Level
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.send import SendMessageHeader
from protocol.java_numbers import plain_number
from protocol.message import RECORD_BYTES_MIN
from protocol.properties import RETRY_TOPIC
from protocol.send_values import Send, SendShape, SendSignature
from protocol.signature import (
    ACCESS_KEY,
    SEAL,
    SIGNATURE,
    TIMESTAMP,
    UNIQUE_KEY_QUERY,
    Buffer,
    SecretKey,
    signed_values,
    was_sealed,
)
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from storage.access.acl_file import Account
from storage.access.acl_files import AclSnapshot

_SHOWN_CHARS_MAX = 128

_REPLIES = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
_QUICK_MAX = 1000
SEAL_AGE_S_MAX = 900
"""Maximum age of an administrator's sealed request without aclMaxAgeSeconds."""

DECOY_BYTES_MAX = 1 << 20
"""Bytes of a body that are hashed for an unknown account, which the answer names anyway."""

_OF_GROUPS = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
_ORIGIN = f"{RETRY_TOPIC}\x01".encode()
NO_KEY = "No accessKey is configured"
_GROUP_FIELDS = ("consumerGroup", "group", "producerGroup")
"""Fields that may name the group of a request; the group of a heartbeat is in its body."""

Asked = tuple[int, Fields]
"""Code and fields of a request, for the count of refusals."""


class TooManyFailures(AccessRefused):
    """Too many failed signatures; the connection must be closed."""


class Authorizer:
    def __init__(self, guard: AccessState, host: str, *, is_encrypted: bool = False) -> None:
        self._guard = guard
        self._host = host
        self._is_encrypted = is_encrypted
        self._address = address_of(host)
        self._proven: set[str] = set()
        """Accounts that have sent a valid signature over this connection."""
        self._seen: AclSnapshot | None = None
        self._is_white = False
        self._grants: dict[str, Grant] = {}
        self._white_grants: dict[str, Grant] = {}
        self._quick: dict[SendShape, tuple[str, SecretKey, bool]] = {}
        """Sends that need only their signature checked: account, secret, whether it is privileged.
        """

    # --- single requests

    def grant(self, command: RemotingCommand) -> Grant:
        """Return the grant of a request's sender. Raises AccessRefused, TooManyFailures."""
        fields: Fields = command.fields or {}
        code = command.code
        right = self._guard.rights.get(code)
        self._look()
        if self._is_white and right is not None and right.level is not Level.ADMIN:
            grant = self._white_grant(NOBODY)  # without regard to the account that it names
        else:
            grant = self._proven_grant(command, fields)
        if right is None:
            grant.refuse_administration(code)
        right.check(grant, code, fields)
        if code in _REPLIES:
            header = SendMessageHeader.of_command(command)
            # the message is stored in the latter
            for topic in (self._guard.reply_topic, header.topic):
                if not grant.may_reply(topic):
                    grant.refuse_topic(code, topic, header.producer_group)
            properties = (header.properties or "").encode("utf-8", "replace")
            if origin := grant.origin_denied(header.topic, properties):
                grant.refuse_topic(code, origin, header.producer_group)
        if grant.account.broker:
            self._guard.note_broker(self._host, grant.account.access_key)
        return grant

    def identify(self, command: RemotingCommand) -> Grant:
        """Authenticate the sender of an unserved request. Raises AccessRefused, TooManyFailures."""
        self._look()
        if self._is_white:
            return self._white_grant(NOBODY)
        return self._proven_grant(command, command.fields or {})

    def _proven_grant(self, command: RemotingCommand, fields: Fields) -> Grant:
        key = fields.get(ACCESS_KEY, "")
        signature = fields.get(SIGNATURE, "").encode("utf-8", "replace")
        first, second = signed_values(fields), None
        if command.code == RequestCode.QUERY_MESSAGE and UNIQUE_KEY_QUERY in fields:
            second = signed_values(fields, without=UNIQUE_KEY_QUERY)
        contents = (first,) if second is None else (first, second)
        return self._authenticated(
            (command.code, fields),
            key,
            signature,
            fields.get(TIMESTAMP, ""),
            contents,
            command.body,
            fields,
        )

    # --- sends, which arrive by the hundred

    def refused(self, sends: Sequence[Send]) -> dict[int, AccessRefused]:
        """Return the refused sends by their position in the list. Raises TooManyFailures."""
        found: dict[int, AccessRefused] = {}
        self._look()
        shape: SendShape | None = None
        access_key, secret, is_held = "", self._guard.decoy, False
        for place, send in enumerate(sends):
            if send.shape is not shape:
                shape = send.shape
                access_key, secret, is_held = self._quick.get(shape, ("", secret, False))
            signed = send.signature
            if (
                access_key
                and signed is not None
                and signed.access_key == access_key
                and secret.has_signed(signed.signature, signed.values, send.body)
                and not (is_held and _may_be_sealed(signed, send.body))
            ):
                continue
            shape = None  # it may be known after the check
            try:
                self._check_send(send)
            except TooManyFailures:
                raise
            except AccessRefused as error:
                found[place] = error
        return found

    def _check_send(self, send: Send) -> None:
        shape = send.shape
        if self._is_white:
            return
        asked = shape.code, {"producerGroup": shape.producer_group}
        signed = send.signature
        if signed is not None:
            grant = self._authenticated(
                asked,
                signed.access_key,
                signed.signature,
                signed.timestamp,
                (signed.values,),
                send.body,
                signed,
            )
        else:
            grant = self._authenticated(asked, "", b"", "", (), None, {})
        topic = shape.topic
        if grant.may_send(topic):
            account = grant.account
            is_copy = topic.startswith(_OF_GROUPS)
            if is_copy and (origin := _origin_denied(grant, send)):
                grant.refuse_topic(shape.code, origin, shape.producer_group)
            if shape.values and not (account.max_age_s or is_copy):
                if len(self._quick) >= _QUICK_MAX:
                    self._quick.clear()
                self._quick[shape] = (
                    account.access_key,
                    account.secrets[0],
                    account.is_privileged,
                )
            return
        if topic == self._guard.trace_topic:
            if not self._guard.takes_trace(grant.account.access_key, _stored_bytes(send)):
                text = f"Trace rate limit reached for topic:{topic} accessKey="
                grant.refuse(shape.code, text + grant.account.access_key, shape.producer_group)
            return
        grant.refuse_topic(shape.code, topic, shape.producer_group)

    # --- authentication

    def _look(self) -> None:
        snapshot = self._guard.accounts.value
        if snapshot is not self._seen:
            self._seen = snapshot
            self._grants.clear()
            self._white_grants.clear()
            self._quick.clear()
            self._is_white = self._address is not None and self._address in snapshot.white

    def _known(self, access_key: str) -> Account | None:
        assert self._seen is not None
        return self._seen.accounts.get(access_key)

    def _white_grant(self, account: Account) -> Grant:
        grant = self._white_grants.get(account.access_key)
        if grant is None:
            assert self._seen is not None
            grant = self._white_grants[account.access_key] = self._guard.granted(
                account,
                self._seen,
                is_white=True,
                secret=None,
                address=self._host,
                is_encrypted=self._is_encrypted,
            )
        return grant

    def _authenticated(
        self,
        asked: Asked,
        access_key: str,
        signature: bytes,
        timestamp: str,
        contents: Sequence[bytes],
        body: Buffer | None,
        sealed: Fields | SendSignature,
    ) -> Grant:
        """Authenticate a sender with ext fields `sealed`. Raises AccessRefused, TooManyFailures."""
        account = self._known(access_key)
        name = "" if account is None else access_key
        if name not in self._proven and self._guard.tries.is_shut_out(self._host, name):
            if self._passes_by_address(asked[0], account or NOBODY, signature):
                return self._let_in_by_address(asked, account or NOBODY)
            raise TooManyFailures("too many failed signatures")
        if not access_key:
            return self._without_signature(asked, NOBODY, NO_KEY, b"")
        secrets = (self._guard.decoy,) if account is None else account.secrets
        if account is None and body is not None:
            body = body[:DECOY_BYTES_MAX]
        proof, values = None, b""
        for secret in secrets:
            for content in contents:
                if proof is None and secret.has_signed(signature, content, body):
                    proof, values = secret, content
        if account is None:
            shown = access_key[:_SHOWN_CHARS_MAX]
            return self._without_signature(asked, NOBODY, f"No acl config for {shown}", signature)
        if proof is None:
            text = f"Check signature failed for accessKey={access_key}"
            return self._without_signature(asked, account, text, signature)
        self._check_place(asked, account)
        if account.max_age_s or account.is_privileged:
            why = self._why_not_fresh(asked[0], account, timestamp, sealed, values, body)
            # an address that needs no signature needs no fresh one
            if why and self._is_in(account):
                return self._white_grant(account)
            if why:
                self._refuse(asked, account, why)
        self._proven.add(access_key)
        grant = self._grants.get(access_key)
        if grant is None or grant.secret is not proof:
            assert self._seen is not None
            grant = self._grants[access_key] = self._guard.granted(
                account,
                self._seen,
                is_white=self._is_white or self._is_in(account),
                secret=proof,
                address=self._host,
                is_encrypted=self._is_encrypted,
            )
        return grant

    def _without_signature(
        self, asked: Asked, account: Account, text: str, signature: bytes
    ) -> Grant:
        """Accept the request by its allowlisted address, or refuse it.

        The limit of failed signatures also protects administrators' secrets against allowlisted
        addresses.
        """
        if self._passes_by_address(asked[0], account, signature):
            return self._let_in_by_address(asked, account)
        self._note(asked, account, text)
        if self._guard.tries.note(self._host, account.access_key):
            raise TooManyFailures(text)
        raise AccessRefused(text)

    def _passes_by_address(self, code: int, account: Account, signature: bytes) -> bool:
        if not (self._is_in(account) or self._is_white):
            return False
        right = self._guard.rights.get(code)
        is_administration = right is None or right.is_administration
        return self._guard.is_white_admin or not (is_administration and signature)

    def _let_in_by_address(self, asked: Asked, account: Account) -> Grant:
        if not self._is_in(account):
            return self._white_grant(NOBODY)
        self._check_place(asked, account)
        return self._white_grant(account)

    def _check_place(self, asked: Asked, account: Account) -> None:
        name = account.access_key
        if not may_come_from(account, self._address):
            self._refuse(asked, account, f"accessKey={name} is not allowed from this address")
        if account.require_tls and not self._is_encrypted:
            self._refuse(asked, account, f"accessKey={name} is only allowed over TLS")

    def _why_not_fresh(
        self,
        code: int,
        account: Account,
        timestamp: str,
        sealed: Fields | SendSignature,
        values: bytes,
        body: Buffer | None,
    ) -> str:
        """Return the reason why the signature is not fresh; empty if it is fresh.

        A signature covers neither the code nor the boundaries of values; the seal covers both.
        Official tools seal nothing, and administrators can still use them. A request that was
        sealed must show its seal, so that no other code or fields can be made of it. A broker with
        a wrong clock still gets through.
        """
        name = account.access_key
        fields: Fields = {}
        if timestamp:
            fields = sealed.fields() if isinstance(sealed, SendSignature) else sealed
        if not account.max_age_s and not fields.get(SEAL):
            if was_sealed(name, values, body):
                return f"Check signature failed for accessKey={name}"
            return ""
        age_ms = self._guard.now_ms() - (plain_number(timestamp) or 0)
        age_s_max = account.max_age_s or (SEAL_AGE_S_MAX if account.admin else 0)
        if age_s_max and abs(age_ms) > age_s_max * 1000:
            return f"The request of accessKey={name} is too old or has no timestamp"
        if any(secret.has_sealed(code, fields, body) for secret in account.secrets):
            return ""
        return f"Check signature failed for accessKey={name}"

    def _refuse(self, asked: Asked, account: Account, text: str) -> NoReturn:
        self._note(asked, account, text)
        raise AccessRefused(text)

    def _note(self, asked: Asked, account: Account, text: str) -> None:
        code, fields = asked
        group = next((fields[name] for name in _GROUP_FIELDS if name in fields), "")
        self._guard.refusals.note(account.access_key, group, code, text, self._host)

    def _is_in(self, account: Account) -> bool:
        return self._address is not None and self._address in account.white


def _origin_denied(grant: Grant, send: Send) -> str | None:
    topic = send.shape.topic
    is_batch = send.tail.batch or send.shape.code == RequestCode.SEND_BATCH_MESSAGE
    if is_batch and not grant.passes_all and _ORIGIN in send.body:
        return topic  # no client sends batches back
    return grant.origin_denied(topic, send.properties)


def _may_be_sealed(signed: SendSignature, body: bytes) -> bool:
    return bool(signed.timestamp) or was_sealed(signed.access_key, signed.values, body)


def _stored_bytes(send: Send) -> int:
    return len(send.body) + len(send.properties) + RECORD_BYTES_MIN
