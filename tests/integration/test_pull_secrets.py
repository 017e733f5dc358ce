"""A registry that asks for a password, a real containerd, and the pull secrets of a pod."""

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from itertools import count

import pytest
import trio

from lab.containerd import Containerd
from lab.images import BUSYBOX
from lab.registry import NAME, PASSWORD, USER, Registry
from trio_kubelet.clock import SystemClock
from trio_kubelet.k8s import Container, ObjectMeta, Pod, Secret
from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.credentials import Keyring, keyring_of
from trio_kubelet.runtime.images import ImageError, Images, PullRate
from trio_kubelet.runtime.memory import PodMemory
from trio_kubelet.telemetry import EventRecorder, Journal

POD = Pod(metadata=ObjectMeta(name="p", namespace="shop", uid="u1"))
SANDBOX = cri.PodSandboxConfig(
    metadata=cri.PodSandboxMetadata(name="p", namespace="shop", uid="u1")
)

_numbers = count()


@pytest.fixture
def registry(containerd: Containerd) -> Iterator[Registry]:
    """A registry that asks for a name and a password."""
    folder = containerd.folder / f"registry-with-password-{next(_numbers)}"
    with Registry(folder, login=True) as registry:
        registry.serve_to(containerd.registries)
        yield registry


@pytest.fixture
async def runtime(containerd: Containerd) -> AsyncIterator[RuntimeClient]:
    async with open_rpc_loop():
        with closing(Channel(containerd.endpoint)) as channel:
            yield RuntimeClient(channel)


def pull_secret(password: str, *, key: str = NAME, old: bool = False) -> Secret:
    auths = {key: {"auth": base64.b64encode(f"{USER}:{password}".encode()).decode()}}
    kind, document = ("dockercfg", auths) if old else ("dockerconfigjson", {"auths": auths})
    data = {f".{kind}": json.dumps(document).encode()}
    return Secret(type=f"kubernetes.io/{kind}", data=data)


def images(runtime: RuntimeClient, node: Keyring, *secrets: Secret) -> Images:
    async def pod_keyring(pod: Pod) -> Keyring:
        return keyring_of(secrets)

    clock = SystemClock()
    journal = Journal(clock)
    return Images(
        client=runtime,
        recorder=EventRecorder(journal, "node"),
        journal=journal,
        clock=clock,
        limiter=trio.CapacityLimiter(1),
        rate=PullRate(0, 0),
        read_keyring=lambda: node,
        pod_keyring=pod_keyring,
    )


async def pull(images: Images, name: str) -> str:
    """Pull anew, whether the image is there or not; returns its id."""
    container = Container(name="c", image=name, image_pull_policy="Always")
    return (await images.ensure(POD, container, PodMemory(), SANDBOX)).id


async def test_a_pod_gets_its_image_with_its_own_secret(
    containerd: Containerd,
    registry: Registry,
    runtime: RuntimeClient,
    capsys: pytest.CaptureFixture[str],
) -> None:
    image = containerd.images[BUSYBOX].marked("behind a password")
    name = registry.push(image, "lab/guarded:1")
    nobody = Keyring()
    with pytest.raises(ImageError, match=r"(?i)ErrImagePull: .*authoriz"):
        await pull(images(runtime, nobody), name)
    with pytest.raises(ImageError, match=r"(?i)ErrImagePull: .*authoriz"):
        await pull(images(runtime, nobody, pull_secret("guessed")), name)
    for old in (False, True):
        assert await pull(images(runtime, nobody, pull_secret(PASSWORD, old=old)), name)
    several = (pull_secret("guessed", key=f"{NAME}/lab"), pull_secret(PASSWORD))
    assert await pull(images(runtime, nobody, *several), name)
    assert await pull(images(runtime, keyring_of([pull_secret(PASSWORD)])), name)
    assert PASSWORD not in capsys.readouterr().out
