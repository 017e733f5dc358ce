import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import HostAlias, ObjectMeta, Pod, PodSpec
from trio_kubelet.runtime.config.hostname import (
    PodHostname,
    etc_hosts,
    kernel_hostname,
    pod_hostname,
)

LOCALHOST = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


def pod(name: str = "web", **spec: object) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="shop", uid="u-1"),
        spec=PodSpec(**spec),  # type: ignore[arg-type]
    )


def hostname(pod: Pod) -> PodHostname:
    return pod_hostname(pod, "cluster.local")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (pod(), PodHostname("web")),
        (pod(hostname="db-0"), PodHostname("db-0")),
        (pod(subdomain="db"), PodHostname("web", "db.shop.svc.cluster.local")),
        (pod(hostname="a", subdomain="b"), PodHostname("a", "b.shop.svc.cluster.local")),
        (pod("a.b.c"), PodHostname("a.b.c")),
        (pod("a" * 63), PodHostname("a" * 63)),
        (pod("a" * 64), PodHostname("a" * 63)),
        (pod("a" * 60 + "--.bc"), PodHostname("a" * 60)),
        (pod(hostname_override="x.example.org"), PodHostname("x.example.org")),
        (
            pod(hostname_override="x.example.org", hostname="a", subdomain="b"),
            PodHostname("x.example.org"),
        ),
    ],
)
def test_the_name_is_the_pods_unless_it_asks_for_another(pod: Pod, expected: PodHostname) -> None:
    assert hostname(pod) == expected


@pytest.mark.parametrize(
    "pod",
    [
        pod(hostname="No_Good"),
        pod(hostname="a.b"),
        pod(hostname="a" * 64),
        pod(subdomain="-a"),
        pod(subdomain="a.b"),
        pod(hostname_override="a..b"),
        pod("-" * 70),
    ],
)
def test_names_that_dns_forbids_are_errors(pod: Pod) -> None:
    with pytest.raises(ConfigError, match="valid"):
        hostname(pod)


def test_the_kernel_gets_the_short_name_unless_the_full_one_is_wanted() -> None:
    short = pod(subdomain="db")
    full = pod(subdomain="db", set_hostname_as_fqdn=True)
    assert kernel_hostname(short, hostname(short)) == "web"
    assert kernel_hostname(full, hostname(full)) == "web.db.shop.svc.cluster.local"


def test_the_full_name_needs_a_subdomain() -> None:
    without = pod(set_hostname_as_fqdn=True)
    assert kernel_hostname(without, hostname(without)) == "web"


def test_on_the_hosts_network_the_name_is_the_hosts() -> None:
    shared = pod(host_network=True, subdomain="db", set_hostname_as_fqdn=True)
    assert kernel_hostname(shared, hostname(shared)) == ""


def test_a_full_name_has_64_characters_at_most() -> None:
    rest = ".db.shop.svc.cluster.local"
    fits = pod("a" * (64 - len(rest)), subdomain="db", set_hostname_as_fqdn=True)
    assert len(kernel_hostname(fits, hostname(fits))) == 64
    too_long = pod("a" * (65 - len(rest)), subdomain="db", set_hostname_as_fqdn=True)
    with pytest.raises(ConfigError) as caught:
        kernel_hostname(too_long, hostname(too_long))
    assert caught.value.message == (
        "failed to construct FQDN from pod hostname and cluster domain, FQDN"
        f" {'a' * (65 - len(rest))}{rest} is too long (64 characters is the max, 65 characters"
        " requested)"
    )


@given(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True))
def test_every_name_of_a_pod_becomes_one_that_fits(name: str) -> None:
    made = hostname(pod(name)).name
    assert name.startswith(made)
    assert 0 < len(made) <= 63
    assert made[-1] not in "-."


def test_the_hosts_file_names_the_pod_by_its_addresses() -> None:
    own = pod()
    assert etc_hosts(own, ("10.0.0.5", "fd00::5"), hostname(own)) == (
        f"# Kubernetes-managed hosts file.\n{LOCALHOST}10.0.0.5\tweb\nfd00::5\tweb\n"
    )


def test_the_hosts_file_has_the_full_name_first() -> None:
    own = pod(subdomain="db")
    assert etc_hosts(own, ("10.0.0.5",), hostname(own)).endswith(
        "10.0.0.5\tweb.db.shop.svc.cluster.local\tweb\n"
    )


def test_aliases_follow_below_a_comment() -> None:
    aliases = (
        HostAlias(ip="192.0.2.7", hostnames=("seven.example", "seven")),
        HostAlias(ip="192.0.2.8", hostnames=("eight",)),
    )
    own = pod(host_aliases=aliases)
    assert etc_hosts(own, ("10.0.0.5",), hostname(own)).endswith(
        "10.0.0.5\tweb\n"
        "\n# Entries added by HostAliases.\n192.0.2.7\tseven.example\tseven\n192.0.2.8\teight\n"
    )


def test_on_the_hosts_network_the_file_is_the_hosts() -> None:
    aliases = (HostAlias(ip="192.0.2.7", hostnames=("seven",)),)
    shared = pod(host_network=True, host_aliases=aliases)
    assert etc_hosts(shared, (), hostname(shared), "127.0.0.1 localhost host-1\n") == (
        "# Kubernetes-managed hosts file (host network).\n"
        "127.0.0.1 localhost host-1\n"
        "\n# Entries added by HostAliases.\n192.0.2.7\tseven\n"
    )
