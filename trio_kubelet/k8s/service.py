"""Services, which pods find in their environment variables."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Mandatory, wire
from trio_kubelet.k8s.intstr import IntOrString
from trio_kubelet.k8s.meta import Condition, ObjectMeta


class ServiceType(StrEnum):
    """The kinds of services; an ExternalName has no address."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"
    EXTERNAL_NAME = "ExternalName"


@frozen(kw_only=True, repr=False, eq=False)
class ServicePort(ApiType):
    """A port of a service and what it leads to."""

    name: str = ""
    protocol: str = ""
    app_protocol: str = ""
    port: Mandatory[Int32] = 0
    target_port: IntOrString | None = None
    node_port: Int32 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ClientIPConfig(ApiType):
    """The affinity of a client to its pod."""

    timeout_seconds: Int32 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class SessionAffinityConfig(ApiType):
    """Settings of the session affinity."""

    client_ip: ClientIPConfig | None = field(default=None, metadata=wire("clientIP"))


@frozen(kw_only=True, repr=False, eq=False)
class ServiceSpec(ApiType):
    """The pods, addresses and ports of a service."""

    type: str = ""
    selector: Mapping[str, str] = field(factory=dict)
    ports: tuple[ServicePort, ...] = ()
    cluster_ip: str = field(default="", metadata=wire("clusterIP"))
    cluster_ips: tuple[str, ...] = field(default=(), metadata=wire("clusterIPs"))
    external_ips: tuple[str, ...] = field(default=(), metadata=wire("externalIPs"))
    external_name: str = ""
    ip_families: tuple[str, ...] = ()
    ip_family_policy: str = ""

    session_affinity: str = ""
    session_affinity_config: SessionAffinityConfig | None = None
    publish_not_ready_addresses: bool | None = None
    internal_traffic_policy: str = ""
    external_traffic_policy: str = ""
    traffic_distribution: str = ""

    health_check_node_port: Int32 | None = None
    allocate_load_balancer_node_ports: bool | None = None
    load_balancer_class: str = ""
    load_balancer_ip: str = field(default="", metadata=wire("loadBalancerIP"))
    load_balancer_source_ranges: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class PortStatus(ApiType):
    """A port of a load balancer."""

    port: Mandatory[Int32] = 0
    protocol: Mandatory[str] = ""
    error: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class LoadBalancerIngress(ApiType):
    """An address of a load balancer."""

    hostname: str = ""
    ip: str = ""
    ip_mode: str = ""
    ports: tuple[PortStatus, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class LoadBalancerStatus(ApiType):
    """An address of the load balancer."""

    ingress: tuple[LoadBalancerIngress, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class ServiceStatus(ApiType):
    """The status of a service."""

    conditions: tuple[Condition, ...] = ()
    load_balancer: LoadBalancerStatus | None = None


@frozen(kw_only=True, repr=False, eq=False)
class Service(ApiType):
    """A service."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: ServiceSpec = field(factory=ServiceSpec)
    status: ServiceStatus = field(factory=ServiceStatus)


MOST_PORTS = 1000
"""Of one service, of which containers are told: all services of a cluster are kept by each node."""

_READ = {
    "metadata": {"name", "namespace", "uid", "resourceVersion"},
    "spec": {"clusterIP", "ports"},
}


def lighten_service(data: dict[str, Any]) -> None:
    """Leave of a service what its variables are made of."""
    data.pop("status", None)
    for part, names in _READ.items():
        values = data.get(part)
        if isinstance(values, dict):
            data[part] = {name: value for name, value in values.items() if name in names}
    ports = data["spec"].get("ports") if isinstance(data.get("spec"), dict) else None
    if isinstance(ports, list):
        data["spec"]["ports"] = ports[:MOST_PORTS]
