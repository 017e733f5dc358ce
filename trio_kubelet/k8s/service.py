"""Services, which pods find in their environment variables."""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Mandatory, wire
from trio_kubelet.k8s.intstr import IntOrString
from trio_kubelet.k8s.meta import Condition, ObjectMeta


class ServiceType(StrEnum):
    """How a service is reached; an ExternalName has no address."""

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
    """How long a client stays with its pod."""

    timeout_seconds: Int32 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class SessionAffinityConfig(ApiType):
    """Settings of the session affinity."""

    client_ip: ClientIPConfig | None = field(default=None, metadata=wire("clientIP"))


@frozen(kw_only=True, repr=False, eq=False)
class ServiceSpec(ApiType):
    """Which pods a service leads to, and by what addresses and ports."""

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
    """Where the load balancer is reached."""

    ingress: tuple[LoadBalancerIngress, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class ServiceStatus(ApiType):
    """What became of a service."""

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
