"""What a whole agent tells of itself, on a node without a kernel."""

import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from state_machines.pod import PodState
from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from tests.unit.agent.test_start import Start, start, write
from trio_kubelet.agent import monitoring
from trio_kubelet.agent.cluster import Cluster, Standalone
from trio_kubelet.agent.pod_parts import PodParts
from trio_kubelet.agent.pods import Pods
from trio_kubelet.agent.start import Agent
from trio_kubelet.k8s import PODS, ObjectMeta, Pod, PodSpec
from trio_kubelet.k8s.codec import decode
from trio_kubelet.pod_source import CONFIG_SOURCE
from trio_kubelet.server import AnswerWriters, Request, route_requests
from trio_kubelet.sources import PodOperation, PodUpdate, Source
from trio_kubelet.sync.housekeeping import ORPHAN_ENDING, FoundPod, orphaned_pod

MADE: list[Pods] = []


class Open(Agent):
    """An agent whose sync loop can be told of pods."""

    def make_pods(
        self, pod_parts: PodParts, cluster: Cluster | Standalone, nursery: trio.Nursery
    ) -> Pods:
        MADE[:] = [super().make_pods(pod_parts, cluster, nursery)]
        return MADE[0]


async def told(starting: Start, name: str, **labels: str) -> float | None:
    """A sample of /metrics."""
    text = (await starting.agent.monitoring._agent())().decode()
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


WRITERS = {
    "/metrics": "exposition",
    "/metrics/probes": "exposition",
    "/metrics/resource": "resource_metrics",
    "/metrics/cadvisor": "cadvisor_metrics",
}


