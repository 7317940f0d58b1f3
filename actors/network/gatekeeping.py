"""Gatekeeping: requests that pass a gate go on, others are answered why not.

Connections and callers in this process use it where they pass on what came, behind the frames and
before any actor or body.
"""

from actors.access.authorizer import Authorizer, TooManyFailures
from actors.network.request import Request
from actors.network.sends import StreamPeer, failure
from protocol.errors import RemoteError
from protocol.send_values import Send


def admits(gate: Authorizer, request: Request, *, is_served: bool = True) -> bool:
    """Whether it may go on, with its grant; where nobody serves its code, whether its sender is
    known here. Raises TooManyFailures where the connection is to be closed."""
    try:
        request.grant = (gate.grant if is_served else gate.identify)(request.command)
    except TooManyFailures:
        raise
    except RemoteError as error:
        request.answer(error.code, remark=error.remark)
        return False
    return True


def admitted(gate: Authorizer, peer: StreamPeer, sends: list[Send]) -> list[Send]:
    """Those that may go on. Raises TooManyFailures where the connection is to be closed."""
    refused = gate.refused(sends)
    if not refused:
        return sends
    for place, error in refused.items():
        frame = failure(sends[place], error.code, remark=error.remark)
        if frame is not None:
            peer.write((frame,))
    return [send for place, send in enumerate(sends) if place not in refused]
