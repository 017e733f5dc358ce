import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import ObjectMeta, Pod, PodDNSConfig, PodDNSConfigOption, PodSpec
from trio_kubelet.runtime.config.dns import (
    MAX_NAMESERVERS,
    MAX_SEARCH_LINE_LENGTH,
    MAX_SEARCHES,
    DnsWarning,
    NodeDns,
    ResolvConf,
    dns_config,
    parse_resolv_conf,
    resolv_conf_complaint,
)

HOST = ResolvConf(("192.0.2.53",), ("example.org",), ("timeout:2",))
NODE = NodeDns(cluster_dns=("10.96.0.10",), cluster_domain="cluster.local", resolv_conf=HOST)
CLUSTER_SEARCHES = ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"]


def pod(policy: str = "ClusterFirst", host_network: bool = False, **config: object) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="web", namespace="shop", uid="u-1"),
        spec=PodSpec(
            dns_policy=policy,
            host_network=host_network,
            dns_config=PodDNSConfig(**config) if config else None,  # type: ignore[arg-type]
        ),
    )


def settings(pod: Pod, node: NodeDns = NODE) -> tuple[list[str], list[str], list[str]]:
    config, warnings = dns_config(pod, node)
    assert not warnings
    return config.servers, config.searches, config.options


@pytest.mark.parametrize(
    ("text", "conf"),
    [
        ("", ResolvConf()),
        ("nameserver 1.2.3.4\nnameserver ::1 ignored", ResolvConf(("1.2.3.4", "::1"))),
        ("  nameserver\t1.2.3.4  ", ResolvConf(("1.2.3.4",))),
        ("search a.\nsearch b. c .", ResolvConf(searches=("b", "c", "."))),
        ("options ndots:1\noptions rotate edns0", ResolvConf(options=("rotate", "edns0"))),
        ("search a\nsearch", ResolvConf()),
        ("#nameserver 1.2.3.4\n# search a\n; search b\ndomain x", ResolvConf()),
        ("nameserver 1.2.3.4\r\nsearch a\r\n", ResolvConf(("1.2.3.4",), ("a",))),
    ],
)
def test_resolv_conf_is_read_as_resolvers_do(text: str, conf: ResolvConf) -> None:
    assert parse_resolv_conf(text) == conf


def test_a_nameserver_line_without_a_nameserver_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nameserver list is empty"):
        parse_resolv_conf("nameserver\n")


def test_cluster_first_puts_the_cluster_before_the_host() -> None:
    expected = ["10.96.0.10"], [*CLUSTER_SEARCHES, "example.org"], ["ndots:5"]
    assert settings(pod()) == expected
    assert settings(pod("")) == expected
    assert settings(pod("ClusterFirstWithHostNet", host_network=True)) == expected


def test_a_search_domain_of_the_cluster_is_not_repeated_for_the_host() -> None:
    node = NodeDns(
        cluster_dns=("10.96.0.10",),
        cluster_domain="cluster.local",
        resolv_conf=ResolvConf(searches=("cluster.local", "a", "a")),
    )
    assert settings(pod(), node)[1] == [*CLUSTER_SEARCHES, "a"]


def test_without_a_cluster_domain_there_are_only_the_hosts_searches() -> None:
    node = NodeDns(cluster_dns=("10.96.0.10",), resolv_conf=HOST)
    assert settings(pod(), node) == (["10.96.0.10"], ["example.org"], ["ndots:5"])


def test_default_and_host_network_take_the_hosts_settings() -> None:
    expected = ["192.0.2.53"], ["example.org"], ["timeout:2"]
    assert settings(pod("Default")) == expected
    assert settings(pod("ClusterFirst", host_network=True)) == expected


def test_none_takes_nothing() -> None:
    assert settings(pod("None")) == ([], [], [])


def test_what_the_pod_adds_is_merged() -> None:
    added = pod(
        "Default",
        nameservers=("192.0.2.53", "192.0.2.1"),
        searches=("a", "example.org"),
        options=(
            PodDNSConfigOption(name="timeout", value="9"),
            PodDNSConfigOption(name="edns0"),
            PodDNSConfigOption(name="rotate", value=""),
        ),
    )
    assert settings(added) == (
        ["192.0.2.53", "192.0.2.1"],
        ["example.org", "a"],
        ["timeout:9", "edns0", "rotate"],
    )


@pytest.mark.parametrize(
    ("node_ips", "servers"),
    [
        ((), ["127.0.0.1"]),
        (("192.0.2.1",), ["127.0.0.1"]),
        (("2001:db8::1",), ["::1"]),
        (("192.0.2.1", "2001:db8::1"), ["127.0.0.1", "::1"]),
    ],
)
def test_an_empty_setting_for_resolv_conf_disables_look_ups(
    node_ips: tuple[str, ...], servers: list[str]
) -> None:
    assert settings(pod("Default"), NodeDns(node_ips=node_ips)) == (servers, ["."], [])


