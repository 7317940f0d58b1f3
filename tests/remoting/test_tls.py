"""Tests of remoting/tls.py: what contexts let in, and what is said of files that cannot be used."""

from collections.abc import Callable
from dataclasses import replace
from os import mkfifo
from pathlib import Path
from shlex import split
from shutil import which
from socket import socketpair
from ssl import MemoryBIO, SSLContext, SSLError, SSLWantReadError, TLSVersion
from subprocess import run

import pytest

from remoting.tls import (
    TlsFiles,
    TlsUnusable,
    client_context,
    plain_hint,
    reason_of_tls,
    server_context,
)
from tests.support.certificates import PASSWORD, Certificates


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def shake(server: SSLContext, client: SSLContext, host: str = "127.0.0.1") -> str:
    """The version that the two agree on, without sockets. Raises SSLError."""
    to_server, to_client = MemoryBIO(), MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    over = [False, False]
    while not all(over):
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
            except SSLWantReadError:
                continue
            over[number] = True
    version = ends[0].version()
    assert version is not None
    ends[0].write(b"asked")
    assert ends[1].read() == b"asked", "the server has looked at what the client shows"
    return version


def test_a_client_that_trusts_the_issuer_connects_with_tls_1_3(made: Certificates) -> None:
    files = made.files()
    assert shake(
        server_context(files), client_context(replace(files, cert_path="", key_path=""))
    ) == ("TLSv1.3")


def test_tls_1_2_is_accepted_only_with_forward_secrecy(made: Certificates) -> None:
    client = made.calls()
    client.maximum_version = TLSVersion.TLSv1_2
    assert shake(server_context(made.files()), client) == "TLSv1.2"
    names = {cipher["name"] for cipher in server_context(made.files()).get_ciphers()}
    assert all(name.startswith(("TLS_", "ECDHE-")) for name in names)
    assert all("GCM" in name or "CHACHA20" in name for name in names)


@pytest.mark.filterwarnings("ignore:.*TLSv1:DeprecationWarning")
@pytest.mark.parametrize(
    "weaken",
    [
        lambda client: setattr(client, "maximum_version", TLSVersion.TLSv1),
        lambda client: setattr(client, "maximum_version", TLSVersion.TLSv1_1),
    ],
)
def test_older_versions_are_refused(
    made: Certificates, weaken: Callable[[SSLContext], None]
) -> None:
    client = made.calls()
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = TLSVersion.MINIMUM_SUPPORTED
    weaken(client)
    with pytest.raises(SSLError):
        shake(server_context(made.files()), client)


@pytest.mark.parametrize("group", [0x0100, 0x0104, 0x0018, 0x0019])
def test_a_server_uses_only_the_group_p_256(made: Certificates, group: int) -> None:
    """ffdhe2048, ffdhe8192, P-384, P-521; one handshake with the second took 124 ms."""
    incoming, outgoing = MemoryBIO(), MemoryBIO()
    server = server_context(made.files()).wrap_bio(incoming, outgoing, server_side=True)
    incoming.write(hello_with_share_of(group))
    with pytest.raises(SSLError, match=r"(?i)no.suitable.key.share"):
        server.do_handshake()


def hello_with_share_of(group: int) -> bytes:
    """The first message of a client of TLS 1.3 that knows this one group."""
    sizes = {0x0100: 256, 0x0104: 1024, 0x0018: 97, 0x0019: 133}
    share = b"\4" + bytes(sizes[group] - 1) if group < 0x0100 else b"\1" * sizes[group]
    named = group.to_bytes(2)
    extensions = {
        43: b"\2\3\4",  # TLS 1.3
        13: b"\0\4\4\3\x08\4",  # signatures
        10: b"\0\2" + named,
        51: (len(share) + 4).to_bytes(2) + named + len(share).to_bytes(2) + share,
    }
    told = b"".join(
        number.to_bytes(2) + len(text).to_bytes(2) + text for number, text in extensions.items()
    )
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(told).to_bytes(2) + told
    message = b"\1" + len(body).to_bytes(3) + body
    return b"\x16\3\1" + len(message).to_bytes(2) + message