@pytest.mark.parametrize("path", WRITERS)
async def test_metrics_are_written_in_a_thread(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = WRITERS[path]
    write_text, writers = getattr(monitoring, name), []

    def written(*args: object) -> bytes:
        writers.append(threading.current_thread())
        text: bytes = write_text(*args)
        return text

    monkeypatch.setattr(monitoring, name, written)
    async with start(tmp_path) as starting, starting.running():
        answer = route_requests(starting.agent.monitoring.routes())
        response = await answer(Request(method="GET", path=path))
    assert response is not None
    assert response.status == 200
    assert writers
    assert threading.main_thread() not in writers


PATHS = (
    *(*WRITERS, "/stats/summary", "/debug/journal", "/pods", "/runningpods/"),
    *("/debug/disk", "/debug/evictions"),
)


@pytest.mark.parametrize("path", PATHS)
async def test_long_answers_wait_for_one_of_the_threads_that_write_all_of_them(
    tmp_path: Path, path: str
) -> None:
    async with start(tmp_path) as starting, starting.running(), trio.open_nursery() as nursery:
        parts, ports = starting.agent.parts, starting.agent.ports
        routes = (*ports.routes(nursery), *ports._listeners.of_operators)
        answered = trio.Event()

        async def read() -> None:
            response = await route_requests(routes)(Request(method="GET", path=path))
            assert response is not None
            assert response.status == 200
            if isinstance(response.body, AsyncGenerator):
                async with aclosing(response.body) as pieces:
                    assert [piece async for piece in pieces]
            answered.set()

        with trio.fail_after(60):
            async with parts.writers.threads("/others"), others_hold(parts.writers):
                nursery.start_soon(read)
                while not parts.writers._threads._waiting:
                    assert not answered.is_set(), "it was written by another thread"
                    await trio.sleep(0.01)
            await answered.wait()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def others_hold(writers: AnswerWriters) -> AsyncIterator[None]:
    """A thread of those that write is taken by a path until the end of the block."""
    share, holder = writers.threads("/more"), object()
    await share.acquire_on_behalf_of(holder)
    yield
    share.release_on_behalf_of(holder)


def make_pod(uid: str, source: Source, **spec: Any) -> Pod:
    meta = {"name": uid, "namespace": "default", "uid": uid}
    metadata = decode(ObjectMeta, {**meta, "annotations": {CONFIG_SOURCE: str(source)}})
    containers = [{"name": "c", "image": "busybox"}]
    made = decode(PodSpec, {"containers": containers, "dnsPolicy": "Default", **spec})
    return Pod(metadata=metadata, spec=made)


@pytest.mark.parametrize(("source", "static"), [(Source.FILE, "true"), (Source.API, "")])
async def test_a_pod_whose_uid_comes_back_while_it_ends_is_restarted(
    autojump_clock: MockClock, tmp_path: Path, source: Source, static: str
) -> None:
    pod = make_pod("u", source)
    async with start(tmp_path, kind=Open) as starting, starting.running():
        await trio.sleep(10)
        [pods] = MADE
        for op in (PodOperation.ADD, PodOperation.REMOVE, PodOperation.ADD):
            assert await told(starting, "kubelet_restarted_pods_total", static=static) is None
            await pods.loop.on_config(PodUpdate(source=source, op=op, pods=(pod,)))
        await trio.sleep(60)
        assert await told(starting, "kubelet_restarted_pods_total", static=static) == 1


async def test_a_pod_that_only_the_runtime_knows_is_no_orphan(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with start(tmp_path, kind=Open) as starting, starting.running():
        await trio.sleep(10)
        labels = {"config": "runtime_only", "lifecycle": "terminating", "static": "unknown"}
        assert await told(starting, "kubelet_working_pods", **labels) == 0
        [pods] = MADE
        for op in (PodOperation.ADD, PodOperation.REMOVE):
            await pods.loop.on_config(
                PodUpdate(source=Source.FILE, op=op, pods=(make_pod("u", Source.FILE),))
            )
        found = orphaned_pod(FoundPod(uid="v", leftovers=frozenset()))
        pods.tasks.start(found, 1, state=PodState.TERMINATING, ending=ORPHAN_ENDING)
        told_now = starting.agent.monitoring._state().working
        # How far the end of the removed pod has come is chance.
        assert {(config, static) for config, _, static in told_now} == {
            ("orphan", True),
            ("runtime_only", False),
        }
        assert told_now["runtime_only", "terminating", False] == 1
        assert await told(starting, "kubelet_orphaned_runtime_pods_total") == 1


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
            name = "kubelet_evented_pleg_connection"
            assert (await told(starting, f"{name}_latency_seconds_count") or 0) >= 2
            assert await told(starting, f"{name}_success_count_total") == 1
            assert await told(starting, f"{name}_error_count_total") == 0
            starting.runtime.go_down()
            await trio.sleep(1)
            assert (await told(starting, f"{name}_error_count_total") or 0) >= 1


async def test_sleeps_of_hooks_that_had_no_time_are_counted(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    def sleeping(seconds: int) -> Pod:
        hook = {"preStop": {"sleep": {"seconds": seconds}}}
        containers = [{"name": "c", "image": "busybox", "lifecycle": hook}]
        return make_pod(
            f"p{seconds}", Source.FILE, containers=containers, terminationGracePeriodSeconds=10
        )

    async with start(tmp_path, kind=Open) as starting, starting.running():
        await trio.sleep(10)
        [pods] = MADE
        for op in (PodOperation.ADD, PodOperation.REMOVE):
            sleepers = tuple(sleeping(seconds) for seconds in (5, 50))
            await pods.loop.on_config(PodUpdate(source=Source.FILE, op=op, pods=sleepers))
            await trio.sleep(60)
        assert await told(starting, "kubelet_sleep_action_terminated_early_total") == 1


async def test_the_time_that_each_volume_took_is_told(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    volumes: list[dict[str, Any]] = [{"name": name, "emptyDir": {}} for name in ("a", "b")]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("a", "b")]
    containers = [{"name": "c", "image": "busybox", "volumeMounts": mounts}]
    pod = make_pod("u", Source.FILE, volumes=volumes, containers=containers)
    async with start(tmp_path, kind=Open) as starting, starting.running():
        await trio.sleep(10)
        [pods] = MADE
        await pods.loop.on_config(PodUpdate(source=Source.FILE, op=PodOperation.ADD, pods=(pod,)))
        await trio.sleep(10)
        name = "kubelet_volume_metric_collection_duration_seconds_count"
        walked = trio.Event()
        starting.agent.parts.stats.on_disk_walk.add(lambda _: walked.set())
        await told(starting, name, metric_source="du")
        await walked.wait()
        assert await told(starting, name, metric_source="du") == 2


async def test_the_start_of_a_node_is_timed_from_boot_to_ready_when_the_cluster_does_not_know_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    server = ApiServer()
    whole, *parts = (
        f"kubelet_node_startup{part}_duration_seconds"
        for part in ("", "_pre_kubelet", "_pre_registration", "_registration", "_post_registration")
    )
    async with start(tmp_path, api=server) as starting:
        server.faults.add(RequestFault(verb="create", resource="nodes", code=500, times=3))
        starting.runtime.go_down()
        async with starting.running():
            await trio.sleep(30)
            assert await told(starting, whole) == 0
            starting.runtime.come_back()
            await trio.sleep(30)
            times = [await told(starting, name) or 0.0 for name in parts]
            assert await told(starting, whole) == pytest.approx(sum(times))
            uptime, before, registration, after = times
            assert uptime > 0
            assert 0 < registration < 10
            assert 20 < after < 40
            assert before < 1
    async with start(tmp_path, api=server) as starting, starting.running():
        await trio.sleep(30)
        assert [await told(starting, name) for name in (whole, *parts)] == [0.0] * 5
