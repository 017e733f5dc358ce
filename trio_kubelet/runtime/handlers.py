"""The handlers of the runtime: what each offers, and which of them a pod asks for.

A pod names a runtime class (API: runtimeClassName, KEP-585), and that a handler. All classes are
followed, once for the whole node. A class that nobody knows is no matter of admission, as it may
come yet: the sandbox is not created, an event says why, and it is tried again. Another runtime
than the one asked for is never the answer.
"""

import trio
from attrs import frozen

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import (
    RUNTIME_CLASSES,
    NodeFeatures,
    NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures,
    Pod,
    RuntimeClass,
)
from trio_kubelet.k8s.client import Api, ListSynced, ObjectChanged, WatchEvent, reflect
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


FIRST_LIST_SECONDS = 5.0
"""The time that a pod waits for the first list of classes before it is tried again later."""


class RuntimeClasses:
    """Knows all runtime classes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._handlers: dict[str, str] = {}
        self._synced = trio.Event()

    async def run(self) -> None:
        """Follow the classes, until cancelled."""
        await reflect(self._api, RUNTIME_CLASSES, self._take)

    async def handler(self, pod: Pod) -> str:
        """Return the handler for a pod's sandbox, empty for the runtime's default.

        Waits a little for the first list; raises ConfigError for a class that is not known.
        """
        name = pod.spec.runtime_class_name
        if not name:
            return ""
        with trio.move_on_after(FIRST_LIST_SECONDS):
            await self._synced.wait()
        if name in self._handlers:
            return self._handlers[name]
        if not self._synced.is_set():
            raise ConfigError(
                f"failed to lookup RuntimeClass {name}: the classes have not been read yet"
            )
        raise ConfigError(f'runtimeclass.node.k8s.io "{name}" not found')

    async def _take(self, event: WatchEvent[RuntimeClass]) -> None:
        match event:
            case ListSynced():
                self._synced.set()
            case ObjectChanged(object=known):
                self._handlers[known.metadata.name] = known.handler
            case _:
                self._handlers.pop(event.object.metadata.name, None)