def test_ciphers_without_forward_secrecy_or_authentication_are_refused(made: Certificates) -> None:
    client = made.calls()
    client.maximum_version = TLSVersion.TLSv1_2
    client.set_ciphers("kRSA:AES128-SHA:ECDHE-RSA-AES128-SHA:ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0")
    with pytest.raises(SSLError, match=r"(?i)handshake failure|no shared cipher"):
        shake(server_context(made.files()), client)


def test_a_required_client_certificate_is_enforced(made: Certificates) -> None:
    server = server_context(made.files(), "require")
    assert shake(server, made.calls(shows=made.files("client", "client-1")))
    with pytest.raises(SSLError, match=r"(?i)peer did not return a certificate"):
        shake(server, made.calls())
    strangers = Certificates(made.folder / "strangers", "Strangers")
    with pytest.raises(SSLError, match=r"(?i)certificate verify failed|unknown ca"):
        shake(server, made.calls(shows=strangers.files("client", "client-1")))
    over = made.files("over", "client-1", is_over=True)
    with pytest.raises(SSLError, match=r"(?i)expired"):
        shake(server, made.calls(shows=over))
    assert shake(server_context(made.files(), "optional"), made.calls())


def test_a_client_checks_issuer_host_name_and_expiry(made: Certificates) -> None:
    trusting = client_context(replace(made.files(), cert_path="", key_path=""))
    with pytest.raises(SSLError, match="IP address mismatch"):
        shake(server_context(made.files("other", "192.0.2.7")), trusting)
    with pytest.raises(SSLError, match="Hostname mismatch"):
        shake(server_context(made.files("name", "broker.example")), trusting, "other.example")
    assert shake(server_context(made.files("name", "broker.example")), trusting, "broker.example")
    with pytest.raises(SSLError, match="expired"):
        shake(server_context(made.files("over", is_over=True)), trusting)
    strangers = Certificates(made.folder / "strangers", "Strangers")
    with pytest.raises(SSLError, match=r"unable to get local issuer|self-signed"):
        shake(server_context(strangers.files()), trusting)
    believing = client_context(replace(made.files(), trust_path=""), checks_server=False)
    assert shake(server_context(strangers.files("other", "192.0.2.7")), believing)


# --- files


def said(made: Callable[[], SSLContext]) -> str:
    with pytest.raises(TlsUnusable) as error:
        made()
    return str(error.value)


def test_an_encrypted_key_uses_the_given_password_without_a_prompt(made: Certificates) -> None:
    files = replace(made.files(), key_path=made.encrypted_key())
    assert shake(server_context(replace(files, key_password=PASSWORD)), made.calls())
    assert said(lambda: server_context(files)) == (
        f"{files.key_path} is encrypted: its password is missing (keyPassword)."
    )
    wrong = replace(files, key_password="another")
    assert "not opened by the password" in said(lambda: server_context(wrong))
    assert PASSWORD not in repr(replace(files, key_password=PASSWORD))


def test_a_key_of_old_openssl_is_named_with_the_command_that_converts_it(
    made: Certificates,
) -> None:
    old = made.old_key()
    files = replace(made.files(), key_path=old, key_password=PASSWORD)
    assert said(lambda: server_context(files)) == (
        f"{old} is encrypted in a way that OpenSSL 3 does not read; convert it: openssl pkcs8"
        f" -topk8 -provider legacy -provider default -in {old} -v2 aes-256-cbc -out {old}.new"
    )