def test_without_cluster_dns_pod_and_node_are_warned_and_the_host_serves() -> None:
    config, warnings = dns_config(pod(), NodeDns(resolv_conf=HOST))
    message = (
        "kubelet does not have ClusterDNS IP configured and cannot create Pod using"
        ' "ClusterFirst" policy. Falling back to "Default" policy.'
    )
    assert config.servers == ["192.0.2.53"]
    assert warnings == (
        DnsWarning("MissingClusterDNS", message, for_node=True),
        DnsWarning("MissingClusterDNS", f'pod: "web_shop(u-1)". {message}'),
    )


def test_a_fourth_nameserver_is_left_out_and_told_of() -> None:
    config, warnings = dns_config(pod("None", nameservers=("1", "2", "3", "4")), NODE)
    assert config.servers == ["1", "2", "3"]
    assert warnings == (
        DnsWarning(
            "DNSConfigForming",
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied"
            " nameserver line is: 1 2 3",
        ),
    )


@pytest.mark.parametrize(
    ("searches", "applied"),
    [
        (tuple(f"s{n}" for n in range(33)), [f"s{n}" for n in range(32)]),
        (("a", "b" * 254, "c"), ["a", "c"]),
        (
            tuple(f"{n:02}{'x' * 198}" for n in range(11)),
            [f"{n:02}{'x' * 198}" for n in range(10)],
        ),
    ],
)
def test_search_domains_beyond_the_limits_are_left_out_and_told_of(
    searches: tuple[str, ...], applied: list[str]
) -> None:
    config, warnings = dns_config(pod("None", searches=searches), NODE)
    assert config.searches == applied
    assert warnings == (
        DnsWarning(
            "DNSConfigForming",
            "Search Line limits were exceeded, some search paths have been omitted, the applied"
            f" search line is: {' '.join(applied)}",
        ),
    )


NAMES = st.lists(st.text(alphabet="ab.", max_size=300), max_size=40).map(tuple)


@given(NAMES, NAMES, st.sampled_from(["ClusterFirst", "Default", "None"]))
def test_settings_always_fit_and_keep_their_order(
    host: tuple[str, ...], own: tuple[str, ...], policy: str
) -> None:
    node = NodeDns(
        cluster_dns=("10.96.0.10",), cluster_domain="c", resolv_conf=ResolvConf(host, host)
    )
    config, warnings = dns_config(pod(policy, nameservers=own, searches=own), node)
    assert len(config.servers) <= MAX_NAMESERVERS
    assert len(config.searches) <= MAX_SEARCHES
    assert len(" ".join(config.searches)) <= MAX_SEARCH_LINE_LENGTH
    assert all(len(search) <= 253 for search in config.searches)
    asked_for = {
        "ClusterFirst": ("shop.svc.c", "svc.c", "c", *host, *own),
        "Default": (*host, *own),
        "None": own,
    }[policy]
    order = list(dict.fromkeys(asked_for))
    assert config.searches == [name for name in order if name in config.searches]
    told = any("Search Line" in warning.message for warning in warnings)
    assert told == (len(config.searches) < len(order))


@pytest.mark.parametrize(
    ("searches", "domain", "complaint"),
    [
        (("a",) * 29, "cluster.local", None),
        (("a",) * 32, "", None),
        (
            ("a",) * 30,
            "cluster.local",
            "Resolv.conf file '/r' contains search line consisting of more than 29 domains!",
        ),
        (
            ("a" * 254,),
            "",
            'Resolv.conf file "/r" contains a search path which length is more than allowed'
            " 253 chars!",
        ),
        (
            ("a" * 250,) * 9,
            "",
            "Resolv.conf file '/r' contains search line which length is more than allowed"
            " 2048 chars!",
        ),
    ],
)
def test_the_hosts_file_is_complained_about_once_it_leaves_no_room(
    searches: tuple[str, ...], domain: str, complaint: str | None
) -> None:
    assert resolv_conf_complaint("/r", ResolvConf(searches=searches), domain) == complaint


@pytest.mark.parametrize("line", ["nameserver 192.0.2.\udcff", "search a\udcff", "options \udcff"])
def test_a_line_that_counts_must_be_text(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2 is not UTF-8 text"):
        parse_resolv_conf(f"# \udcff\n{line}\n")


def test_a_comment_may_hold_any_bytes() -> None:
    assert parse_resolv_conf("# \udcff\nnameserver 192.0.2.1\r\n").nameservers == ("192.0.2.1",)
