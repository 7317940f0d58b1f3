"""Web application: authentication, roles, and the routes of pages and changes.

    /PATH             a page            /api/PATH          the page as JSON
    /change/NAME      a form; POST previews or applies it; /api/change/NAME with JSON
    /login, /logout   sessions          /static/NAME       files of a fixed list
    /offer/KIND       names that contain a text, offered while one types

A browser sends a session cookie; a program sends `Authorization: Bearer TOKEN` to /api.

Checks before a request reaches a page:

421   Host is neither an address nor an allowed name (DNS rebinding)
405   any method but GET, HEAD and POST
411   body without a length
413   body over BODY_BYTES_MAX
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.network.bind_address import ANY, KnownHosts
from actors.network.connections import plain_address
from protocol.errors import RemoteError
from protocol.java_numbers import plain_number
from storage.errors import StoreError
from troupemq.client.errors import ClientError
from troupemq.client.log import client_logger
from troupemq.console.accounts import Viewer
from troupemq.console.asking import (
    PLACES,
    TEXT_CHARS_MAX,
    Console,
    NotThere,
    PageRequest,
    Place,
    RequestRefused,
    zone_of,
)
from troupemq.console.change_pages import ChangeStep, asked_page, changed_page, done_json
from troupemq.console.changes import CHANGES
from troupemq.console.changing import (
    access_changes,
    cluster_changes,
    house_changes,
    letter_changes,
    message_changes,
    offset_changes,
    topic_changes,
)
from troupemq.console.names import known_names, offered
from troupemq.console.pages import (
    access,
    brokers,
    clients,
    group,
    house,
    jobs,
    message,
    messages,
    overview,
    topics,
    waiting,
)
from troupemq.console.parts import PICKED, Note, Notes, Page, as_json
from troupemq.console.rendering import Renderer
from troupemq.console.sessions import BrowserSession

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


log = client_logger(__name__)

COOKIE = "troupemq_console"
ZONE_COOKIE = "troupemq_zone"
FIELDS_MAX = 700
"""Fields of a form: some, and a checkbox for each row of a page."""
WRONG = "The name or the password is wrong."
NOT_UNDERSTOOD = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError),
    *(RemoteError, TypeError, ValueError),
)
"""Errors from unexpected answers of servers or clients; only the page fails, with a reason."""
SAID_CHARS_MAX = 200
ALL_OF_THEM = (
    *(access_changes, cluster_changes, house_changes, message_changes, offset_changes),
    *(letter_changes, topic_changes),
    *(access, brokers, clients, group, house, jobs, message, messages, overview),
    *(topics, waiting),
)
"""Modules imported because they register pages and changes."""


class NotAllowed(RequestRefused):
    """Request that the viewer may not make, or that no form of the console sends."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class NotUnderstood(RequestRefused):
    """Unexpected answer of a server or a client; the text is Python's error."""

    status, title = 502, "Invalid answer"

    def __init__(self, said: str) -> None:
        super().__init__(
            "An answer of a server or a client cannot be understood, so this page cannot be shown."
            f" See the console's log for details: {said}"
        )