@pytest.mark.slow
def test_the_command_that_converts_a_key_of_old_openssl_leads_to_one_that_is_read(
    made: Certificates,
) -> None:
    """The key of a certificate, encrypted as RocketMQ's guide does it."""
    files = made.files()
    old = f"{files.key_path}.old"
    legacy = ["-provider", "legacy", "-provider", "default"]
    opened = ["-passin", f"pass:{PASSWORD}", "-passout", f"pass:{PASSWORD}"]
    make = ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-RC4-128", *legacy, "-in", files.key_path]
    if which("openssl") is None or run([*make, "-out", old, *opened], check=False).returncode:
        pytest.skip("the openssl command, or its old ciphers, are not here")
    words = said(lambda: server_context(replace(files, key_path=old, key_password=PASSWORD)))
    command = split(words.partition("convert it: ")[2])
    run([*command, *opened], check=True)
    converted = replace(files, key_path=f"{old}.new", key_password=PASSWORD)
    assert shake(server_context(converted), made.calls())


def test_invalid_tls_files_are_named(made: Certificates, tmp_path: Path) -> None:
    files = made.files()
    junk, missing = tmp_path / "junk", str(tmp_path / "missing")
    junk.write_text("junk\n")
    for wrong, words in (
        (
            replace(files, cert_path=missing),
            f"{missing} cannot be read: No such file or directory.",
        ),
        (replace(files, key_path=missing), f"{missing} cannot be read: No such file or directory."),
        (replace(files, key_path=str(junk)), f"{junk} holds no private key in PEM form"),
        (replace(files, cert_path=str(junk)), "do not belong together, or one of them is damaged"),
        (replace(files, key_path=""), "A TLS server needs a certificate and its key."),
    ):
        assert words in said(lambda wrong=wrong: server_context(wrong))  # type: ignore[misc]
    other = replace(files, key_path=made.files("other", "192.0.2.8").key_path)
    assert "do not belong together" in said(lambda: server_context(other))
    no_trust = replace(files, trust_path=str(junk))
    assert said(lambda: server_context(no_trust, "require")) == (
        f"{junk} holds no certificate in PEM form."
    )
    assert "file of trusted CAs" in said(
        lambda: server_context(replace(files, trust_path=""), "require")
    )
    assert "belong together" in said(lambda: client_context(replace(files, key_path="")))


@pytest.mark.parametrize("which_one", ["cert_path", "key_path", "trust_path"])
def test_a_pipe_or_directory_is_refused_without_blocking(
    made: Certificates, tmp_path: Path, which_one: str
) -> None:
    pipe = str(tmp_path / "pipe")
    mkfifo(pipe)
    for path, words in (
        (pipe, f"{pipe} cannot be read: it is no regular file."),
        (str(tmp_path), f"{tmp_path} cannot be read: it is no regular file."),
        ("a\0b", r"'a\x00b' is no path: it has a NUL or no text in it."),
    ):
        wrong = replace(made.files(), **{which_one: path})
        assert said(lambda wrong=wrong: server_context(wrong, "require")) == words  # type: ignore[misc]
        assert said(lambda wrong=wrong: client_context(wrong)) == words  # type: ignore[misc]


@pytest.mark.parametrize("password", ["x" * 1025, "\udcff"])
def test_an_invalid_password_is_reported(made: Certificates, password: str) -> None:
    files = replace(made.files(), key_path=made.encrypted_key(), key_password=password)
    assert said(lambda: server_context(files)) == (
        f"{files.key_path} is not opened: its password has more than 1,024 bytes, or is no text"
        " (keyPassword)."
    )


def test_tls_errors_are_explained() -> None:
    assert reason_of_tls(ConnectionResetError(104, "Connection reset by peer")) == (
        "Connection reset by peer"
    )
    near, far = socketpair()
    with near, far:
        far.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(SSLError) as error:
            client_context(TlsFiles(), checks_server=False).wrap_socket(near)
    assert reason_of_tls(error.value) == "TLS: wrong version number"
    assert plain_hint(error.value) == "; if it has no TLS: leave out --tls and TROUPEMQ_TLS"
    assert plain_hint(ConnectionRefusedError()) == ""
