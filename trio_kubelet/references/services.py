"""The services of the cluster, followed once for the whole node."""

from collections.abc import Mapping

import trio

from trio_kubelet.k8s import Pod, Service
from trio_kubelet.k8s.client import Api, Changed, Removed, Synced, WatchEvent, reflect
from trio_kubelet.k8s.kinds import SERVICES
from trio_kubelet.references.fetching import LAG_SECONDS
from trio_kubelet.references.objects import Key, ObjectError
from trio_kubelet.references.service_variables import service_variables, visible_services


class ServiceCache:
    """Knows all services."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._services: dict[Key, Service] = {}
        self._synced = trio.Event()

    async def run(self) -> None:
        """Follow the services, for ever."""
        await reflect(self._api, SERVICES, self._take)

    async def variables(self, pod: Pod) -> Mapping[str, str]:
        """Return the variables that a pod's containers get; waits for the first list.

        Raises ObjectError where that takes too long.
        """
        with trio.move_on_after(LAG_SECONDS):
            await self._synced.wait()
        if not self._synced.is_set():
            raise ObjectError(
                "services have not yet been read at least once, cannot construct envvars"
            )
        return self.known_variables(pod)

    def known_variables(self, pod: Pod) -> Mapping[str, str]:
        """Return the variables of the services that are known now."""
        links = pod.spec.enable_service_links is not False
        namespace = pod.metadata.namespace
        return service_variables(
            visible_services(self._services.values(), namespace, service_links=links)
        )

    async def _take(self, event: WatchEvent[Service]) -> None:
        if isinstance(event, Synced):
            self._synced.set()
            return
        meta = event.object.metadata
        key = (meta.namespace, meta.name)
        if isinstance(event, Changed):
            self._services[key] = event.object
        elif isinstance(event, Removed):
            self._services.pop(key, None)
