"""What a runtime offers beyond running containers, as it tells with its status."""

from attrs import frozen

from trio_kubelet.k8s import NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures
from trio_kubelet.rpc import is_present
from trio_kubelet.rpc.stubs.runtime import v1 as cri


@frozen(kw_only=True)
class RuntimeFeatures:
    """Handlers by name, and what holds whatever the handler; `features` is None if it is silent.

    `host_network_user_namespaces`: user namespaces for pods on the host's network.
    """

    handlers: tuple[NodeRuntimeHandler, ...] = ()
    features: NodeFeatures | None = None
    host_network_user_namespaces: bool = False

    @property
    def recursive_read_only(self) -> frozenset[str]:
        """The names of the handlers that make recursive read-only mounts (KEP-3857).

        The runtime looks itself whether its kernel can (Linux 5.12).
        """
        return frozenset(
            handler.name
            for handler in self.handlers
            if handler.features is not None and handler.features.recursive_read_only_mounts
        )


def features_of(status: cri.StatusResponse) -> RuntimeFeatures:
    return RuntimeFeatures(
        handlers=_handlers(status),
        features=_features(status),
        host_network_user_namespaces=status.features.user_namespaces_host_network,
    )


def _handlers(status: cri.StatusResponse) -> tuple[NodeRuntimeHandler, ...]:
    found = (
        NodeRuntimeHandler(
            name=handler.name,
            features=NodeRuntimeHandlerFeatures(
                recursive_read_only_mounts=handler.features.recursive_read_only_mounts,
                user_namespaces=handler.features.user_namespaces,
            ),
        )
        for handler in status.runtime_handlers
    )
    return tuple(sorted(found, key=lambda handler: handler.name))


def _features(status: cri.StatusResponse) -> NodeFeatures | None:
    if not is_present(status.features):
        return None
    return NodeFeatures(supplemental_groups_policy=status.features.supplemental_groups_policy)
