"""Which addresses may be connected to, and which URLs are unambiguous. Pure.

A service that sends requests for others can be abused to reach targets that only it can reach: itself, its neighbours,
the cloud's metadata ("server-side request forgery"). So an address that is not public is refused unless the operator
has named its network. This is decided by the resolved address at the moment of connecting, not by a name.

An IPv6 address that carries an IPv4 one (mapped, NAT64, 6to4, Teredo) is judged by both. A host that looks like a
number must be a plain dotted quad, because some resolvers read 127.0.0.1 in 2130706433, 0177.0.0.1, 0x7f.1 and 127.1.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import SplitResult, urlsplit

import httpx

from wheelq.errors import InvalidInput

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Not public either, though `is_global` of some Python versions says so.
NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.0.0.0/24",  # protocol assignments, in which one cloud has its metadata
            "192.88.99.0/24",  # relays of 6to4
            "168.63.129.16/32",  # serves the settings of machines in Azure
            "161.26.0.0/16",  # IBM Cloud's services for its machines,
            "166.8.0.0/14",  # and more of them
            "64:ff9b:1::/48",  # local NAT64
            "::/96",  # IPv4-compatible
            "::ffff:0:0:0/96",  # IPv4-translated
            "fec0::/10",  # site-local
            "100::/64",  # discarded
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
        ),
    )
)
URL_CHARS = 2_000
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)\Z")
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")
_PLAIN = re.compile(r"[!-~]+\Z")
"""Printable ASCII without spaces, the characters of a URL."""


def refusal(address: str, allowed: Sequence[Network]) -> str | None:
    """Returns why this address must not be connected to; None if it may."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return f"{address} is not an IP address"
    for inner in _meanings(found):
        is_public = inner.is_global and not inner.is_multicast and not _is_in(inner, NOT_PUBLIC)
        if not is_public and not _is_in(inner, allowed):
            return f"{address} is not a public address, and its network is not allowed"
    return None


def networks(written: Iterable[str], field: str) -> tuple[Network, ...]:
    """Parses networks like 10.0.0.0/8 or fd00::/8. Raises: InvalidInput."""
    found = []
    for text in written:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise InvalidInput(field, f"{text!r} is not a network such as 10.0.0.0/8: {error}") from error
    return tuple(found)


def parse_url(url: str, field: str) -> SplitResult:
    """Returns the parts of an unambiguous absolute http(s) URL. Raises: InvalidInput."""
    if not isinstance(url, str) or not _PLAIN.match(url) or len(url) > URL_CHARS:
        raise InvalidInput(field, f"must be up to {URL_CHARS:,} printable ASCII characters without spaces")
    if "\\" in url:
        raise InvalidInput(field, "must not contain a backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(field, f"is not a URL: {error}") from error
    if parts.scheme not in ("http", "https"):
        raise InvalidInput(field, "must begin with https:// or http://")
    if "@" in parts.netloc:
        raise InvalidInput(field, "must not contain a user name or password")
    if "#" in url:
        raise InvalidInput(field, "must not contain a fragment (#)")
    if port == 0:
        raise InvalidInput(field, "must have a port from 1 to 65535, or none")
    check_host(parts.hostname or "", field)
    return parts


def check_host(host: str, field: str) -> None:
    """Check that a host is a DNS name or a plainly written IP address. Raises: InvalidInput."""
    if "%" in host:
        raise InvalidInput(field, "must not name a network interface (%)")
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError as error:
            raise InvalidInput(field, f"{host!r} is not an IPv6 address") from error
        return
    labels = host.removesuffix(".").split(".")
    if _NUMERIC.match(labels[-1]):
        try:
            ipaddress.IPv4Address(host)
        except ValueError as error:
            raise InvalidInput(field, f"{host!r} looks like a number; write an IPv4 address as 192.0.2.1") from error
        return
    if len(host) > 253 or not all(_LABEL.match(label) for label in labels):
        raise InvalidInput(field, f"{host!r} is not a host name; write an international one in its xn-- form")
    try:
        _ = httpx.URL(host=host).host  # decodes an international name
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InvalidInput(field, f"{host!r} is not an international host name: {error}") from error


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _meanings(address: Address) -> Iterator[Address]:
    """Yields the address, and any that it contains."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            yield address.ipv4_mapped
        if address.sixtofour:
            yield address.sixtofour
        if address.teredo:
            yield from address.teredo
        if address in NAT64:
            yield ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
