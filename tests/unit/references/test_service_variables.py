"""The variables of services, in the words of the Go kubelet and of Docker's links."""

from typing import Any

import pytest

from trio_kubelet.k8s import ObjectMeta, Service, ServicePort, ServiceSpec
from trio_kubelet.k8s.service import MOST_PORTS, lighten_service
from trio_kubelet.references.services import (
    MAX_VARIABLES,
    service_variables,
    visible_services,
)


def service(
    name: str, *ports: ServicePort, namespace: str = "shop", address: str = "10.96.0.1"
) -> Service:
    return Service(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=ServiceSpec(cluster_ip=address, ports=ports or (ServicePort(port=80),)),
    )


def test_each_port_has_its_variables_and_the_first_is_the_services() -> None:
    web = service(
        "web-front",
        ServicePort(port=80, name="http"),
        ServicePort(port=53, name="dns-udp", protocol="UDP"),
    )
    assert service_variables([web]) == {
        "WEB_FRONT_SERVICE_HOST": "10.96.0.1",
        "WEB_FRONT_SERVICE_PORT": "80",
        "WEB_FRONT_SERVICE_PORT_HTTP": "80",
        "WEB_FRONT_SERVICE_PORT_DNS_UDP": "53",
        "WEB_FRONT_PORT": "tcp://10.96.0.1:80",
        "WEB_FRONT_PORT_80_TCP": "tcp://10.96.0.1:80",
        "WEB_FRONT_PORT_80_TCP_PROTO": "tcp",
        "WEB_FRONT_PORT_80_TCP_PORT": "80",
        "WEB_FRONT_PORT_80_TCP_ADDR": "10.96.0.1",
        "WEB_FRONT_PORT_53_UDP": "udp://10.96.0.1:53",
        "WEB_FRONT_PORT_53_UDP_PROTO": "udp",
        "WEB_FRONT_PORT_53_UDP_PORT": "53",
        "WEB_FRONT_PORT_53_UDP_ADDR": "10.96.0.1",
    }


def test_an_ipv6_address_is_bracketed_in_urls_alone() -> None:
    variables = service_variables([service("web", address="fd00::1")])
    assert variables["WEB_SERVICE_HOST"] == "fd00::1"
    assert variables["WEB_PORT"] == "tcp://[fd00::1]:80"


API = service("kubernetes", namespace="default", address="10.96.0.9")
OWN, OTHER = service("own"), service("other", namespace="elsewhere")
OTHERS_OF_DEFAULT = service("not-this", namespace="default")
HEADLESS, EXTERNAL = service("headless", address="None"), service("external", address="")
ALL = (OWN, API, OTHER, OTHERS_OF_DEFAULT, HEADLESS, EXTERNAL)


@pytest.mark.parametrize(
    ("links", "expected"), [(True, ["kubernetes", "own"]), (False, ["kubernetes"])]
)
def test_a_pod_is_told_of_the_api_server_and_with_links_of_its_own_namespace(
    links: bool, expected: list[str]
) -> None:
    visible = visible_services(ALL, "shop", service_links=links)
    assert [each.metadata.name for each in visible] == expected


@pytest.mark.parametrize("turned", [False, True])
def test_a_service_called_kubernetes_hides_that_of_the_api_server(turned: bool) -> None:
    own = service("kubernetes", address="10.96.0.7")
    services = (API, own) if turned else (own, API)
    assert visible_services(services, "shop", service_links=True) == (own,)
    assert visible_services(services, "shop", service_links=False) == (API,)


def test_more_than_a_container_may_have_are_not_made() -> None:
    many = (service(f"s{number}") for number in range(20_000))
    assert MAX_VARIABLES < len(service_variables(many)) < MAX_VARIABLES + 10


def test_of_one_service_with_too_many_ports_no_more_are_made_either() -> None:
    ports = tuple(ServicePort(port=number + 1) for number in range(60_000))
    one = Service(
        metadata=ObjectMeta(name="s"), spec=ServiceSpec(cluster_ip="10.0.0.1", ports=ports)
    )
    assert MAX_VARIABLES < len(service_variables([one])) < MAX_VARIABLES + 10


def test_of_a_service_only_what_its_variables_are_made_of_is_kept() -> None:
    ports = [{"name": f"p{n}", "port": n + 1, "nodePort": 30_000} for n in range(MOST_PORTS + 1)]
    data: dict[str, Any] = {
        "metadata": {"name": "web", "namespace": "shop", "annotations": {"a": "x" * 1000}},
        "spec": {"clusterIP": "10.0.0.1", "ports": ports, "selector": {"app": "web"}},
        "status": {"loadBalancer": {}},
    }
    lighten_service(data)
    assert data == {
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "ports": ports[:MOST_PORTS]},
    }


@pytest.mark.parametrize("odd", [{}, {"spec": None}, {"metadata": [], "spec": {"ports": 7}}])
def test_a_service_that_is_none_is_left_to_its_decoding(odd: dict[str, Any]) -> None:
    lighten_service(odd)
