"""Ports, host names and the resolver."""

from collections.abc import Iterable, Iterator

from trio_kubelet.k8s.container import Container, ContainerPort, Protocol
from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    duplicate,
    forbidden,
    invalid,
    required,
    unsupported,
)
from trio_kubelet.k8s.pod import DNSPolicy, PodDNSConfig, PodSpec
from trio_kubelet.k8s.validation import formats

MOST_NAMESERVERS = 3
MOST_SEARCHES = 32
LONGEST_SEARCH_LIST = 2048
LONGEST_HOSTNAME_OVERRIDE = 64


def check_ports(ports: tuple[ContainerPort, ...], path: str) -> Iterator[FieldError]:
    """Check the ports of one container."""
    names: set[str] = set()
    for index, port in enumerate(ports):
        where = f"{path}[{index}]"
        if port.name:
            yield from all_invalid(f"{where}.name", port.name, formats.port_name(port.name))
            if port.name in names:
                yield duplicate(f"{where}.name", port.name)
            names.add(port.name)
        if not port.container_port:
            yield required(f"{where}.containerPort")
        else:
            problems = formats.port_number(port.container_port)
            yield from all_invalid(f"{where}.containerPort", port.container_port, problems)
        if port.host_port:
            problems = formats.port_number(port.host_port)
            yield from all_invalid(f"{where}.hostPort", port.host_port, problems)
        if not port.protocol:
            yield required(f"{where}.protocol")
        elif port.protocol not in list(Protocol):
            yield unsupported(f"{where}.protocol", port.protocol, Protocol)
        if port.host_ip:
            yield from all_invalid(
                f"{where}.hostIP", port.host_ip, formats.ip_address(port.host_ip)
            )


def check_host_ports(containers: Iterable[tuple[str, Container]]) -> Iterator[FieldError]:
    """Check that containers that run together do not ask for the same port of the node."""
    taken: set[str] = set()
    for path, container in containers:
        for index, port in enumerate(container.ports):
            if not port.host_port:
                continue
            wanted = f"{port.protocol}/{port.host_ip}/{port.host_port}"
            if wanted in taken:
                yield duplicate(f"{path}.ports[{index}].hostPort", wanted)
            taken.add(wanted)


def check_host_network_ports(spec: PodSpec) -> Iterator[FieldError]:
    """Check that ports of a pod in the node's network are what they are on the node."""
    if not spec.host_network:
        return
    for container_index, container in enumerate(spec.containers):
        for index, port in enumerate(container.ports):
            if (port.host_port or 0) != port.container_port:
                where = f"spec.containers[{container_index}].ports[{index}].hostPort"
                detail = "must match `containerPort` when `hostNetwork` is true"
                yield invalid(where, port.host_port or 0, detail)


def check_names(spec: PodSpec) -> Iterator[FieldError]:
    """Check the host name of the pod and the names that it adds to its hosts file."""
    labels = {"hostname": spec.hostname, "subdomain": spec.subdomain}
    for name, value in labels.items():
        if value:
            yield from all_invalid(f"spec.{name}", value, formats.dns_label(value))
    for index, alias in enumerate(spec.host_aliases):
        where = f"spec.hostAliases[{index}]"
        yield from all_invalid(f"{where}.ip", alias.ip, formats.ip_address(alias.ip))
        for place, name in enumerate(alias.hostnames):
            problems = formats.dns_subdomain(name)
            yield from all_invalid(f"{where}.hostnames[{place}]", name, problems)
    yield from _check_hostname_override(spec, "spec.hostnameOverride")


def _check_hostname_override(spec: PodSpec, path: str) -> Iterator[FieldError]:
    """Check the name that replaces the pod's host name altogether (KEP-4762)."""
    name = spec.hostname_override
    if not name:
        return
    yield from all_invalid(path, name, formats.dns_subdomain(name))
    if len(name) > LONGEST_HOSTNAME_OVERRIDE:
        yield invalid(path, name, f"must be no more than {LONGEST_HOSTNAME_OVERRIDE} characters")
    if spec.host_network:
        yield forbidden(path, "may not be set when `hostNetwork` is true")
    if spec.set_hostname_as_fqdn:
        yield forbidden(path, "may not be set when `setHostnameAsFQDN` is true")


def check_dns(spec: PodSpec) -> Iterator[FieldError]:
    """Check the resolver settings."""
    policy, config = spec.dns_policy, spec.dns_config
    if not policy:
        yield required("spec.dnsPolicy")
    elif policy not in list(DNSPolicy):
        yield unsupported("spec.dnsPolicy", policy, DNSPolicy)
    if policy == DNSPolicy.NONE:
        if config is None:
            yield required("spec.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None")
        elif not config.nameservers:
            detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            yield required("spec.dnsConfig.nameservers", detail)
    if config is not None:
        yield from _check_dns_config(config, "spec.dnsConfig")


def _check_dns_config(config: PodDNSConfig, path: str) -> Iterator[FieldError]:
    servers, searches = list(config.nameservers), list(config.searches)
    if len(servers) > MOST_NAMESERVERS:
        detail = f"must not have more than {MOST_NAMESERVERS} nameservers"
        yield invalid(f"{path}.nameservers", servers, detail)
    for index, server in enumerate(servers):
        yield from all_invalid(f"{path}.nameservers[{index}]", server, formats.ip_address(server))
    if len(searches) > MOST_SEARCHES:
        detail = f"must not have more than {MOST_SEARCHES} search paths"
        yield invalid(f"{path}.searches", searches, detail)
    if len(" ".join(searches)) > LONGEST_SEARCH_LIST:
        detail = (
            f"must not have more than {LONGEST_SEARCH_LIST} characters (including spaces)"
            " in the search list"
        )
        yield invalid(f"{path}.searches", searches, detail)
    for index, search in enumerate(searches):
        problems = formats.dns_search_path(search)
        yield from all_invalid(f"{path}.searches[{index}]", search, problems)
    for index, option in enumerate(config.options):
        if not option.name:
            yield required(f"{path}.options[{index}]", "must not be empty")
