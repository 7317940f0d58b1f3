"""Access control of brokers: accounts, allowlisted addresses, versions of files, refusals."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Unpack

from protocol.bodies_own import AclRefusals
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import (
    CreateAccessConfigHeader,
    DeleteAccessConfigHeader,
    GetBrokerAclInfoResponseHeader,
    UpdateGlobalWhiteAddressesHeader,
)
from troupemq.client.admin.answers import Change, Failures, Result, Time, snake_case
from troupemq.client.admin.base import AdminBase, Where, json_object
from troupemq.client.admin.operations import changes, reads
from troupemq.client.errors import understood


@dataclass(frozen=True, slots=True)
class AccountChanged(Change):
    SENTENCE = "The account {0.access_key} is set at {0.broker_address}."
    broker_address: str
    access_key: str


@dataclass(frozen=True, slots=True)
class AccountDeleted(Change):
    SENTENCE = "The account {0.access_key} is deleted at {0.deleted_at}."
    access_key: str
    deleted_at: str


@dataclass(frozen=True, slots=True)
class AddressesChanged(Change):
    SENTENCE = "{0.broker_address} takes {0.addresses} without an account."
    broker_address: str
    addresses: str


@dataclass(frozen=True, slots=True)
class AclFileVersion(Result):
    """One file of access control at one broker."""

    cluster: str
    broker: str
    address: str
    file: str
    version: object
    last_updated_ms: Time


@dataclass(frozen=True, slots=True)
class BrokerAccounts(Result):
    """The accounts of one broker, without their secrets."""

    broker_address: str
    white_addresses: object
    accounts: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class AclContent(Result):
    """The files of one broker: their versions and a fingerprint, which official brokers lack."""

    broker: str
    address: str
    files: int
    versions: tuple[str, ...]
    content: str | None


@dataclass(frozen=True, slots=True)
class AclRefused(Result):
    """Requests that access control has refused since the start."""

    account: str
    group: str
    code: int
    times: int
    last_ms: Time
    address: str
    why: str
    broker: str


@dataclass(frozen=True, slots=True)
class AclVersions:
    """The answer of a broker about its files: path → counter and time, path → fingerprint."""

    header: GetBrokerAclInfoResponseHeader
    files: Mapping[str, tuple[object, Time]]
    fingerprints: Mapping[str, object]

    @classmethod
    def decode(cls, answer: RemotingCommand) -> "AclVersions":
        """Decode an answer. Raises BadAnswer."""
        header = understood(GetBrokerAclInfoResponseHeader.decode, answer.fields)
        files = {}
        for path, found in json_object(header.all_acl_file_version).items():
            parts = found if isinstance(found, dict) else {}
            changed_ms = parts.get("timestamp")
            time = Time(changed_ms if isinstance(changed_ms, int) else 0)
            files[str(path)] = parts.get("counter"), time
        prints = json_object(header.fingerprints) if header.fingerprints else {}
        return cls(header, files, {str(path): each for path, each in prints.items()})


class AccessAdmin(AdminBase):
    @changes
    async def update_account(
        self,
        failures: Failures,
        access_key: str,
        secret_key: str,
        *,
        white_address: str | None = None,
        admin: bool = False,
        default_topic_perm: str | None = None,
        default_group_perm: str | None = None,
        topic_perms: str | None = None,
        group_perms: str | None = None,
        keep_previous_secret: bool = False,
        **where: Unpack[Where],
    ) -> AsyncIterator[AccountChanged]:
        """Create or change an account at one broker, or at the brokers of a cluster or of all.

            admin.update_account("shop", "a long secret", topic_perms="Orders=PUB|SUB")

        Permissions: DENY, PUB, SUB or PUB|SUB; by name `topicA=DENY,topicB=PUB|SUB`.
        """
        header = CreateAccessConfigHeader(
            access_key,
            secret_key,
            white_address,
            admin,
            default_topic_perm,
            default_group_perm,
            topic_perms,
            group_perms,
            keep_previous_secret or None,
        )
        for address in await self.targets(**where, masters_only=False):
            with failures.attempt():
                await self.ask(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)
                yield AccountChanged(address, access_key)

    @changes
    async def delete_account(
        self, failures: Failures, access_key: str, **where: Unpack[Where]
    ) -> AsyncIterator[AccountDeleted]:
        header = DeleteAccessConfigHeader(access_key)
        for address in await self.targets(**where, masters_only=False):
            with failures.attempt():
                await self.ask(address, RequestCode.DELETE_ACL_CONFIG, header)
                yield AccountDeleted(access_key, address)

    @changes
    async def update_white_addresses(
        self, failures: Failures, addresses: str, *, file: str = "", **where: Unpack[Where]
    ) -> AsyncIterator[AddressesChanged]:
        """Set the addresses that need no account: `10.10.103.*,192.168.0.*`."""
        header = UpdateGlobalWhiteAddressesHeader(addresses, file)
        for address in await self.targets(**where, masters_only=False):
            with failures.attempt():
                await self.ask(address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)
                yield AddressesChanged(address, addresses)

    @reads
    async def acl_files(
        self, failures: Failures, **where: Unpack[Where]
    ) -> AsyncIterator[AclFileVersion]:
        """Return the versions of the access control files at each broker."""
        for address in await self.targets(**where, masters_only=False):
            with failures.attempt():
                found = await self._versions(address)
                at = found.header.cluster_name, found.header.broker_name
                for path, (version, changed_ms) in found.files.items():
                    yield AclFileVersion(
                        *at, found.header.broker_address, path, version, changed_ms
                    )

    async def _versions(self, address: str) -> AclVersions:
        return AclVersions.decode(await self.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO))

    @reads
    async def accounts(
        self, failures: Failures, **where: Unpack[Where]
    ) -> AsyncIterator[BrokerAccounts]:
        for address in await self.targets(**where, masters_only=False):
            with failures.attempt():
                answer = await self.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
                found = await self._decoded(json_object, answer.body)
                listed = found.get("plainAccessConfigs")
                accounts = tuple(
                    snake_case({str(name): each[name] for name in each if name != "secretKey"})
                    for each in (listed if isinstance(listed, list) else [])
                    if isinstance(each, dict)
                )
                yield BrokerAccounts(address, found.get("globalWhiteAddrs"), accounts)

    @reads
    async def compare_accounts(
        self, failures: Failures, *, cluster: str | None = None
    ) -> AsyncIterator[AclContent]:
        """Return the file versions and fingerprints of each broker; differences are a failure.

        Official brokers answer only the versions of their files.
        """
        found: list[AclContent] = []
        for address in await self.targets(None, cluster, masters_only=False):
            with failures.attempt():
                seen = await self._versions(address)
                versions = tuple(str(version) for version, _ in seen.files.values())
                content = "-".join(map(str, seen.fingerprints.values())) or None
                name = seen.header.broker_name
                found.append(AclContent(name, address, len(versions), versions, content))
        for each in found:
            yield each
        kinds: dict[str, list[str]] = {}
        for each in found:
            kinds.setdefault(each.content or str(each.versions), []).append(each.address)
        if len(kinds) > 1:
            groups = "; ".join(", ".join(each) for each in kinds.values())
            failures.add(f"The brokers have different accounts: {groups}.")

    @reads
    async def acl_refusals(
        self, failures: Failures, **where: Unpack[Where]
    ) -> AsyncIterator[AclRefused]:
        """Return refusals of access control since the start; `broker` may be a name server."""
        for address in await self.targets(**where, masters_only=False):
            with failures.attempt():
                found = await self._read(AclRefusals, address, RequestCode.GET_ACL_REFUSALS)
                for each in found.refusals:
                    yield AclRefused(
                        each.account,
                        each.group,
                        each.code,
                        each.count,
                        Time(each.last_timestamp),
                        each.address,
                        each.remark,
                        address,
                    )
