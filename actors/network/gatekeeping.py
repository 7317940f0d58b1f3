"""Authorization of requests: authorized ones pass, others get an error answer.

Connections and callers in this process use it after the frames are cut, before any actor or body
decoder sees the request.
"""

from actors.access.authorizer import Authorizer, TooManyFailures
from actors.network.request import Request
from actors.network.sends import StreamPeer, failure
from protocol.errors import RemoteError
from protocol.send_values import Send


def admits(gate: Authorizer, request: Request, *, is_served: bool = True) -> bool:
    """Authorize a request and set its grant; else answer it and return False.

    A code that is not served needs a known sender only. Raises TooManyFailures if the connection
    must be closed.
    """
    try:
        request.grant = (gate.grant if is_served else gate.identify)(request.command)
    except TooManyFailures:
        raise
    except RemoteError as error:
        request.answer(error.code, remark=error.remark)
        return False
    return True


def admitted(gate: Authorizer, peer: StreamPeer, sends: list[Send]) -> list[Send]:
    """Return the authorized sends; answer the others.

    Raises TooManyFailures if the connection must be closed.
    """
    refused = gate.refused(sends)
    if not refused:
        return sends
    for place, error in refused.items():
        frame = failure(sends[place], error.code, remark=error.remark)
        if frame is not None:
            peer.write((frame,))
    return [send for place, send in enumerate(sends) if place not in refused]
