"""Servers and account of a connection, from its URL; names of topics and groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from ssl import CERT_NONE
from typing import Any
from urllib.parse import quote, unquote

from protocol.signature import Credentials
from remoting.tls_options import Tls
from storage.spelling import closest
from troupemq.client.errors import ArgumentIllegal

SCHEME, TLS_SCHEME = "troupemq", "troupemqs"
LOCAL_HOST, PORT = "127.0.0.1", 9876
NAME_CHARS_MAX = 120
"""A retry topic has 7 characters more, and a topic 127 in all."""
DIGEST_CHARS = 32
DEFAULT_EXCHANGE = "amq.default"

NAMES_MAX = 1024
"""Names that are kept; quoting one takes 2 µs, and a publication needs one."""


@dataclass(frozen=True)
class KombuPlace:
    """The name servers of a connection, its account, and its virtual host."""

    namesrv: tuple[str, ...]
    credentials: Credentials | None = None
    tls: Tls | None = None
    space: str = ""
    """Virtual host; it sets the names of topics and groups apart."""

    def queue(self, name: str) -> str:
        """Return the name of the topic and of the group of a queue."""
        return _named(self.space, "k", name)

    def exchange(self, name: str) -> str:
        """Return the topic of an exchange, for queues that live with their connection."""
        return _named(self.space, "kx", name or DEFAULT_EXCHANGE)

    @property
    def bindings(self) -> str:
        """Topic of the bindings that all processes share."""
        return _named(self.space, "kb", "bindings")


@lru_cache(NAMES_MAX)
def _named(space: str, kind: str, name: str) -> str:
    text = f"{kind}-{_quoted(space)}|{_quoted(name)}" if space else f"{kind}-{_quoted(name)}"
    if len(text) <= NAME_CHARS_MAX:
        return text
    digest = sha256(text.encode()).hexdigest()[:DIGEST_CHARS]
    return f"{text[: NAME_CHARS_MAX - 1 - DIGEST_CHARS]}|{digest}"


def _quoted(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def place_of(
    hostname: str | None,
    alternates: Sequence[str] = (),
    *,
    port: int | None = None,
    user: str | None = None,
    password: str | None = None,
    space: str | None = None,
    ssl: Any = None,
) -> KombuPlace:
    """Return the place that the parts of a URL name, as kombu has parsed it.

    `alternates` are what kombu found between `;`, this place among them: a URL begins a place, and
    the rest are its further name servers, as in `troupemq://a:9876;b:9876/space`. kombu names
    them in turn after a failure.
    """
    if hostname in alternates:  # a further name server; the port is that of the first one
        port = None
    found = [_address(hostname or LOCAL_HOST, port)]
    path = space or ""
    for group in _groups(alternates):
        servers = [_address(each, None) for each in group]
        if found[0] in servers:
            found += servers
            paths = (unquote(each.partition("/")[2]).strip("/") for each in group[1:])
            path = path.strip("/") or next(filter(None, paths), "")
            break
    return KombuPlace(
        tuple(dict.fromkeys(found)),
        Credentials(user, password or "") if user else None,
        _tls_of(ssl),
        path.strip("/"),
    )


def _groups(alternates: Sequence[str]) -> list[list[str]]:
    """Return the servers of each place, with paths."""
    groups: list[list[str]] = []
    for each in alternates:
        if "://" in each:
            groups.append([each.partition("://")[2].rpartition("@")[2].lower() or LOCAL_HOST])
        elif groups and each.partition("/")[0]:
            groups[-1].append(each)
    return groups


def _address(host: str, port: int | None) -> str:
    host = host.partition("?")[0].partition("/")[0]
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    has_port = ":" in host.rpartition("]")[2]
    return host if has_port else f"{host}:{port or PORT}"


_TLS_OPTIONS = ("ca_certs", "certfile", "keyfile", "keyfile_password", "cert_reqs")


def _tls_of(ssl: Any) -> Tls | None:
    """Return the TLS options of Celery's `broker_use_ssl`, or of a URL: True, or a dict.

    Its names are those of Python, perhaps with the prefix of URLs and of Celery for Redis.
    """
    if not ssl:
        return None
    given = ssl if isinstance(ssl, dict) else {}
    options = {name.removeprefix("ssl_"): value for name, value in given.items()}
    for name in options:
        if name not in _TLS_OPTIONS and (meant := closest(name, _TLS_OPTIONS)) is not None:
            raise ArgumentIllegal(f"unknown TLS option {name}: did you mean {meant}?")
    return Tls(
        trust=options.get("ca_certs", ""),
        certificate=options.get("certfile", ""),
        key=options.get("keyfile", ""),
        key_password=options.get("keyfile_password", ""),
        checks_server=options.get("cert_reqs") not in (CERT_NONE, "CERT_NONE", "none"),
    )
