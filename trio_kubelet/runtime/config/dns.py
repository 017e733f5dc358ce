"""A pod's resolver settings: from its DNS policy, the node's resolv.conf, and its dnsConfig.

Resolvers read only so much; what is beyond that is cut off here, and whoever asked for it is
told. The limits are those of glibc since 2.26 (KEP-2595): 3 nameservers, 32 search domains,
2048 characters. (API: PodSpec.dnsPolicy, PodSpec.dnsConfig)
"""

from collections.abc import Iterable
from enum import Enum, auto

from attrs import frozen

from trio_kubelet.errors import ConfigError
from trio_kubelet.foreign_text import is_unicode
from trio_kubelet.k8s import DNSPolicy, Pod, PodDNSConfig, PodDNSConfigOption
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.names import pod_full_name

_KEYWORDS = frozenset({"nameserver", "search", "options"})
MAX_NAMESERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_LINE_LENGTH = 2048
_MAX_SEARCH_LENGTH = 253
_CLUSTER_SEARCHES = 3
_CLUSTER_OPTIONS = ["ndots:5"]

DNS_CONFIG_FORMING = "DNSConfigForming"
MISSING_CLUSTER_DNS = "MissingClusterDNS"
CHECK_LIMITS_FOR_RESOLV_CONF = "CheckLimitsForResolvConf"


@frozen
class ResolvConf:
    """The content of a resolv.conf."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@frozen(kw_only=True)
class NodeDns:
    """The node's side: the settings clusterDNS and clusterDomain, and its resolv.conf.

    `resolv_conf` is None where the setting resolvConf is empty: pods that take the node's
    settings then ask the node itself. `node_ips` decide by which address.
    """

    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = ""
    resolv_conf: ResolvConf | None = None
    node_ips: tuple[str, ...] = ()


class DnsSource(Enum):
    """The settings that a pod's start from."""

    CLUSTER = auto()
    HOST = auto()
    NOTHING = auto()


@frozen
class DnsWarning:
    """An event of type Warning: for the pod, or for the node where `for_node`."""

    reason: str
    message: str
    for_node: bool = False


def parse_resolv_conf(text: str) -> ResolvConf:
    """The nameservers, search domains and options of a resolv.conf.

    Nameservers add up; of search and options lines the last one counts. A trailing dot of a
    search domain means nothing and goes. Raises ConfigError for a nameserver line without one, and
    for what is no UTF-8 (lone surrogates in the text) where it counts.
    """
    nameservers: list[str] = []
    searches: list[str] = []
    options: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        keyword, *values = line.split() or [""]
        if keyword in _KEYWORDS and not is_unicode(line):
            raise ConfigError(f"line {number} is not UTF-8 text")
        if keyword == "nameserver":
            if not values:
                raise ConfigError("nameserver list is empty")
            nameservers.append(values[0])
        elif keyword == "search":
            searches = [name if name == "." else name.removesuffix(".") for name in values]
        elif keyword == "options":
            options = values
    return ResolvConf(tuple(nameservers), tuple(searches), tuple(options))


def dns_config(pod: Pod, node: NodeDns) -> tuple[cri.DnsConfig, tuple[DnsWarning, ...]]:
    """The resolver settings of a pod's sandbox, and what its owner should be told."""
    warnings: list[DnsWarning] = []
    source = _source(pod)
    if source is DnsSource.CLUSTER and not node.cluster_dns:
        warnings.extend(_missing_cluster_dns(pod))
        source = DnsSource.HOST
    config = _base(pod, node, source)
    if pod.spec.dns_config is not None:
        _append(config, pod.spec.dns_config)
    warnings.extend(_fit(config))
    return config, tuple(warnings)


def resolv_conf_complaint(path: str, conf: ResolvConf, cluster_domain: str) -> str | None:
    """The message of the node's event `CheckLimitsForResolvConf`, or None if all is well."""
    allowed = MAX_SEARCHES - (_CLUSTER_SEARCHES if cluster_domain else 0)
    if len(conf.searches) > allowed:
        return (
            f"Resolv.conf file '{path}' contains search line consisting of more than"
            f" {allowed} domains!"
        )
    if any(len(search) > _MAX_SEARCH_LENGTH for search in conf.searches):
        return (
            f'Resolv.conf file "{path}" contains a search path which length is more than'
            f" allowed {_MAX_SEARCH_LENGTH} chars!"
        )
    if len(" ".join(conf.searches)) > MAX_SEARCH_LINE_LENGTH:
        return (
            f"Resolv.conf file '{path}' contains search line which length is more than"
            f" allowed {MAX_SEARCH_LINE_LENGTH} chars!"
        )
    return None


