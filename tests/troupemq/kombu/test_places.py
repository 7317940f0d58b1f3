"""URLs of connections, and the names of topics and groups."""

from ssl import CERT_NONE
from typing import Any

import pytest

kombu = pytest.importorskip("kombu", reason="kombu is not installed")
# ruff: noqa: E402

from protocol.signature import Credentials
from protocol.topic_names import RETRY_TOPIC_PREFIX, TOPIC_CHARS_MAX, is_legal_name
from remoting.tls_options import Tls
from troupemq.client.errors import ArgumentIllegal
from troupemq.kombu.places import KombuPlace, place_of

PLACE = KombuPlace(("a:9876",))


def place(url: str) -> KombuPlace:
    """Return the place of a connection's URL."""
    return placed(kombu.Connection(url, transport="troupemq.kombu:Transport"))


def placed(made: Any) -> KombuPlace:
    return place_of(
        made.hostname,
        made.alt,
        port=made.port,
        user=made.userid,
        password=made.password,
        space=made.virtual_host,
        ssl=made.ssl,
    )


@pytest.mark.parametrize(
    ("url", "namesrv", "space"),
    [
        ("troupemq://", ("127.0.0.1:9876",), ""),
        ("troupemq://a", ("a:9876",), ""),
        ("troupemq://a:1//", ("a:1",), ""),
        ("troupemq://a:1/my%20jobs", ("a:1",), "my jobs"),
        ("troupemq://[::1]:2/jobs", ("[::1]:2",), "jobs"),
        ("troupemq://a:1;b;[::2]:3/jobs", ("a:1", "b:9876", "[::2]:3"), "jobs"),
        ("troupemq://a:1;b:2//", ("a:1", "b:2"), ""),
        ("troupemq://a:1;troupemq://z:1", ("a:1",), ""),
    ],
)
def test_url_names_servers_and_space(url: str, namesrv: tuple[str, ...], space: str) -> None:
    assert place(url) == KombuPlace(namesrv, space=space)


def test_name_servers_stay_together_after_a_failure() -> None:
    """kombu goes on to the next name server, and took it for a place of its own."""
    url = "troupemq://us:er@a:1;b;c:3/jobs;troupemq://y:1/other;z:2"
    connection = kombu.Connection(url, transport="troupemq.kombu:Transport")
    found = []
    for each in ("b", "c:3/jobs", "troupemq://y:1/other", "z:2", "troupemq://us:er@a:1"):
        connection.switch(each)
        found.append(placed(connection))
    first, second = {"a:1", "b:9876", "c:3"}, {"y:1", "z:2"}
    assert [set(each.namesrv) for each in found] == [first, first, second, second, first]
    assert [each.namesrv[0] for each in found] == ["b:9876", "c:3", "y:1", "z:2", "a:1"]
    assert [each.space for each in found[:3]] == ["jobs", "jobs", "other"]


def test_user_and_password_are_the_account() -> None:
    found = place("troupemq://us%40er:se%3Acret@a//")
    assert found.credentials == Credentials("us@er", "se:cret")
    assert found.namesrv == ("a:9876",)


def test_tls_is_said_by_celerys_option() -> None:
    assert place_of("a", ssl=True).tls == Tls()
    given = {"ca_certs": "ca", "certfile": "c", "keyfile": "k", "cert_reqs": CERT_NONE}
    assert place_of("a", ssl=given).tls == Tls("ca", "c", "k", checks_server=False)
    assert place_of("a").tls is None


def test_tls_is_said_by_a_url_and_by_names_of_redis() -> None:
    """A trusted CA that is ignored looks like a wrong certificate."""
    found = place("troupemqs://a//?ssl_ca_certs=ca&ssl_certfile=c&ssl_keyfile=k")
    assert found == KombuPlace(("a:9876",), tls=Tls("ca", "c", "k"))
    given = {"ssl_ca_certs": "ca", "ssl_cert_reqs": CERT_NONE}
    assert place_of("a", ssl=given).tls == Tls("ca", checks_server=False)


def test_names_are_legal_and_differ() -> None:
    names = ["celery", "a.b", "a%2Eb", "ä/ö ü", "x" * 300, "x" * 301, "bindings", "x|y", "~"]
    spaces = [PLACE, KombuPlace(("a:9876",), space="x")]
    made = [
        named(name) for each in spaces for named in (each.queue, each.exchange) for name in names
    ]
    made += [each.bindings for each in spaces]
    assert all(is_legal_name(name) for name in made)
    assert len(set(made)) == len(made)
    assert max(map(len, made)) + len(RETRY_TOPIC_PREFIX) <= TOPIC_CHARS_MAX
    assert PLACE.queue("celery") == "k-celery"
    assert PLACE.queue("a.b") == "k-a%2Eb"


def test_a_misspelled_tls_option_trusted_the_certificates_of_the_machine() -> None:
    with pytest.raises(ArgumentIllegal, match="TLS option ca_cert: did you mean ca_certs"):
        place_of("a", ssl={"ca_cert": "ca"})
    assert place_of("a", ssl={"server_hostname": "a"}).tls == Tls()
