"""Traces as a collector has them that nobody here wrote, from a node of a real control plane.

`nox -s e2e` builds the OpenTelemetry Collector; where it cannot be built the tests are skipped.
"""

import http.client
import random
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import UnavailableError
from lab.cluster_api import Json
from lab.trace_collector import CollectedSpan, TraceCollector
from tests.e2e.cluster import DEADLINE_SECONDS, Namespace, is_ready, until_term
from tests.e2e.local import LocalCluster
from tests.missing import do_without

CLIENT, SERVER = 3, 2
"""The kinds of spans, by the numbers of OTLP."""
HALF, ALL = 500_000, 1_000_000
SAMPLED, NOT_SAMPLED = 1, 0
TOKEN: Json = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
PODS = 8


@pytest.fixture
def collector(local_cluster: LocalCluster, tmp_path: Path) -> Iterator[TraceCollector]:
    """The collector; afterwards the agent makes no traces any more."""
    try:
        with TraceCollector(tmp_path) as collector:
            yield collector
    except UnavailableError as reason:
        do_without(str(reason))
    local_cluster.restart_agent()


def trace_to(collector: TraceCollector, cluster: LocalCluster, sampled_of_a_million: int) -> None:
    """Start the agent anew, which sends its spans to the collector."""
    tracing = {"endpoint": collector.endpoint, "samplingRatePerMillion": sampled_of_a_million}
    cluster.restart_agent(tracing=tracing)
    cluster.wait_node_ready()


def ask(cluster: LocalCluster, path: str, traceparent: str) -> None:
    """Ask the node's port as the API server, as a part of a trace of ours."""
    pki = cluster.control_plane.folder / "pki"
    context = ssl._create_unverified_context()  # Whose port it is does not matter.
    context.load_cert_chain(pki / "kubelet-client.crt", pki / "kubelet-client.key")
    port = cluster.server_port
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    connection.request("GET", path, headers={"traceparent": traceparent})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    connection.close()


def traceparent(trace_id: str, span_id: str, flags: int) -> str:
    return f"00-{trace_id}-{span_id}-{flags:02x}"


def new_id(bits: int) -> str:
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"


def is_sync_of(pod: Json, span: CollectedSpan) -> bool:
    """True for a span of work for a pod."""
    uid: str = pod["metadata"]["uid"]
    return span.attributes.get("k8s.pod.uid") == uid


def test_what_is_done_for_a_pod_is_one_trace_in_a_collector_of_others(
    local_cluster: LocalCluster, namespace: Namespace, collector: TraceCollector
) -> None:
    trace_to(collector, local_cluster, ALL)
    pod = namespace.run("p", until_term("c"), volumes=[TOKEN])
    sandbox = collector.wait_for(
        lambda span: (
            span.name.endswith("/RunPodSandbox")
            and any(
                is_sync_of(pod, each) and each.span_id == span.parent_id for each in collector.spans
            )
        )
    )
    of_pod = [each for each in collector.spans if each.trace_id == sandbox.trace_id]
    (sync,) = (each for each in of_pod if not each.parent_id)
    assert sync.name == "syncPod"
    assert is_sync_of(pod, sync)
    assert sync.attributes["k8s.pod"] == f"{namespace.name}/p"
    assert sync.about.items() >= {
        ("service.name", "kubelet"),
        ("host.name", local_cluster.node),
    }
    parts = {each.name.rpartition("/")[2]: each for each in of_pod if each is not sync}
    for call in ("RunPodSandbox", "CreateContainer", "StartContainer"):
        assert parts[call].parent_id == sync.span_id
        assert parts[call].kind == CLIENT
        assert parts[call].attributes["rpc.grpc.status_code"] == "0"
    (token,) = (each for each in of_pod if each.attributes.get("url.path", "").endswith("/token"))
    assert token.name == "HTTP POST"
    assert token.parent_id == sync.span_id
    assert token.attributes["http.response.status_code"] == "201"


def test_requests_to_the_node_are_parts_of_their_clients_traces_alone(
    local_cluster: LocalCluster, namespace: Namespace, collector: TraceCollector
) -> None:
    trace_to(collector, local_cluster, 0)
    namespace.run("p", until_term("c"))
    unsampled, trace_id, span_id = new_id(128), new_id(128), new_id(64)
    ask(local_cluster, "/pods", traceparent(unsampled, new_id(64), NOT_SAMPLED))
    ask(local_cluster, "/pods", traceparent(trace_id, span_id, SAMPLED))
    asked = collector.wait_for(lambda span: span.name.startswith("GET /pods"))
    assert (asked.trace_id, asked.parent_id, asked.kind) == (trace_id, span_id, SERVER)
    assert {each.trace_id for each in collector.spans} == {trace_id}


def test_of_sampled_traces_all_is_there_and_of_others_nothing(
    local_cluster: LocalCluster, namespace: Namespace, collector: TraceCollector
) -> None:
    trace_to(collector, local_cluster, HALF)
    for number in range(PODS):
        namespace.add(f"p-{number}", until_term("c"), nodeName=namespace.node)
    namespace.wait_all(
        lambda pods: len(pods) == PODS and all(map(is_ready, pods)),
        deadline_seconds=2 * DEADLINE_SECONDS,
    )
    local_cluster.stop_agent()  # Its last spans are read before it has ended.
    spans = collector.spans
    assert {each.trace_id for each in spans if not is_sampled_by_half(each)} == set()
    ids = {each.span_id for each in spans}
    assert [each for each in spans if each.parent_id and each.parent_id not in ids] == []
    assert {each.name for each in spans if not each.parent_id} >= {"syncPod"}
    assert any(each.parent_id for each in spans)


def is_sampled_by_half(span: CollectedSpan) -> bool:
    """True if all who follow the Go kubelet's rule sample its trace at this rate, by its number."""
    return int(span.trace_id[16:], 16) < 1 << 63
