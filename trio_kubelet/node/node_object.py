"""The Node object as this node would have it: pure functions of what the node is and what is seen.

`initial_node` is what is created; `adopted_node` is an object of an earlier agent, of the Go
kubelet or of an administrator, with what belongs to a node put right; `updated_node` is a report.
Labels that others set stay; taints are only set at creation (a node may not change its own later,
NodeRestriction). `node_status` fills a status part by part, each in a small function. What it does
not know of in the previous status stays: conditions and resources of others, volumes that a
controller attached. `has_changed` tells whether the API server must hear of it before the next
report is due.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from attrs import evolve

from trio_kubelet import KUBERNETES_VERSION
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.k8s import (
    ARCH_LABEL,
    OS_LABEL,
    USER_NAMESPACES_WITH_HOST_NETWORK,
    DaemonEndpoint,
    Node,
    NodeCondition,
    NodeDaemonEndpoints,
    NodeSpec,
    NodeStatus,
    NodeSwapStatus,
    NodeSystemInfo,
    ObjectMeta,
    Quantity,
    Taint,
    Time,
)
from trio_kubelet.k8s.validation.resources import is_extended
from trio_kubelet.node.allocatable import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    Resources,
    hugepage_names,
)
from trio_kubelet.node.conditions import OWN_CONDITIONS, node_conditions
from trio_kubelet.node.machine import OPERATING_SYSTEM
from trio_kubelet.node.observer import Observation
from trio_kubelet.node.profile import (
    IMPLEMENTED_FEATURES,
    NodeProfile,
    is_unspecified,
    node_addresses,
)
from trio_kubelet.runtime.handlers import RuntimeFeatures

HOSTNAME_LABEL = "kubernetes.io/hostname"
OWN_LABELS = (
    HOSTNAME_LABEL,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    OS_LABEL,
    ARCH_LABEL,
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
)
"""Labels that are put right on a node that is there, where this node has a value for them."""

CONTROLLER_ATTACHES = "volumes.kubernetes.io/controller-managed-attach-detach"
"""Annotation: the attach-detach controller, not the node, attaches volumes."""

UNINITIALIZED = Taint(
    key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect="NoSchedule"
)
"""Keeps pods away until an external cloud provider has looked at the node."""


def initial_node(profile: NodeProfile, observed: Observation, now: Time) -> Node:
    """The object that is created for a node that the cluster does not know."""
    configuration = profile.configuration
    attaches = configuration.enable_controller_attach_detach
    annotations = {CONTROLLER_ATTACHES: "true"} if attaches else {}
    taints = [
        Taint(key=taint.key, value=taint.value, effect=taint.effect)
        for taint in configuration.register_with_taints
    ]
    if profile.has_external_cloud_provider:
        taints.append(UNINITIALIZED)
    return Node(
        api_version="v1",
        kind="Node",
        metadata=ObjectMeta(
            name=profile.name,
            labels={**default_labels(profile), **profile.settings.options.node_labels},
            annotations=node_ip_annotated(profile, annotations),
        ),
        spec=NodeSpec(taints=tuple(taints), provider_id=configuration.provider_id),
        status=node_status(profile, observed, NodeStatus(), now),
    )


def default_labels(profile: NodeProfile) -> Mapping[str, str]:
    """The labels of any node; --node-labels may overwrite them."""
    architecture = profile.machine.architecture
    return {
        HOSTNAME_LABEL: profile.name,
        OS_LABEL: OPERATING_SYSTEM,
        ARCH_LABEL: architecture,
        "beta.kubernetes.io/os": OPERATING_SYSTEM,
        "beta.kubernetes.io/arch": architecture,
    }


def adopted_node(initial: Node, existing: Node) -> Node:
    """An object that is there, with what this node would have made otherwise put right.

    Equal to `existing` where nothing is to be done.
    """
    metadata = evolve(
        existing.metadata,
        labels=_labels(initial.metadata.labels, existing.metadata.labels),
        annotations=_annotations(initial.metadata.annotations, existing.metadata.annotations),
    )
    capacity = existing.status.capacity or initial.status.capacity
    allocatable = existing.status.allocatable or initial.status.allocatable
    status = evolve(
        existing.status,
        capacity=_resources(initial.status.capacity, capacity),
        allocatable=_resources(initial.status.allocatable, allocatable),
    )
    return evolve(existing, metadata=metadata, status=status)


def _labels(initial: Mapping[str, str], existing: Mapping[str, str]) -> Mapping[str, str]:
    """An own label that this node wants empty is taken off."""
    own = {name: initial[name] for name in OWN_LABELS if name in initial}
    merged = {**existing, **own}
    return {name: value for name, value in merged.items() if value or name not in own}


def _annotations(initial: Mapping[str, str], existing: Mapping[str, str]) -> Mapping[str, str]:
    others = {name: value for name, value in existing.items() if name != CONTROLLER_ATTACHES}
    if CONTROLLER_ATTACHES not in initial:
        return others
    return {**others, CONTROLLER_ATTACHES: initial[CONTROLLER_ATTACHES]}


def _resources(initial: Resources, existing: Resources) -> Resources:
    """Huge pages as they are now, extended resources at zero until their plugins come back."""
    pages = {name: initial[name] for name in hugepage_names(initial)}
    others = {
        name: Quantity(0) if is_extended(name) else amount
        for name, amount in existing.items()
        if name not in hugepage_names(existing)
    }
    return {**others, **pages}


NODE_IP_ANNOTATION = "alpha.kubernetes.io/provided-node-ip"
"""Tells an external cloud provider which address --node-ip asks for."""

Setter: TypeAlias = Callable[[NodeStatus, NodeProfile, Observation], NodeStatus]


def node_status(
    profile: NodeProfile, observed: Observation, previous: NodeStatus, now: Time
) -> NodeStatus:
    """The status as it is `now`, made from the one that the API server knows."""
    status = previous
    for setter in SETTERS:
        status = setter(status, profile, observed)
    errors = (*observed.errors, *_missing_capacity(status, profile))
    return evolve(
        status,
        conditions=node_conditions(previous.conditions, observed.pressures, errors, now),
    )


def updated_node(profile: NodeProfile, observed: Observation, node: Node, now: Time) -> Node:
    """The node with its status as it is now, and the metadata that must hold at any time."""
    labels = dict(node.metadata.labels)
    labels[OS_LABEL], labels[ARCH_LABEL] = OPERATING_SYSTEM, profile.machine.architecture
    metadata = evolve(
        node.metadata,
        labels=labels,
        annotations=node_ip_annotated(profile, node.metadata.annotations),
    )
    status = node_status(profile, observed, node.status, now)
    return evolve(node, metadata=metadata, status=status)


def has_changed(before: Node, after: Node) -> bool:
    """True if a node differs in more than the times of its heartbeats."""
    return (
        before.metadata.labels != after.metadata.labels
        or before.metadata.annotations != after.metadata.annotations
        or _timeless(before.status) != _timeless(after.status)
    )


def node_ip_annotated(profile: NodeProfile, annotations: Mapping[str, str]) -> Mapping[str, str]:
    """The annotations with the address that a cloud provider shall take, or without."""
    others = {key: value for key, value in annotations.items() if key != NODE_IP_ANNOTATION}
    specified = _specified(profile)
    if not profile.has_external_cloud_provider or not specified:
        return others
    return others | {NODE_IP_ANNOTATION: ",".join(specified)}


def declared_features(gates: FeatureGates, runtime: RuntimeFeatures) -> frozenset[str]:
    """The features that the scheduler may count on here, by name (KEP-5328).

    Each has a gate of its own name. Some need the runtime, too.
    """
    if not gates["NodeDeclaredFeatures"]:
        return frozenset()
    features = {name for name in IMPLEMENTED_FEATURES if gates[name]}
    if not runtime.host_network_user_namespaces:
        features.discard(USER_NAMESPACES_WITH_HOST_NETWORK)
    return frozenset(features)


def _set_addresses(status: NodeStatus, profile: NodeProfile, observed: Observation) -> NodeStatus:
    if profile.has_external_cloud_provider:
        if status.addresses:
            return status  # the cloud provider's word counts more
        if not profile.node_ips:
            return evolve(status, addresses=node_addresses((), profile.name))
    if observed.addresses is None:
        return status
    return evolve(status, addresses=node_addresses(observed.addresses, profile.name))


def _set_resources(status: NodeStatus, profile: NodeProfile, _: Observation) -> NodeStatus:
    own = profile.resources
    foreign = {name: n for name, n in status.capacity.items() if name not in own.capacity}
    others = {
        name: amount
        for name, amount in status.allocatable.items()
        if name not in status.capacity and not is_extended(name)
    }
    return evolve(
        status,
        capacity={**foreign, **own.capacity},
        allocatable={**others, **foreign, **own.allocatable},
    )


def _set_info(status: NodeStatus, profile: NodeProfile, observed: Observation) -> NodeStatus:
    machine = profile.machine
    swap = None
    if profile.settings.gates["NodeSwap"] and machine.swap_bytes:
        swap = NodeSwapStatus(capacity=machine.swap_bytes)
    known = status.node_info.container_runtime_version if status.node_info is not None else ""
    info = NodeSystemInfo(
        machine_id=machine.machine_id,
        system_uuid=machine.system_uuid,
        boot_id=machine.boot_id,
        kernel_version=machine.kernel_version,
        os_image=machine.os_image,
        container_runtime_version=observed.runtime or known,
        kubelet_version=profile.settings.options.version or KUBERNETES_VERSION,
        operating_system=OPERATING_SYSTEM,
        architecture=machine.architecture,
        swap=swap,
    )
    return evolve(status, node_info=info)


def _set_endpoints(status: NodeStatus, profile: NodeProfile, _: Observation) -> NodeStatus:
    """The port of the server; of one that is switched off nothing is told."""
    configuration = profile.configuration
    endpoint = DaemonEndpoint(port=configuration.port) if configuration.enable_server else None
    return evolve(status, daemon_endpoints=NodeDaemonEndpoints(kubelet_endpoint=endpoint))


def _set_images(status: NodeStatus, _: NodeProfile, observed: Observation) -> NodeStatus:
    return evolve(status, images=observed.images)


def _set_runtime(status: NodeStatus, profile: NodeProfile, observed: Observation) -> NodeStatus:
    return evolve(
        status,
        runtime_handlers=observed.runtime_features.handlers,
        features=observed.runtime_features.features or status.features,
        declared_features=tuple(
            sorted(declared_features(profile.settings.gates, observed.runtime_features))
        ),
    )


SETTERS: tuple[Setter, ...] = (
    _set_addresses,
    _set_resources,
    _set_info,
    _set_endpoints,
    _set_images,
    _set_runtime,
)


def _missing_capacity(status: NodeStatus, profile: NodeProfile) -> tuple[str, ...]:
    required = [CPU, MEMORY, PODS]
    if profile.configuration.local_storage_capacity_isolation:
        required.append(EPHEMERAL_STORAGE)
    missing = [name for name in required if name not in status.capacity]
    if not missing:
        return ()
    return (f"missing node capacity for resources: {', '.join(missing)}",)


def _specified(profile: NodeProfile) -> tuple[str, ...]:
    return tuple(address for address in profile.node_ips if not is_unspecified(address))


def _timeless(status: NodeStatus) -> NodeStatus:
    """The status without times of heartbeats, and of conditions with the agent's only.

    Conditions of others stay as they are, and there may be thousands.
    """
    own = sorted((c for c in status.conditions if c.type in OWN_CONDITIONS), key=_type)
    return evolve(status, conditions=tuple(evolve(c, last_heartbeat_time=None) for c in own))


def _type(condition: NodeCondition) -> str:
    return condition.type
