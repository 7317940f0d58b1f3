"""URLs of connections, and the names of topics and groups."""

from ssl import CERT_NONE

import pytest

kombu = pytest.importorskip("kombu", reason="kombu is not installed")
# ruff: noqa: E402

from protocol.signature import Credentials
from protocol.topic_names import RETRY_TOPIC_PREFIX, TOPIC_CHARS_MAX, is_legal_name
from remoting.tls_options import Tls
from troupemq.kombu.places import Place, place_of, without_password

PLACE = Place(("a:9876",))


@pytest.mark.parametrize(
    ("url", "more", "namesrv", "space"),
    [
        ("troupemq://", (), ("127.0.0.1:9876",), ""),
        ("troupemq://a", (), ("a:9876",), ""),
        ("troupemq://a:1//", (), ("a:1",), ""),
        (
            "troupemq://a:1,b,[::1]:2,[::2]/jobs",
            (),
            ("a:1", "b:9876", "[::1]:2", "[::2]:9876"),
            "jobs",
        ),
        ("troupemq://a:1", ("troupemq://z:1", "b:2//"), ("a:1", "b:2"), ""),
        ("troupemq://a:1", ("b:2/my%20jobs",), ("a:1", "b:2"), "my jobs"),
        ("a", (), ("a:9876",), ""),
    ],
)
def test_url_names_servers_and_space(
    url: str, more: tuple[str, ...], namesrv: tuple[str, ...], space: str
) -> None:
    assert place_of(url, more) == Place(namesrv, space=space)


def test_user_and_password_are_the_account() -> None:
    wanted = Credentials("us@er", "se:cret")
    assert place_of("troupemq://us%40er:se:cret@a//").credentials == wanted
    assert place_of("a", user="us@er", password="se:cret").credentials == wanted


def test_tls_is_said_by_the_scheme_or_by_celerys_option() -> None:
    assert place_of("troupemqs://a").tls == Tls()
    assert place_of("troupemq://a", ssl=True).tls == Tls()
    given = {"ca_certs": "ca", "certfile": "c", "keyfile": "k", "cert_reqs": CERT_NONE}
    wanted = Tls("ca", "c", "k", checks_server=False)
    assert place_of("troupemq://a", ssl=given).tls == wanted


def test_logged_url_has_no_password() -> None:
    assert without_password("troupemq://u:p@a:1,b:2//", "**") == "troupemq://u:**@a:1,b:2//"
    assert without_password("troupemq://a:1//", "**") == "troupemq://a:1//"


def test_names_are_legal_and_differ() -> None:
    names = ["celery", "a.b", "a%2Eb", "ä/ö ü", "x" * 300, "x" * 301, "bindings", "x|y", "~"]
    spaces = [PLACE, Place(("a:9876",), space="x")]
    made = [
        named(name) for each in spaces for named in (each.queue, each.exchange) for name in names
    ]
    made += [each.bindings for each in spaces]
    assert all(is_legal_name(name) for name in made)
    assert len(set(made)) == len(made)
    assert max(map(len, made)) + len(RETRY_TOPIC_PREFIX) <= TOPIC_CHARS_MAX
    assert PLACE.queue("celery") == "k-celery"
    assert PLACE.queue("a.b") == "k-a%2Eb"
