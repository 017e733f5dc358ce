"""A node's way into the cluster: the object it makes, or the changes to one that is there.

Pure: `initial_node` is what is created; `adopted_node` is an object of an earlier agent, of the
Go kubelet or of an administrator, with what belongs to a node put right. Labels that others set
stay; taints are only set at creation (a node may not change its own later, NodeRestriction).
"""

from collections.abc import Mapping

from attrs import evolve

from trio_kubelet.k8s import (
    ARCH_LABEL,
    OS_LABEL,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Quantity,
    Taint,
    Time,
)
from trio_kubelet.k8s.validation.resources import is_extended
from trio_kubelet.node.allocatable import Resources, hugepage_names
from trio_kubelet.node.machine import OPERATING_SYSTEM
from trio_kubelet.node.observer import Observation
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.status import node_ip_annotated, node_status

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
