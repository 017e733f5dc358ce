"""The pod: what the node is asked to run (`spec`) and what it reports (`status`)."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Int64, Mandatory, wire
from trio_kubelet.k8s.container import Container, EphemeralContainer
from trio_kubelet.k8s.meta import ListMeta, LocalObjectReference, ObjectMeta
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.resources import PodResourceClaim, ResourceRequirements
from trio_kubelet.k8s.scheduling import Affinity, Toleration, TopologySpreadConstraint
from trio_kubelet.k8s.security import PodSecurityContext
from trio_kubelet.k8s.status import PodStatus
from trio_kubelet.k8s.totals import total_limits, total_requests
from trio_kubelet.k8s.volumes import Volume


class DNSPolicy(StrEnum):
    """The source of the resolver's settings."""

    CLUSTER_FIRST_WITH_HOST_NET = "ClusterFirstWithHostNet"
    CLUSTER_FIRST = "ClusterFirst"
    DEFAULT = "Default"
    NONE = "None"


class PreemptionPolicy(StrEnum):
    """True if the pod may push out others."""

    PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"
    NEVER = "Never"


class OSName(StrEnum):
    """The operating systems a pod can be made for."""

    LINUX = "linux"
    WINDOWS = "windows"


@frozen(kw_only=True, repr=False, eq=False)
class PodDNSConfigOption(ApiType):
    """A resolver option; one without a value stands alone."""

    name: str = ""
    value: str | None = None


@frozen(kw_only=True, repr=False, eq=False)
class PodDNSConfig(ApiType):
    """Resolver settings that are added to those of the DNS policy."""

    nameservers: tuple[str, ...] = ()
    options: tuple[PodDNSConfigOption, ...] = ()
    searches: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class HostAlias(ApiType):
    """A line for the hosts file of the pod."""

    hostnames: tuple[str, ...] = ()
    ip: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class PodOS(ApiType):
    """The operating system the pod is made for; a node of another one rejects it."""

    name: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class PodReadinessGate(ApiType):
    """A condition that others set and that the pod's readiness waits for."""

    condition_type: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class PodSchedulingGate(ApiType):
    """A hold on scheduling."""

    name: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class PodSchedulingGroup(ApiType):
    """The group that the pod is scheduled with."""

    pod_group_name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class PodSpec(ApiType):
    """The wish for a pod: what runs, how long, with what, how isolated, under which names, where.

    `service_account` is the old name of `service_account_name`. `resources` are the pod's own
    (KEP-2837), beside those of its containers.
    """

    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[EphemeralContainer, ...] = ()
    volumes: tuple[Volume, ...] = ()
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    service_account_name: str = ""
    service_account: str = ""
    automount_service_account_token: bool | None = None
    enable_service_links: bool | None = None

    restart_policy: str = ""
    termination_grace_period_seconds: Int64 | None = None
    active_deadline_seconds: Int64 | None = None
    readiness_gates: tuple[PodReadinessGate, ...] = ()

    os: PodOS | None = None
    runtime_class_name: str = ""
    overhead: Mapping[str, Quantity] = field(factory=dict)
    resources: ResourceRequirements | None = None
    resource_claims: tuple[PodResourceClaim, ...] = ()

    security_context: PodSecurityContext | None = None
    host_network: bool | None = None
    host_pid: bool | None = field(default=None, metadata=wire("hostPID"))
    host_ipc: bool | None = field(default=None, metadata=wire("hostIPC"))
    host_users: bool | None = None
    share_process_namespace: bool | None = None

    hostname: str = ""
    subdomain: str = ""
    hostname_override: str = ""
    set_hostname_as_fqdn: bool | None = field(default=None, metadata=wire("setHostnameAsFQDN"))
    host_aliases: tuple[HostAlias, ...] = ()
    dns_policy: str = ""
    dns_config: PodDNSConfig | None = None

    node_name: str = ""
    priority: Int32 | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    scheduling_group: PodSchedulingGroup | None = None
    node_selector: Mapping[str, str] = field(factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """Its containers of all kinds: init containers, regular and ephemeral ones."""
        return (*self.init_containers, *self.containers, *self.ephemeral_containers)

    @property
    def admitted_containers(self) -> tuple[Container, ...]:
        """Its containers at its admission: init containers, then regular ones, none ephemeral."""
        return (*self.init_containers, *self.containers)

    # Summed up once for each spec: the admission of any pod asks for the sums of all others.

    @cached_property
    def total_requests(self) -> Mapping[str, Quantity]:
        """The requests of its containers together, at the time at which they are the most."""
        return total_requests(self)

    @cached_property
    def total_limits(self) -> Mapping[str, Quantity]:
        """The sum of the limits that are set."""
        return total_limits(self)


@frozen(kw_only=True, repr=False, eq=False)
class Pod(ApiType):
    """A pod. `metadata`, `spec` and `status` are always there, empty if need be."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: PodSpec = field(factory=PodSpec)
    status: PodStatus = field(factory=PodStatus)


@frozen(kw_only=True, repr=False, eq=False)
class PodList(ApiType):
    """Pods, as one answer of the API server or one manifest."""

    api_version: str = ""
    kind: str = ""
    metadata: ListMeta | None = None
    items: Mandatory[tuple[Pod, ...]] = ()
