"""Checks before a request reaches a page, and the security headers of every answer.

421   Host is neither an address nor an allowed name (DNS rebinding)
405   any method but GET, HEAD and POST
411   body without a length
413   body over BODY_BYTES_MAX
"""

from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.network.known_hosts import ANY, KnownHosts
from protocol.java_numbers import plain_number

BODY_BYTES_MAX = 256 << 10

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestGate:
    """ASGI wrapper that refuses invalid requests and adds headers to every answer."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = KnownHosts(each for each in hosts if each != ANY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_on)
        else:
            await refusal(scope, receive, send_on)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if not self._hosts.knows(headers.get("host", "")):
            sentence = "This host name is not allowed: start the console with --host NAME.\n"
            return PlainTextResponse(sentence, 421)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Method not allowed: use GET, HEAD or POST.\n", 405)
        length = plain_number(headers.get("content-length", "0"))
        if "transfer-encoding" in headers or length is None:
            return PlainTextResponse(
                "Content-Length is missing: send the length of the body.\n", 411
            )
        if length > BODY_BYTES_MAX:
            return PlainTextResponse(
                f"The body is too long: send at most {BODY_BYTES_MAX} bytes.\n", 413
            )
        return None
