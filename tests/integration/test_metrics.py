"""The metrics of a node with real containers, as Prometheus reads them."""

import http.client
import socket
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.agent import Json, pod_manifest
from tests.integration.pods import Node, until_term
from tests.unit.metrics.table import BEYOND, table
from tests.unit.metrics.test_table import read
from trio_kubelet.metrics.text import CONTENT_TYPE

ENDPOINTS = ("/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource")


@pytest.fixture(scope="module")
def pod(node: Node) -> Json:
    """A pod that has been asked whether it is ready."""
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    manifest = pod_manifest("counted", until_term("main", readinessProbe=probe))
    node.run(manifest)
    return node.wait(
        "counted", lambda pod: all(each["ready"] for each in pod["status"]["containerStatuses"])
    )


def scrape(node: Node, path: str) -> bytes:
    connection = http.client.HTTPConnection("agent")
    connection.sock = socket.socket(socket.AF_UNIX)
    with connection.sock:
        connection.sock.connect(str(node.agent.root / "agent.sock"))
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Content-Type")) == (200, CONTENT_TYPE)
        return answer.read()


def samples(node: Node, path: str, name: str) -> list[tuple[Mapping[str, str], float]]:
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(scrape(node, path).decode())
        for sample in family.samples
        if sample.name == name
    ]


@pytest.mark.parametrize("path", ENDPOINTS)
def test_all_that_is_read_is_in_the_table_with_its_type_and_labels(
    node: Node, pod: Json, path: str
) -> None:
    beyond = frozenset[str]().union(*BEYOND.values())
    known = {(metric.endpoint, metric.name): metric for metric in table()}
    found = [metric for metric in read(path, scrape(node, path)) if metric.name not in beyond]
    assert found
    for metric in found:
        expected = known[metric.endpoint, metric.name]
        assert metric.type == expected.type
        assert metric.labels <= expected.labels


def test_what_the_agent_did_is_counted(node: Node, pod: Json) -> None:
    def total(name: str, **labels: str) -> float:
        return sum(
            value
            for found, value in samples(node, "/metrics", name)
            if labels.items() <= found.items()
        )

    assert total("kubelet_started_containers_total", container_type="container") >= 1
    assert total("kubelet_running_containers", container_state="running") >= 1
    assert total("kubelet_runtime_operations_total", operation_type="run_podsandbox") >= 1
    assert total("kubelet_pod_start_duration_seconds_count") >= 1
    assert total("kubelet_pod_worker_duration_seconds_count", operation_type="create") >= 1
    assert total("kubelet_desired_pods", static="true") >= 1
    assert total("kubelet_cgroup_manager_duration_seconds_count", operation_type="create") >= 1
    assert total("kubelet_working_pods", config="desired", lifecycle="sync") >= 1
    assert total("kubelet_pleg_relist_duration_seconds_count") >= 1
    assert total("process_resident_memory_bytes") > 1 << 20


def test_probes_are_counted_by_their_results(node: Node, pod: Json) -> None:
    found = samples(node, "/metrics/probes", "prober_probe_total")
    of_pod = [(labels, value) for labels, value in found if labels["container"] == "main"]
    assert {labels["result"] for labels, _ in of_pod} >= {"successful"}
    assert {labels["pod_uid"] for labels, _ in of_pod} == {pod["metadata"]["uid"]}


def test_what_metrics_server_asks_for_is_there(node: Node, pod: Json) -> None:
    """CPU and memory of the node and of each container, with their times and the start."""
    wanted = {"container": "main", "namespace": "default", "pod": pod["metadata"]["name"]}
    text = scrape(node, "/metrics/resource").decode()
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    labels = tuple(sorted(wanted.items()))
    for name in ("container_cpu_usage_seconds_total", "container_memory_working_set_bytes"):
        assert found[name, labels].value > 0
        assert found[name, labels].timestamp is not None
    assert found["container_start_time_seconds", labels].value > 1e9
    for name in ("node_cpu_usage_seconds_total", "node_memory_working_set_bytes"):
        assert found[name, ()].value > 0
        assert found[name, ()].timestamp is not None
