"""What a job may name as its receiver: registered services and allowed URLs, and nothing that reads in two ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelq.callbacks.addresses import networks, parse_url, refusal
from wheelq.callbacks.services import Services
from wheelq.callbacks.target import HEADER, Target, check_path
from wheelq.errors import ConfigurationError, InvalidInput

SECRET = "whsec_" + "A" * 32
SERVICES = Services.read(
    {
        "services": {
            "billing": {"url": "https://billing.example.com:8443/hooks/", "secrets": [SECRET]},
            "local": {"url": "http://127.0.0.1:9000", "may_be_plain": True, "networks": ["127.0.0.0/8"]},
        },
        "urls": {
            "allow": [
                "https://*.partner.example",
                "https://hooks.example.net/in/",
                "https://one.example:444",
                "https://*.Hooks.example/one",
            ]
        },
    }
)


# Addresses


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:4700::1111"])
def test_a_public_address_may_be_connected_to(address: str) -> None:
    assert refusal(address, ()) is None


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",  # metadata of most clouds
        "100.100.100.200",  # and of another
        "192.0.0.192",  # and another
        "168.63.129.16",  # and another
        "161.26.0.10",  # and another's services
        "192.88.99.1",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "198.18.0.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",  # metadata over IPv6
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:7f00:1",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2001:0:4136:e378:8000:63bf:80ff:fffe",  # Teredo, of 127.0.0.1
        "not an address",
    ],
)
def test_any_other_may_not(address: str) -> None:
    assert refusal(address, ()) is not None


def test_a_network_that_the_operator_names_may_be_connected_to() -> None:
    allowed = networks(["10.1.0.0/16", "fd00::/8"], "networks")
    assert refusal("10.1.2.3", allowed) is None
    assert refusal("fd12::1", allowed) is None
    assert refusal("10.2.0.1", allowed) is not None
    assert refusal("127.0.0.1", allowed) is not None


def test_a_network_is_written_as_one() -> None:
    with pytest.raises(InvalidInput, match=r"'10.0.0.1/8' is not a network such as 10.0.0.0/8"):
        networks(["10.0.0.1/8"], "services.a.networks")


# URLs


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://example.com/", "must begin with https://"),
        ("//example.com/", "must begin with https://"),
        ("https://user:secret@example.com/", "must not contain a user name"),
        ("https://good.example@evil.example/", "must not contain a user name"),
        ("https://good.example#@evil.example/", "must not contain a fragment|user name"),
        ("https://good.example\\@evil.example/", "must not contain a backslash"),
        ("https://good.example/ path", "without spaces"),
        ("https://good.example/\n", "without spaces"),
        ("https://gоod.example/", "printable ASCII"),
        ("https://2130706433/", "looks like a number"),
        ("https://0x7f000001/", "looks like a number"),
        ("https://0x7f.1/", "looks like a number"),
        ("https://0177.0.0.1/", "looks like a number"),
        ("https://127.1/", "looks like a number"),
        ("https://127.0.0.1./", "looks like a number"),
        ("https://1.2.3.4.5/", "looks like a number"),
        ("https://[::1/", "is not a URL|IPv6"),
        ("https://[fe80::1%25eth0]/", "network interface"),
        ("https:///path", "is not a host name"),
        ("https://.example.com/", "is not a host name"),
        ("https://exa mple.com/", "without spaces"),
        ("https://-a.example/", "is not a host name"),
        ("https://a.example:0/", "port"),
        ("https://a.example:99999/", "is not a URL"),
        ("https://a.example:80:80/", "is not a URL|host name"),
        ("https://" + "a" * 300 + ".example/", "is not a host name"),
        ("https://a.example/" + "a" * 2_000, "up to 2,000"),
    ],
)
def test_a_url_that_reads_in_two_ways_is_refused(url: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        parse_url(url, "url")
    assert caught.value.field == "url"


@pytest.mark.parametrize("url", ["https://a.example", "http://127.0.0.1:80/x?y=z", "https://[2606:4700::1]:8443/"])
def test_a_plain_url_is_accepted(url: str) -> None:
    assert parse_url(url, "url").geturl() == url


# Targets


def test_a_path_is_put_below_the_url_of_its_service() -> None:
    place = Target(service="billing", path="/paid?order=7").place(SERVICES)
    assert place.url == "https://billing.example.com:8443/hooks/paid?order=7"
    assert (place.destination, place.shown) == ("billing", "https://billing.example.com:8443/hooks/paid")


@pytest.mark.parametrize(
    "path",
    [
        "paid",
        "//evil.example/",
        "/../admin",
        "/a/../../admin",
        "/a/./b",
        "/%2e%2e/admin",
        "/..;/admin",
        "/a/..;x=1/admin",
        "/%2e%2e%3b/admin",
        "/.;/admin",
        "/%252e%252e/admin",
        "/%25252e%25252e/admin",
        "/%2525252525252e./admin",
        "/%2f%2fevil.example",
        "/a\\b",
        "/%5cevil",
        "/a#b",
        "/a b",
        "/\r\nHost: evil.example",
        "@evil.example/",
        ":99/",
        ".evil.example/",
        "/ü",
    ],
)
def test_a_path_cannot_leave_its_service(path: str) -> None:
    with pytest.raises(InvalidInput, match=r"target.path"):
        Target(service="billing", path=path).place(SERVICES)


@given(st.text(max_size=40))
def test_every_accepted_path_stays_on_the_host(path: str) -> None:
    try:
        place = Target(service="billing", path="/" + path).place(SERVICES)
    except InvalidInput:
        return
    assert place.url.startswith("https://billing.example.com:8443/hooks/")


def test_an_unknown_service_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="'shipping' is not registered; there are: billing, local"):
        Target(service="shipping").place(SERVICES)


@pytest.mark.parametrize(
    "url",
    [
        "https://a.partner.example/any/path",
        "https://A.Partner.Example/",
        "https://hooks.example.net/in/orders",
        "https://one.example:444/x",
        "https://a.partner.example:443/",
        "https://a.hooks.example/one",
        "https://a.hooks.example/one?x=1",
        "https://a.hooks.example/one/two",
    ],
)
def test_a_url_that_the_operator_allows_may_be_called(url: str) -> None:
    assert Target(url=url).place(SERVICES).url == url


@pytest.mark.parametrize(
    "url",
    [
        "https://partner.example/",
        "https://a.partner.example.evil.example/",
        "https://evilpartner.example/",
        "http://a.partner.example/",
        "https://a.partner.example:8443/",
        "https://hooks.example.net/out/",
        "https://hooks.example.net/in/../out/",
        "https://hooks.example.net/in/%2e%2e/out/",
        "https://hooks.example.net/inside",
        "https://one.example/",
        "https://a.hooks.example/ones",
        "https://169.254.169.254/latest/meta-data/",
        "https://localhost/",
    ],
)
def test_any_other_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        Target(url=url).place(SERVICES)


@pytest.mark.parametrize(
    "written", [None, [], "x", {}, {"path": "/"}, {"service": "a", "url": "b"}, {"service": 1}, {"url": "", "x": ""}]
)
def test_a_target_is_a_service_or_a_url(written: object) -> None:
    with pytest.raises(InvalidInput, match=r'must be \{"service": NAME'):
        Target.read(written)


def test_a_target_travels_in_a_header() -> None:
    for target in (Target(service="billing", path="/paid"), Target(url="https://a.partner.example/x")):
        assert Target.of({HEADER: target.header()}) == target
    assert Target.of({"other": "header"}) is None
    with pytest.raises(InvalidInput, match="is not readable"):
        Target.of({HEADER: "{"})


def test_check_path_returns_the_path() -> None:
    assert check_path("/a/b?c=..") == "/a/b?c=.."


# The register


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[service.a]", "unknown 'service'; known here: services, urls"),
        ("[services.a]\n", r"services.a.url: must be the URL"),
        ('[services.a]\nurl = "https://a.example/?q"', r"services.a.url: must be the URL"),
        ('[services.a]\nurl = "http://a.example"', r"services.a.url: must begin with https://, or set may_be_plain"),
        ('[services.a]\nurl = "https://a.example"\nsecrets = ["short"]', r"services.a.secrets: must be whsec_"),
        ('[services.a]\nurl = "https://a.example"\nsecret = "x"', r"services.a: unknown 'secret'; known here"),
        ('[services.a]\nurl = "https://a.example"\ntimeout = 0', r"services.a.timeout: must be a number from"),
        ('[services.a]\nurl = "https://a.example"\nconcurrency = 1.5', r"services.a.concurrency: must be a number"),
        ('[services.a]\nurl = "https://a.example"\nretry = {attempts = 1}', r"services.a.retry: .*attempts"),
        ('[services.a]\nurl = "https://a.example"\nsecrets_env = "NO_SUCH"', "the environment has no NO_SUCH"),
        ('[urls]\nallow = "https://a.example"', r"urls.allow: must be a list"),
        ('[urls]\nallow = ["https://a.example/in/*"]', "has a [*] in its path"),
        ('[urls]\nallow = ["https://a.example/in?x=1"]', "must not have a query"),
        ('[urls]\nallow = ["a.example"]', r"urls.allow: must begin with https://"),
        ("x = [", "is not valid TOML"),
    ],
)
def test_a_mistake_in_the_register_is_named_at_the_start(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "services.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        Services.load(file)


def test_secrets_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILLING_SECRETS", f"{SECRET} whsec_{'B' * 32}")
    table = {"services": {"billing": {"url": "https://b.example", "secrets_env": "BILLING_SECRETS"}}}
    assert Services.read(table).by_name["billing"].terms.secrets == (SECRET, f"whsec_{'B' * 32}")


def test_terms_are_read_as_written() -> None:
    table = {
        "url": "https://b.example",
        "timeout": 3,
        "concurrency": 4,
        "max_rate": 5.5,
        "retry": {"delays": [1, 2]},
        "networks": ["10.0.0.0/8"],
    }
    terms = Services.read({"services": {"b": table}}).by_name["b"].terms
    assert (terms.timeout, terms.concurrency, terms.max_rate, terms.retry.max_attempts) == (3.0, 4, 5.5, 3)
    assert refusal("10.0.0.1", terms.allowed) is None
