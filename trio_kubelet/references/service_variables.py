"""The variables by which a container finds services, as values.

`WEB_SERVICE_HOST` and `WEB_SERVICE_PORT` are for people; `WEB_PORT_80_TCP` and its like are what
Docker's links were. Pure.
"""

from collections.abc import Iterable, Mapping

from trio_kubelet.k8s import Service, ServicePort

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
