"""Encoder of large table answers, off the loop: 60,000 topics take over half a second.

Owns: nothing.
Receives: EncodeAnswer (table actors, Clients).
Sends: the answer to the client.
"""

from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.network.long_answers import answer_with
from actors.tables.messages import EncodeAnswer


class TableEncoder(Actor):
    """Runs on a thread."""

    where: ClassVar[Where] = "thread"

    @handles(EncodeAnswer, reads_only=True)
    def on_encode(self, message: EncodeAnswer) -> None:
        answer_with(message.request, message.body, message.fields)