class JsonAnswer(JSONResponse):
    """JSON in which a `?` replaces each half of a surrogate pair, which UTF-8 cannot contain."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode(errors="replace")


@contextmanager
def _understanding(asked: PageRequest, path: str) -> Iterator[None]:
    """Raise NotUnderstood for an error that an unexpected answer causes."""
    try:
        yield
    except (ClientError, HTTPException, RequestRefused, StoreError):
        raise
    except NOT_UNDERSTOOD as error:
        log.error("page failed", path=path, exc_info=True)
        kind = type(error).__name__
        said = f"{kind}: {error}" if asked.sees_bodies() else kind
        raise NotUnderstood(said[:SAID_CHARS_MAX]) from error


class Application:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._prefix = console.settings.prefix
        self._renderer = Renderer(self._prefix)

    def make(self) -> Starlette:
        places = [Route(path, self._page(place), methods=["GET"]) for path, place in PLACES.items()]
        programs = [
            Route(f"/api{path}", self._page(place, is_api=True), methods=["GET"])
            for path, place in PLACES.items()
        ]
        routes = [
            Route("/login", self.login_page, methods=["GET"]),
            Route("/login", self.login, methods=["POST"]),
            Route("/logout", self.logout, methods=["POST"]),
            Route("/static/{name}", self.static, methods=["GET"]),
            Route("/message/body", self.body, methods=["GET"]),
            Route(waiting.EXPORT, self.letters, methods=["GET"]),
            Route(f"/api{waiting.EXPORT}", self.letters, methods=["GET"]),
            Route("/offer/{kind}", self.offer, methods=["GET"]),
            Route("/change/{name}", self.change_form, methods=["GET"]),
            Route("/change/{name}", self.change, methods=["POST"]),
            Route("/api/change/{name}", self.change_by_json, methods=["POST"]),
            *places,
            *programs,
        ]
        hosts = [*self._console.settings.hosts, self._console.settings.bind_address]
        return Starlette(
            routes=[Mount(self._prefix, routes=routes)] if self._prefix else routes,
            middleware=[Middleware(RequestGate, hosts=hosts)],
            exception_handlers={
                HTTPException: self._failed,
                RequestRefused: self._refused,
                ClientError: self._no_answer,
                StoreError: self._no_answer,
            },
        )

    # --- authentication

    def _session(self, request: Request) -> tuple[BrowserSession | None, Viewer | None]:
        found = self._console.sessions.find(cookie_of(request, COOKIE))
        return found, None if found is None else self._console.accounts.viewer_of(found.name)

    def _viewer(self, request: Request, is_api: bool) -> tuple[Viewer, str]:
        """Return the viewer and the token of its forms. Raises NotAllowed.

        Status 401 of a page redirects to the login.
        """
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            viewer = self._console.accounts.of_token(token.strip()) if is_api else None
            if viewer is None:
                raise NotAllowed(401, "This token is unknown, or the path is not below /api.")
            return viewer, ""
        session, viewer = self._session(request)
        if session is None or viewer is None:
            raise NotAllowed(401, "Log in first.")
        return viewer, session.csrf

    def _asked(self, request: Request, viewer: Viewer, is_api: bool = False) -> PageRequest:
        zone = zone_of(unquote(cookie_of(request, ZONE_COOKIE)))
        pairs = request.query_params.multi_items()[:FIELDS_MAX]
        is_refresh = "hx-request" in request.headers
        return PageRequest(self._console, viewer, dict(pairs), zone, is_refresh, is_api)

    # --- pages

    def _page(self, place: Place, is_api: bool = False) -> Any:
        def answer(request: Request) -> Response:
            viewer, csrf = self._viewer(request, is_api)
            if not viewer.may(place.role):
                raise NotAllowed(403, f"This page needs the role {place.role}.")
            asked = self._asked(request, viewer, is_api)
            with _understanding(asked, place.path):
                page = place.make(asked)
                if is_api:
                    return JsonAnswer(as_json(page))
                return HTMLResponse(self._renderer.page(page, place.path, viewer, csrf, asked.zone))

        return answer

    def static(self, request: Request) -> Response:
        found = self._renderer.files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return Response(found[0], media_type=found[1], headers={"Cache-Control": "max-age=300"})

    def body(self, request: Request) -> Response:
        """Return a message body as a download, which the browser never renders."""
        viewer, _ = self._viewer(request, is_api=False)
        asked = self._asked(request, viewer)
        if not asked.sees_bodies():
            raise NotAllowed(403, message.HIDDEN)
        headers = {"Content-Disposition": 'attachment; filename="message.bin"'}
        with _understanding(asked, "/message/body"):
            body = message.body_of(message.find_one(asked))
        return Response(body, media_type="application/octet-stream", headers=headers)

    def offer(self, request: Request) -> Response:
        """Return names as options of a field, whose value is the only parameter."""
        viewer, _ = self._viewer(request, is_api=False)
        names = known_names(self._asked(request, viewer).snapshot(), request.path_params["kind"])
        if names is None:
            raise NotThere("Names of this kind are not offered.")
        typed = next(iter(request.query_params.values()), "")[:TEXT_CHARS_MAX].strip()
        return HTMLResponse(self._renderer.options(offered(names, typed)))

    def letters(self, request: Request) -> Response:
        viewer, _ = self._viewer(request, is_api=self._is_api(request))
        asked = self._asked(request, viewer)
        if not asked.sees_bodies():
            raise NotAllowed(403, message.HIDDEN)
        headers = {"Content-Disposition": 'attachment; filename="dead-letters.jsonl"'}
        with _understanding(asked, waiting.EXPORT):
            return Response(waiting.export(asked), media_type="application/jsonl", headers=headers)

    # --- login

    def login_page(self, request: Request) -> Response:
        """Return the login form; redirect a viewer with a session."""
        following = own_path(request.query_params.get("next", ""))
        if self._session(request)[1] is not None:
            return RedirectResponse(self._prefix + following, 303)
        return HTMLResponse(self._renderer.login(following))

    async def login(self, request: Request) -> Response:
        """Start a session; all failures have equal answers and durations."""
        self._check_origin(request)
        given = await _fields(request)
        return await run_in_threadpool(self._log_in, request, given)

    def _log_in(self, request: Request, given: Mapping[str, str]) -> Response:
        console = self._console
        name, following = given.get("name", "")[:64], own_path(given.get("next", ""))
        address = _address(request)
        wait_s = console.throttle.wait_s(name, address)
        if wait_s > 0:
            sentence = f"Too many wrong passwords: try again in {wait_s:.0f} s."
            headers = {"Retry-After": str(int(wait_s) + 1)}
            return HTMLResponse(self._renderer.login(following, sentence), 429, headers)
        console.throttle.failed(name, address)
        viewer = console.accounts.check(name, given.get("password", ""))
        if viewer is None:
            console.audit.note(name, "-", address, "login", result="refused")
            return HTMLResponse(self._renderer.login(following, WRONG), 401)
        console.throttle.succeeded(name, address)
        console.sessions.end(cookie_of(request, COOKIE))
        console.audit.note(viewer.name, viewer.role, address, "login", result="done")
        answer = RedirectResponse(self._prefix + following, 303)
        answer.set_cookie(
            COOKIE,
            console.sessions.begin(viewer.name),
            path=self._prefix or "/",
            secure=console.settings.behind_tls or request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def logout(self, request: Request) -> Response:
        """End the session on the server, which invalidates its cookie."""
        viewer = self._checked(request, (await _fields(request)).get("csrf", ""))
        self._console.sessions.end(cookie_of(request, COOKIE))
        self._console.audit.note(viewer.name, viewer.role, _address(request), "logout")
        return RedirectResponse(f"{self._prefix}/login", 303)

    # --- changes

    def _checked(self, request: Request, token: str) -> Viewer:
        """Return the viewer if the form belongs to its session. Raises NotAllowed."""
        self._check_origin(request)
        session, viewer = self._session(request)
        if session is None or viewer is None:
            raise NotAllowed(401, "Log in first.")
        if not session.accepts(token):
            raise NotAllowed(403, "This form is not from this session: go back and reload it.")
        return viewer

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        own = request.headers.get("host", "")
        if origin is not None and origin.partition("://")[2].lower() != own.lower():
            raise NotAllowed(403, "This request comes from a foreign page.")
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise NotAllowed(403, "This request comes from a foreign page.")

    def change_form(self, request: Request) -> Response:
        viewer, csrf = self._viewer(request, is_api=False)
        step = self._step(request, viewer)
        with _understanding(step.asked, step.path):
            page = asked_page(step, step.asked.query)
            return HTMLResponse(self._renderer.page(page, "", viewer, csrf, step.asked.zone))

    def _step(self, request: Request, viewer: Viewer) -> ChangeStep:
        change = CHANGES.get(request.path_params["name"])
        if change is None:
            raise NotThere("Unknown change.")
        if not viewer.may(change.role):
            raise NotAllowed(403, f"This change needs the role {change.role}.")
        return ChangeStep(change, self._asked(request, viewer), _address(request))

    async def change(self, request: Request) -> Response:
        given = await _fields(request)
        viewer = self._checked(request, given.pop("csrf", ""))
        step = self._step(request, viewer)

        def answer() -> Response:
            with _understanding(step.asked, step.path):
                page = changed_page(step, given, is_meant=given.pop("step", "") == "do")
                csrf = self._viewer_csrf(request)
                return HTMLResponse(self._renderer.page(page, "", viewer, csrf, step.asked.zone))

        return await run_in_threadpool(answer)

    def _viewer_csrf(self, request: Request) -> str:
        """Return the form token, empty if the change (a new password) ended the session."""
        session, _ = self._session(request)
        return "" if session is None else session.csrf

    async def change_by_json(self, request: Request) -> Response:
        """Preview or carry out a change given as {"given": {…}, "do": true}."""
        viewer, csrf = self._viewer(request, is_api=True)
        if csrf:
            viewer = self._checked(request, request.headers.get("x-csrf-token", ""))
        step = self._step(request, viewer)
        try:
            wanted = json.loads(await request.body())
            given = {str(name): str(value) for name, value in wanted["given"].items()}
            is_meant = wanted.get("do") is True
            "".join(given.values()).encode()  # half of a surrogate pair is not a text
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise NotAllowed(400, 'Send {"given": {…}, "do": true} as JSON.') from None

        def answer() -> Response:
            with _understanding(step.asked, step.path):
                found = done_json(step, given, is_meant)
                return JsonAnswer(found, 200 if not found["failures"] else 409)

        return await run_in_threadpool(answer)

    # --- errors

    def _sentence(self, request: Request, status: int, title: str, sentence: str) -> Response:
        if request.url.path.startswith(f"{self._prefix}/api/"):
            return JsonAnswer({"error": sentence}, status)
        session, viewer = self._session(request)
        page = Page(title, [Notes("error", "", [Note("trouble", sentence)])])
        csrf = "" if session is None else session.csrf
        zone = zone_of(unquote(cookie_of(request, ZONE_COOKIE)))
        return HTMLResponse(self._renderer.page(page, "", viewer, csrf, zone), status)

    def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRefused)
        if error.status == 401 and request.method == "GET" and not self._is_api(request):
            return RedirectResponse(f"{self._prefix}/login?{following_of(request)}", 303)
        return self._sentence(request, error.status, error.title, str(error))

    def _is_api(self, request: Request) -> bool:
        return request.url.path.startswith(f"{self._prefix}/api/")

    def _no_answer(self, request: Request, error: Exception) -> Response:
        return self._sentence(request, 502, "No answer", f"{error}")

    def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        sentence = "Page not found." if error.status_code == 404 else error.detail
        return self._sentence(request, error.status_code, "Not found", sentence)


def cookie_of(request: Request, name: str) -> str:
    """Return a cookie, or an empty text.

    The console's cookies have no escapes. To read those of others takes Python 3.11 a time that
    grows with the square of their length: 3 s for 60 KB.
    """
    found = ""
    for pair in "; ".join(request.headers.getlist("cookie")).split(";"):
        own, _, value = pair.partition("=")
        if own.strip() == name:
            found = value.strip()
    return found


def own_path(text: str) -> str:
    """Return a path of the console; `/` for text that might lead to another site."""
    is_own = text.startswith("/") and not text.startswith("//") and "\\" not in text
    return text if is_own and text.isprintable() and text.isascii() else "/"


def following_of(request: Request) -> str:
    """Return the query `next=…` that leads back to this page after the login."""
    mount = request.scope.get("root_path", "")
    path = request.url.path.removeprefix(mount)
    query = f"?{request.url.query}" if request.url.query else ""
    return urlencode({"next": own_path(path + query)})


def _address(request: Request) -> str:
    if request.client is None:
        return "-"
    return plain_address((request.client.host, request.client.port))[0]


async def _fields(request: Request) -> dict[str, str]:
    """Return the fields of a form; of equal names the last one, but all checked rows."""
    text = (await request.body()).decode(errors="replace")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise NotAllowed(400, f"A form has at most {FIELDS_MAX} fields.") from None
    found = dict(pairs)
    if PICKED in found:
        found[PICKED] = ",".join(value for name, value in pairs if name == PICKED)
    return found
