"""Lists as streams (gate CRIListStreaming), from a containerd that has them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lab import UnavailableError
from lab.containerd import Containerd
from tests.containerds import Containerds
from tests.integration.test_rpc_containerd import LABELS, Running, running_pod
from tests.missing import do_without
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient

STREAMING = "2.4"


@pytest.fixture
def streaming(real_containers: None, containerds: Containerds) -> Containerd:
    """A containerd that has streams."""
    try:
        return containerds.running(STREAMING)
    except UnavailableError as reason:
        do_without(str(reason))


@pytest.fixture
async def pod(streaming: Containerd, tmp_path: Path) -> AsyncIterator[Running]:
    async with running_pod(streaming.endpoint, tmp_path) as running:
        yield running


async def test_lists_that_come_as_streams_are_those_that_come_at_once(pod: Running) -> None:
    stream = cri.RuntimeServiceStub.stream_containers
    request = cri.StreamContainersRequest()
    assert await pod.channel.gather_raw(stream, request, max_bytes=1 << 20)
    plain, streams = pod.client, RuntimeClient(pod.channel, streams_lists=True)
    (container,) = await streams.list_containers()
    assert container == (await plain.list_containers())[0]
    assert (container.id, container.labels) == (pod.container_id, LABELS)
    assert await streams.list_pod_sandboxes() == await plain.list_pod_sandboxes()
    images = {each.id for each in await streams.list_images()}
    assert images == {each.id for each in await plain.list_images()}
    (stats,) = await streams.list_container_stats()
    assert stats.attributes.id == pod.container_id
