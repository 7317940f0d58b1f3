"""A host as a record stores it: address and port.

    offset  size     type   field
    0       4 or 16  bytes  address, IPv4 or IPv6 in network order
    4/16    4        i32    port (four bytes, not two)

Source: common/message/MessageExt.java (socketAddress2ByteBuffer).
"""

from struct import Struct

_PORT = Struct(">i")
_V4_BYTES = 4
_V6_BYTES = 16
HOST_V4_BYTES = _V4_BYTES + _PORT.size
HOST_V6_BYTES = _V6_BYTES + _PORT.size
assert (HOST_V4_BYTES, HOST_V6_BYTES) == (8, 20)


def pack_host(ip: str, port: int) -> bytes:
    """Return 8 bytes for an IPv4 literal, 20 for an IPv6 one without its zone.

    Raises ValueError if `ip` is not an address literal; callers that may do I/O resolve names.
    """
    from ipaddress import ip_address  # 3 ms, which a client need not wait for

    return ip_address(ip.partition("%")[0]).packed + _PORT.pack(port)


def host_port(host: str, port: int) -> str:
    """Return `host:port`, and `[host]:port` for an IPv6 address, as Java writes both."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: str) -> str:
    """Return the host of `host:port`, an IPv6 address without its brackets."""
    return without_brackets(address.rpartition(":")[0])


def without_brackets(host: str) -> str:
    """Return an IPv6 address that may stand in brackets, or any other host, as it is."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def network_of(ip: str) -> str:
    """Return the network that per-address limits count: the first 64 bits of an IPv6 address.

    Any other host counts as it is.
    """
    if ":" not in ip:
        return ip
    from ipaddress import IPv6Address

    try:
        packed = IPv6Address(ip.partition("%")[0]).packed
    except ValueError:
        return ip
    return f"{IPv6Address(packed[:8] + bytes(8))}/64"


def address_part(packed: bytes) -> bytes:
    """Return a packed host without its port."""
    return packed[: -_PORT.size]


def unpack_host(packed: bytes) -> tuple[str, int]:
    """Return the address as text, and the port.

    Raises ValueError unless `packed` has 8 or 20 bytes.
    """
    if len(packed) == HOST_V4_BYTES:
        return ".".join(map(str, packed[:_V4_BYTES])), _PORT.unpack_from(packed, _V4_BYTES)[0]
    if len(packed) == HOST_V6_BYTES:
        from ipaddress import IPv6Address

        return str(IPv6Address(packed[:_V6_BYTES])), _PORT.unpack_from(packed, _V6_BYTES)[0]
    raise ValueError(f"a packed host has 8 or 20 bytes, not {len(packed)}")


def host_text(packed: bytes) -> str:
    """Return a packed host as `address:port`, an IPv6 address in brackets. Raises ValueError."""
    return host_port(*unpack_host(packed))
