"""Which running pod a manifest means, when the node was another kubelet's."""

import pytest
from attrs import evolve

from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec
from trio_kubelet.pod_source import CONFIG_SOURCE, Source
from trio_kubelet.runtime.config.container_hash import container_hash
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.sources.manifests import adopt_running

CONTAINER = Container(name="c", image="busybox")
POD = Pod(metadata=ObjectMeta(name="web", namespace="ns"), spec=PodSpec(containers=(CONTAINER,)))
SANDBOX = ObservedSandbox(
    id="s",
    name="web",
    namespace="ns",
    uid="theirs",
    attempt=0,
    ready=True,
    created_at=1,
    annotations={CONFIG_SOURCE: Source.FILE},
)
RUNNING = ObservedPod(
    uid="theirs",
    name="web",
    namespace="ns",
    observed_at=1.0,
    sandboxes=(SANDBOX,),
    containers=(
        ObservedContainer(
            id="1",
            name="c",
            sandbox_id="s",
            state=ObservedState.RUNNING,
            hash=container_hash(CONTAINER),
        ),
    ),
)


@pytest.mark.parametrize(
    ("running", "uid"),
    [
        (RUNNING, "theirs"),
        (evolve(RUNNING, name="other"), None),
        (evolve(RUNNING, namespace="other"), None),
        (evolve(RUNNING, sandboxes=()), None),
        (evolve(RUNNING, sandboxes=(evolve(SANDBOX, ready=False),)), None),
        (evolve(RUNNING, sandboxes=(evolve(SANDBOX, annotations={}),)), None),
        (evolve(RUNNING, containers=()), None),
        (evolve(RUNNING, containers=(evolve(RUNNING.containers[0], hash="0"),)), None),
    ],
    ids=["same", "name", "namespace", "no sandbox", "ended", "source", "empty", "changed"],
)
def test_a_static_pod_is_the_running_one_of_its_name_source_and_containers(
    running: ObservedPod, uid: str | None
) -> None:
    assert adopt_running((running,))(POD, Source.FILE) == uid
