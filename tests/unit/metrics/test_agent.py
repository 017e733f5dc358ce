"""What a whole agent tells of itself, on a node without a kernel."""

from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from tests.apiserver.server import ApiServer
from tests.unit.test_agent_start import Quiet, Start, start, write
from trio_kubelet.agent import Pods
from trio_kubelet.assembly import PodParts
from trio_kubelet.cluster import Cluster, Standalone
from trio_kubelet.k8s import PODS, Container, ObjectMeta, Pod, PodSpec
from trio_kubelet.pod_source import CONFIG_SOURCE
from trio_kubelet.sources import PodOperation, PodUpdate, Source

MADE: list[Pods] = []


class Open(Quiet):
    """An agent whose sync loop can be told of pods."""

    def make_pods(
        self, parts: PodParts, cluster: Cluster | Standalone, nursery: trio.Nursery
    ) -> Pods:
        MADE[:] = [super().make_pods(parts, cluster, nursery)]
        return MADE[0]


async def told(starting: Start, name: str, **labels: str) -> float | None:
    """A sample of /metrics."""
    text = (await starting.agent._monitoring._agent()).decode()
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if (sample.name, sample.labels) == (name, labels)
    ]
    return found[0] if found else None


@pytest.mark.parametrize(("api", "mirrors"), [(True, 1), (False, 0)])
async def test_each_static_pod_is_to_have_a_mirror_where_there_is_an_api_server(
    autojump_clock: MockClock, tmp_path: Path, api: bool, mirrors: int
) -> None:
    async with start(tmp_path, api=api) as starting:
        write(starting)
        async with starting.running():
            await trio.sleep(60)
            assert await told(starting, "kubelet_desired_pods", static="true") == 1
            assert await told(starting, "kubelet_mirror_pods") == mirrors


@pytest.mark.parametrize(("source", "static"), [(Source.FILE, "true"), (Source.API, "")])
async def test_a_pod_whose_uid_comes_back_while_it_ends_is_restarted(
    autojump_clock: MockClock, tmp_path: Path, source: Source, static: str
) -> None:
    annotations = {CONFIG_SOURCE: str(source)}
    meta = ObjectMeta(name="p", namespace="default", uid="u", annotations=annotations)
    spec = PodSpec(containers=(Container(name="c", image="busybox"),), dns_policy="Default")
    pod = Pod(metadata=meta, spec=spec)
    async with start(tmp_path, kind=Open) as starting, starting.running():
        await trio.sleep(10)
        [pods] = MADE
        for op in (PodOperation.ADD, PodOperation.REMOVE, PodOperation.ADD):
            assert await told(starting, "kubelet_restarted_pods_total", static=static) is None
            pods.loop.on_config(PodUpdate(source=source, op=op, pods=(pod,)))
        await trio.sleep(60)
        assert await told(starting, "kubelet_restarted_pods_total", static=static) == 1


async def test_events_of_the_runtime_and_statuses_in_the_api_are_timed(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    server = ApiServer()
    async with start(tmp_path, api=server) as starting:
        write(starting)
        async with starting.running():
            await server.until(lambda: [pod for pod in server.all(PODS) if pod.status.phase])
            await trio.sleep(60)
            name = "kubelet_pod_status_sync_duration_seconds"
            assert (await told(starting, f"{name}_count") or 0) >= 1
            name = "kubelet_evented_pleg_connection_latency_seconds_count"
            assert (await told(starting, name) or 0) >= 2
