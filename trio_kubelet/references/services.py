"""The services of the cluster, followed once for the whole node."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import trio

from trio_kubelet.k8s import Pod, Service
from trio_kubelet.k8s.client import Api, Changed, Removed, Synced, WatchEvent, reflect
from trio_kubelet.k8s.kinds import SERVICES
from trio_kubelet.references.fetching import LAG_SECONDS
from trio_kubelet.references.objects import ObjectError
from trio_kubelet.references.service_variables import (
    API_SERVICE,
    service_variables,
    visible_services,
)

KEPT_NAMESPACES = 8
"""Whose variables are kept until a service of theirs changes; those of 4,000 are megabytes."""


class ServiceCache:
    """Knows all services."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._services: dict[str, dict[str, Service]] = {}
        self._variables: OrderedDict[tuple[str, bool], Mapping[str, str]] = OrderedDict()
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
        namespace = pod.metadata.namespace if links else ""
        known = self._variables.get((namespace, links))
        if known is None:
            services = (*self._api_service(), *self._services.get(namespace, {}).values())
            visible = visible_services(services, namespace, service_links=links)
            known = self._variables[namespace, links] = service_variables(visible)
            if len(self._variables) > KEPT_NAMESPACES:
                self._variables.popitem(last=False)
        self._variables.move_to_end((namespace, links))
        return known

    def _api_service(self) -> Iterable[Service]:
        namespace, name = API_SERVICE
        service = self._services.get(namespace, {}).get(name)
        return () if service is None else (service,)

    async def _take(self, event: WatchEvent[Service]) -> None:
        if isinstance(event, Synced):
            self._synced.set()
            return
        meta = event.object.metadata
        if isinstance(event, Changed):
            self._services.setdefault(meta.namespace, {})[meta.name] = event.object
        elif isinstance(event, Removed):
            left = self._services.get(meta.namespace, {})
            left.pop(meta.name, None)
            if not left:
                self._services.pop(meta.namespace, None)
        if (meta.namespace, meta.name) == API_SERVICE:
            self._variables.clear()
        self._variables.pop((meta.namespace, True), None)
