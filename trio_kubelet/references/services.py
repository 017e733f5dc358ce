"""The services of the cluster, followed once for the node, and the variables that name them.

`WEB_SERVICE_HOST` and `WEB_SERVICE_PORT` are for people; `WEB_PORT_80_TCP` and its like are what
Docker's links were.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import trio

from trio_kubelet.k8s import Pod, Service, ServicePort
from trio_kubelet.k8s.client import (
    Api,
    ListSynced,
    ObjectChanged,
    ObjectRemoved,
    WatchEvent,
    reflect,
)
from trio_kubelet.k8s.kinds import SERVICES
from trio_kubelet.references.cached import LAG_SECONDS
from trio_kubelet.references.object_references import ObjectError

KEPT_NAMESPACES = 8
"""Namespaces whose variables are kept until a service of theirs changes: megabytes for 4,000."""


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
        if isinstance(event, ListSynced):
            self._synced.set()
            return
        meta = event.object.metadata
        if isinstance(event, ObjectChanged):
            self._services.setdefault(meta.namespace, {})[meta.name] = event.object
        elif isinstance(event, ObjectRemoved):
            left = self._services.get(meta.namespace, {})
            left.pop(meta.name, None)
            if not left:
                self._services.pop(meta.namespace, None)
        if (meta.namespace, meta.name) == API_SERVICE:
            self._variables.clear()
        self._variables.pop((meta.namespace, True), None)


MAX_VARIABLES = 65_536
"""5,000 services with a named port each have 40,000. Each is a message to the runtime, too."""

API_SERVICE = ("default", "kubernetes")
"""Namespace and name of the API server's own service, which every container is told of."""

_NO_ADDRESS = ("", "None")


def visible_services(
    services: Iterable[Service], namespace: str, *, service_links: bool
) -> tuple[Service, ...]:
    """Return the services that a pod is told of, by name.

    With `service_links` (spec.enableServiceLinks) those of its namespace, of which one called
    `kubernetes` hides that of the API server.
    """
    visible: dict[str, Service] = {}
    for service in services:
        meta = service.metadata
        if service.spec.cluster_ip in _NO_ADDRESS:
            continue
        if service_links and meta.namespace == namespace:
            visible[meta.name] = service
        elif (meta.namespace, meta.name) == API_SERVICE:
            visible.setdefault(meta.name, service)
    return tuple(service for _, service in sorted(visible.items()))


def service_variables(services: Iterable[Service]) -> Mapping[str, str]:
    """Return the variables of services that have an address and ports.

    Once there are more than a container may have the rest is left out: it will be refused.
    """
    variables: dict[str, str] = {}
    for service in services:
        if service.spec.ports:
            variables.update(_variables_of(service))
        if len(variables) > MAX_VARIABLES:
            break
    return variables


def _variables_of(service: Service) -> Mapping[str, str]:
    name = _variable_name(service.metadata.name)
    # Each port has four variables at least: with more ports a container will be refused.
    address, ports = service.spec.cluster_ip, service.spec.ports[: MAX_VARIABLES // 4]
    variables = {
        f"{name}_SERVICE_HOST": address,
        f"{name}_SERVICE_PORT": str(ports[0].port),
    }
    for port in ports:
        if port.name:
            variables[f"{name}_SERVICE_PORT_{_variable_name(port.name)}"] = str(port.port)
    variables[f"{name}_PORT"] = _url(address, ports[0])
    for port in ports:
        protocol = port.protocol or "TCP"
        prefix = f"{name}_PORT_{port.port}_{protocol.upper()}"
        variables[prefix] = _url(address, port)
        variables[f"{prefix}_PROTO"] = protocol.lower()
        variables[f"{prefix}_PORT"] = str(port.port)
        variables[f"{prefix}_ADDR"] = address
    return variables


def _url(address: str, port: ServicePort) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"{(port.protocol or 'TCP').lower()}://{host}:{port.port}"


def _variable_name(name: str) -> str:
    return name.upper().replace("-", "_")
