"""Runtime classes: which handler of the runtime a pod asks for (API: runtimeClassName, KEP-585).

All classes are followed, once for the whole node. A class that nobody knows is no matter of
admission, as it may come yet: the sandbox is not created, an event says why, and it is tried
again. Another runtime than the one asked for is never the answer.
"""

import trio

from trio_kubelet.k8s import RUNTIME_CLASSES, Pod, RuntimeClass
from trio_kubelet.k8s.client import Api, Changed, Synced, WatchEvent, reflect
from trio_kubelet.runtime.config.config_error import ConfigError

FIRST_LIST_SECONDS = 5.0
"""How long a pod waits for the first list of classes before it is tried again later."""


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
            case Synced():
                self._synced.set()
            case Changed(object=known):
                self._handlers[known.metadata.name] = known.handler
            case _:
                self._handlers.pop(event.object.metadata.name, None)
