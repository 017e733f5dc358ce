"""Traces of a whole agent: what it does for a pod is one, the calls to the runtime being parts."""

from pathlib import Path

import trio
from trio.testing import MockClock

from tests.unit.agent.test_start import Start, start, write
from trio_kubelet.config.parts import TracingConfiguration
from trio_kubelet.tracing import Span

ALL = TracingConfiguration(sampling_rate_per_million=1_000_000)


def spans(starting: Start) -> list[Span]:
    traces = starting.agent.parts.traces
    assert traces is not None
    return list(traces.queue._spans)


async def test_the_sync_of_a_pod_is_a_trace_with_its_calls(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with start(tmp_path, tracing=ALL) as starting:
        write(starting)
        async with starting.running():
            await trio.sleep(30)
        (pod,) = starting.agent.parts.pods()
        found = spans(starting)
        first = next(each for each in found if each.name.endswith("/RunPodSandbox"))
        of_pod = [each for each in found if each.context.trace_id == first.context.trace_id]
        (sync,) = [each for each in of_pod if not each.parent_id]
        assert sync.name == "syncPod"
        assert sync.attributes["k8s.pod.uid"] == pod.metadata.uid
        assert sync.attributes["k8s.pod"] == "default/web-here"
        calls = {each.name.partition("/")[2] for each in of_pod if each is not sync}
        assert calls >= {"RunPodSandbox", "CreateContainer", "StartContainer", "PodSandboxStatus"}
        assert {each.parent_id for each in of_pod} == {0, sync.context.span_id}
        lists = [each for each in found if each.name.endswith("/ListPodSandbox")]
        assert lists, "what is done for no pod is there too"
        assert not any(each.context.trace_id == sync.context.trace_id for each in lists)


async def test_unless_a_rate_is_set_only_parts_of_others_traces_are_sampled(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with start(tmp_path, tracing=TracingConfiguration()) as starting:
        write(starting)
        async with starting.running():
            await trio.sleep(30)
        assert spans(starting) == []


async def test_spans_that_were_lost_are_counted(tmp_path: Path) -> None:
    name = b"trio_kubelet_trace_spans_dropped_total"
    async with start(tmp_path, tracing=ALL) as starting:
        traces = starting.agent.parts.traces
        assert traces is not None
        traces.queue.on_dropped.call(3)
        assert name + b" 3.0" in (await starting.agent.monitoring._agent())()
    async with start(tmp_path) as starting:
        assert name not in (await starting.agent.monitoring._agent())()
