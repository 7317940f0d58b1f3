"""Takes topics, groups and offsets over from the master, into a slave's own tables and files.

Owns: one connection to the master's port for clients.
Told by: Registration (`MasterIs`), its own tick.
Tells: the tables (`TakeTopics`, `TakeOffsets`, `TakeDelayOffsets`, `TakeGroups`).

First 3 s after the start, then every 10 s. What the master does not answer is left as it is, with
one line when that begins and one when it is over.

Source: broker/slave/SlaveSynchronize.java.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from structlog import get_logger

from actors.actor import Actor, Where, handles
from actors.address import Address
from actors.consumer_offsets import TakeOffsets
from actors.delay_offsets import TakeDelayOffsets
from actors.groups import TakeGroups
from actors.master_news import MasterIs
from actors.namesrv_client import NamesrvClient, NamesrvUnreachable
from actors.namesrv_link import Client
from actors.topics import TakeTopics
from protocol.bodies import ConsumerOffsetTable, SubscriptionGroupTable, TopicConfigTable
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from storage.delay_offsets import parse_delay_offsets

log = get_logger(__name__)

FIRST_AFTER_MS = 3000
INTERVAL_MS = 10_000
TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class _Tick:
    """Time to ask."""


class SlaveSync(Actor):
    """Runs on a thread: its socket blocks, with a timeout."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        own_address: str,
        *,
        addresses: Mapping[str, Address],
        connect: Callable[[str], Client] = NamesrvClient,
    ) -> None:
        super().__init__()
        self._own_address = own_address
        self._to = addresses
        self._connect = connect
        self._client: Client | None = None
        self._failure: str | None = ""

    def on_start(self) -> None:
        self.after(FIRST_AFTER_MS, _Tick())

    @handles(MasterIs)
    def on_master_is(self, message: MasterIs) -> None:
        """There is a master, or there is none; this broker itself is none."""
        address = None if message.address == self._own_address else message.address
        if self._client is not None and self._client.address != address:
            self._close()
        if address is not None and self._client is None:
            self._client = self._connect(address)

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Asks for everything, in the order of 4.9.7."""
        self.after(INTERVAL_MS, _Tick())
        if self._client is None:
            return
        try:
            self._take_all(self._client)
        except NamesrvUnreachable as error:
            self._note(str(error))
        except (RemoteError, ValueError) as error:
            self._note(f"an answer is not understood: {error}")
        else:
            self._note(None)

    def _take_all(self, client: Client) -> None:
        topics = TopicConfigTable.decode(self._ask(client, RequestCode.GET_ALL_TOPIC_CONFIG))
        self._to["topics"].tell(TakeTopics(topics))
        offsets = ConsumerOffsetTable.decode(self._ask(client, RequestCode.GET_ALL_CONSUMER_OFFSET))
        self._to["consumer_offsets"].tell(TakeOffsets(offsets))
        text = self._ask(client, RequestCode.GET_ALL_DELAY_OFFSET).decode("utf-8")
        self._to["delay_offsets"].tell(TakeDelayOffsets(parse_delay_offsets(text), text))
        body = self._ask(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        self._to["groups"].tell(TakeGroups(SubscriptionGroupTable.decode(body)))

    @staticmethod
    def _ask(client: Client, code: RequestCode) -> bytes:
        answer = client.call(RemotingCommand(code), TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            raise NamesrvUnreachable(f"{code.name} is answered {answer.code}: {answer.remark}")
        return bytes(answer.body)

    def _note(self, failure: str | None) -> None:
        """One line per change of state, not per try."""
        assert self._client is not None
        if failure is None and self._failure is not None:
            log.info("takes topics, groups and offsets over", master=self._client.address)
        elif failure is not None and not self._failure:
            log.warning("nothing taken over", master=self._client.address, reason=failure)
        self._failure = failure

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def on_stop(self) -> None:
        self._close()

    def on_failure(self, *_: object) -> None:
        """The one after this connects anew, once the registration has told it where."""
        self._close()