def _source(pod: Pod) -> DnsSource:
    policy = pod.spec.dns_policy or DNSPolicy.CLUSTER_FIRST
    if policy == DNSPolicy.NONE:
        return DnsSource.NOTHING
    if policy == DNSPolicy.DEFAULT:
        return DnsSource.HOST
    if policy == DNSPolicy.CLUSTER_FIRST and pod.spec.host_network:
        return DnsSource.HOST
    return DnsSource.CLUSTER


def _base(pod: Pod, node: NodeDns, source: DnsSource) -> cri.DnsConfig:
    if source is DnsSource.NOTHING:
        return cri.DnsConfig()
    host = node.resolv_conf or ResolvConf()
    if source is DnsSource.CLUSTER:
        searches = [*_cluster_searches(pod, node.cluster_domain), *host.searches]
        return cri.DnsConfig(
            servers=list(node.cluster_dns),
            searches=_unique(searches) if node.cluster_domain else searches,
            options=list(_CLUSTER_OPTIONS),
        )
    if node.resolv_conf is None:
        return cri.DnsConfig(servers=_local_servers(node.node_ips), searches=["."])
    return cri.DnsConfig(
        servers=list(host.nameservers), searches=list(host.searches), options=list(host.options)
    )


def _cluster_searches(pod: Pod, domain: str) -> tuple[str, ...]:
    if not domain:
        return ()
    return (f"{pod.metadata.namespace}.svc.{domain}", f"svc.{domain}", domain)


def _local_servers(node_ips: tuple[str, ...]) -> list[str]:
    return ["::1" if ":" in ip else "127.0.0.1" for ip in node_ips] or ["127.0.0.1"]


def _missing_cluster_dns(pod: Pod) -> tuple[DnsWarning, ...]:
    message = (
        "kubelet does not have ClusterDNS IP configured and cannot create Pod using"
        ' "ClusterFirst" policy. Falling back to "Default" policy.'
    )
    return (
        DnsWarning(MISSING_CLUSTER_DNS, message, for_node=True),
        DnsWarning(MISSING_CLUSTER_DNS, f'pod: "{pod_full_name(pod)}". {message}'),
    )


def _append(config: cri.DnsConfig, wanted: PodDNSConfig) -> None:
    config.servers = _unique([*config.servers, *wanted.nameservers])
    config.searches = _unique([*config.searches, *wanted.searches])
    config.options = _merged_options(config.options, wanted.options)


def _merged_options(configured: Iterable[str], wanted: Iterable[PodDNSConfigOption]) -> list[str]:
    options: dict[str, str] = {}
    for option in configured:
        name, _, value = option.partition(":")
        options[name] = value
    options.update({option.name: option.value or "" for option in wanted})
    return [f"{name}:{value}" if value else name for name, value in options.items()]


def _fit(config: cri.DnsConfig) -> Iterable[DnsWarning]:
    if len(config.servers) > MAX_NAMESERVERS:
        config.servers = config.servers[:MAX_NAMESERVERS]
        yield DnsWarning(
            DNS_CONFIG_FORMING,
            "Nameserver limits were exceeded, some nameservers have been omitted,"
            f" the applied nameserver line is: {' '.join(config.servers)}",
        )
    fitting = _fitting_searches(config.searches)
    if fitting != config.searches:
        config.searches = fitting
        yield DnsWarning(
            DNS_CONFIG_FORMING,
            "Search Line limits were exceeded, some search paths have been omitted,"
            f" the applied search line is: {' '.join(fitting)}",
        )


def _fitting_searches(searches: list[str]) -> list[str]:
    # One name beyond the length that DNS allows makes old resolvers abort.
    fitting = [name for name in searches[:MAX_SEARCHES] if len(name) <= _MAX_SEARCH_LENGTH]
    while len(" ".join(fitting)) > MAX_SEARCH_LINE_LENGTH:
        fitting.pop()
    return fitting


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
