"""The node's profile: settings and machine, as one value for the pure functions.

`node_profile` takes it out of the settings, so that status, registration and lease know nothing
of flags and files. What changes while the agent runs is not here; see `observer.py`.
"""

import socket
from collections.abc import Mapping

from attrs import field, frozen

from trio_kubelet import KUBERNETES_VERSION
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import (
    RESTART_ALL_CONTAINERS,
    USER_NAMESPACES_WITH_HOST_NETWORK,
    Taint,
)
from trio_kubelet.node.addresses import parse_node_ip
from trio_kubelet.node.allocatable import NodeAmounts
from trio_kubelet.node.machine import MachineInfo

EXTERNAL_CLOUD_PROVIDER = "external"

IMPLEMENTED_FEATURES: frozenset[str] = frozenset(
    {RESTART_ALL_CONTAINERS, USER_NAMESPACES_WITH_HOST_NETWORK}
)
"""The features that nodes declare and this agent has.

The Go kubelet v1.36 declares ExtendWebSocketsToKubelet, InPlacePodLevelResourcesVerticalScaling,
InPlacePodVerticalScalingInitContainers, RestartAllContainersOnContainerExits and
UserNamespacesHostNetworkSupport. The scheduler brings pods here that need what is declared, so a
feature is named here when the agent has it, not before.
"""


@frozen(kw_only=True)
class NodeProfile:
    """One node. Sizes and periods are in the units of their fields' names.

    `name` is that of the Node object, `node_ips` what --node-ip says: none, one, or one of each
    family; an unspecified one only chooses the family. `resources` is what there is now, which may
    change. `max_images` bounds `status.images` (-1: all of them). `features` are those that the
    agent has, to be declared while their gates are on.
    """

    name: str
    machine: MachineInfo
    resources: NodeAmounts
    kubelet_version: str = KUBERNETES_VERSION
    kubelet_port: int = 10250
    """0 while the server is switched off."""
    node_ips: tuple[str, ...] = ()
    external_cloud_provider: bool = False
    provider_id: str = ""
    labels: Mapping[str, str] = field(factory=dict)
    taints: tuple[Taint, ...] = ()
    register_node: bool = True
    controller_attaches_volumes: bool = True
    storage_isolation: bool = True
    max_images: int = 50
    gates: FeatureGates = field(factory=FeatureGates)
    features: frozenset[str] = IMPLEMENTED_FEATURES
    update_seconds: float = 10.0
    report_seconds: float = 300.0


def node_profile(settings: Settings, machine: MachineInfo, resources: NodeAmounts) -> NodeProfile:
    """The profile that these settings give a machine."""
    configuration, options = settings.configuration, settings.options
    return NodeProfile(
        name=node_name(settings),
        machine=machine,
        resources=resources,
        kubelet_version=options.version or KUBERNETES_VERSION,
        kubelet_port=configuration.port if configuration.enable_server else 0,
        node_ips=parse_node_ip(options.node_ip),
        external_cloud_provider=options.cloud_provider == EXTERNAL_CLOUD_PROVIDER,
        provider_id=configuration.provider_id,
        labels=options.node_labels,
        taints=tuple(
            Taint(key=taint.key, value=taint.value, effect=taint.effect)
            for taint in configuration.register_with_taints
        ),
        register_node=configuration.register_node,
        controller_attaches_volumes=configuration.enable_controller_attach_detach,
        storage_isolation=configuration.local_storage_capacity_isolation,
        max_images=configuration.node_status_max_images,
        gates=settings.gates,
        update_seconds=configuration.node_status_update_frequency.total_seconds(),
        report_seconds=configuration.node_status_report_frequency.total_seconds(),
    )


def node_name(settings: Settings) -> str:
    """The node's name: --hostname-override, else the host's, in lower case."""
    name = settings.options.hostname_override or socket.gethostname()
    return name.strip().lower()
