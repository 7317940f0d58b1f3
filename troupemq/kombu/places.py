"""Where a connection leads, from the URL that kombu was given; names of topics and groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from ssl import CERT_NONE
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from protocol.signature import Credentials
from remoting.tls_options import Tls

PORT = 9876
NAME_CHARS_MAX = 120
"""A retry topic has 7 characters more, and a topic 127 in all."""
DIGEST_CHARS = 32
DEFAULT_EXCHANGE = "amq.default"


@dataclass(frozen=True)
class Place:
    """The name servers of a connection, its account, and its virtual host."""

    namesrv: tuple[str, ...]
    credentials: Credentials | None = None
    tls: Tls | None = None
    space: str = ""
    """Virtual host; it sets the names of topics and groups apart."""

    def queue(self, name: str) -> str:
        """Return the name of the topic and of the group of a queue."""
        return self._named("k", name)

    def exchange(self, name: str) -> str:
        """Return the topic of an exchange, for queues that live with their connection."""
        return self._named("kx", name or DEFAULT_EXCHANGE)

    @property
    def bindings(self) -> str:
        """Topic of the bindings that all processes share."""
        return self._named("kb", "bindings")

    def _named(self, kind: str, name: str) -> str:
        space = _quoted(self.space) + "|" if self.space else ""
        text = f"{kind}-{space}{_quoted(name)}"
        if len(text) <= NAME_CHARS_MAX:
            return text
        digest = sha256(text.encode()).hexdigest()[:DIGEST_CHARS]
        return f"{text[: NAME_CHARS_MAX - 1 - DIGEST_CHARS]}|{digest}"


def _quoted(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def place_of(
    hostname: str,
    alternates: Sequence[str] = (),
    *,
    port: int | None = None,
    user: str | None = None,
    password: str | None = None,
    space: str | None = None,
    ssl: Any = None,
) -> Place:
    """Return the place of a URL such as `troupemq://user:password@a:9876,b:9876/space`.

    `alternates` without a scheme are further name servers, after a `;` in the URL.
    """
    url = hostname if "://" in hostname else f"troupemq://{hostname}"
    parts = urlsplit(url)
    account, _, hosts = parts.netloc.rpartition("@")
    if account:
        user, _, password = (unquote(each) for each in account.partition(":"))
    found = hosts.split(",")
    path = parts.path
    for each in alternates:
        if "://" not in each:
            more, slash, rest = each.partition("/")
            found += more.split(",")
            path = path or slash + rest
    space = unquote(path).strip("/") or (space or "").strip("/")
    namesrv = tuple(_with_port(each, port or PORT) for each in found if each)
    return Place(
        namesrv or (f"127.0.0.1:{port or PORT}",),
        Credentials(user, password or "") if user else None,
        _tls_of(ssl or parts.scheme == "troupemqs"),
        space,
    )


def _with_port(host: str, port: int) -> str:
    has_port = ":" in host.rpartition("]")[2]
    return host if has_port else f"{host}:{port}"


def _tls_of(ssl: Any) -> Tls | None:
    """Return the TLS options of Celery's `broker_use_ssl`: True, or a dict of Python's names."""
    if not ssl:
        return None
    options = ssl if isinstance(ssl, dict) else {}
    return Tls(
        trust=options.get("ca_certs", ""),
        certificate=options.get("certfile", ""),
        key=options.get("keyfile", ""),
        key_password=options.get("keyfile_password", ""),
        checks_server=options.get("cert_reqs") not in (CERT_NONE, "CERT_NONE", "none"),
    )


def without_password(url: str, mask: str) -> str:
    """Return a URL for logs."""
    parts = urlsplit(url)
    account, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = account.partition(":")
    return parts._replace(netloc=f"{user}{colon}{mask if colon else ''}{at}{hosts}").geturl()
