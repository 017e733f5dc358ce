"""The node's profile: settings and machine, as one value for the pure functions.

What changes while the agent runs is not here; see `observer.py`.
"""

import socket

from attrs import frozen

from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.k8s import RESTART_ALL_CONTAINERS, USER_NAMESPACES_WITH_HOST_NETWORK
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
    """One node: its settings, its machine, and what it has for pods."""

    name: str
    """That of the Node object (`node_name`)."""
    settings: Settings
    machine: MachineInfo
    resources: NodeAmounts
    """The amounts that there are now; they may change."""

    @property
    def configuration(self) -> KubeletConfiguration:
        """The node's KubeletConfiguration."""
        return self.settings.configuration

    @property
    def node_ips(self) -> tuple[str, ...]:
        """The addresses of --node-ip: none, one, or one of each family.

        An unspecified one only chooses the family.
        """
        return parse_node_ip(self.settings.options.node_ip)

    @property
    def has_external_cloud_provider(self) -> bool:
        return self.settings.options.cloud_provider == EXTERNAL_CLOUD_PROVIDER


def node_name(settings: Settings) -> str:
    """The node's name: --hostname-override, else the host's, in lower case."""
    name = settings.options.hostname_override or socket.gethostname()
    return name.strip().lower()
