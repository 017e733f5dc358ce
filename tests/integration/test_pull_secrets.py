"""A registry that asks for a password, a real containerd, and the pull secrets of a pod."""

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from attrs import evolve

from lab.containerd import Containerd
from lab.images import BUSYBOX
from lab.registry import NAME, PASSWORD, USER, Registry
from trio_kubelet.config.credential_providers import PROVIDER_V1
from trio_kubelet.config.records import CredentialProvider
from trio_kubelet.k8s import Container, ObjectMeta, Pod, Secret
from trio_kubelet.references import NoReferences
from trio_kubelet.rpc import Channel, open_rpc_loop
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.images.access import Verification
from trio_kubelet.runtime.images.credential_plugin import CredentialPlugin
from trio_kubelet.runtime.images.credential_providers import (
    ImageCredentialProvider,
    ImageCredentialProviders,
)
from trio_kubelet.runtime.images.credentials import Keyring, joined, secret_keyring
from trio_kubelet.runtime.images.manager import ImageError, ImageManager
from trio_kubelet.runtime.images.pod_images import PodImages, WantedImage
from trio_kubelet.runtime.images.pull_rate import PullRate
from trio_kubelet.runtime.images.pull_record_files import file_name
from trio_kubelet.runtime.images.pull_records import ImageAccess, PullRecords
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import EventRecorder, Journal

POD = Pod(metadata=ObjectMeta(name="p", namespace="shop", uid="u1"))
STRANGER = Pod(metadata=ObjectMeta(name="s", namespace="thieves", uid="u2"))
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
    meta = ObjectMeta(name="key", namespace="shop", uid="key-1")
    return Secret(metadata=meta, type=f"kubernetes.io/{kind}", data=data)


def images(
    runtime: RuntimeClient, node: Keyring, *secrets: Secret, access: ImageAccess | None = None
) -> ImageManager:
    async def pod_keyring(pod: Pod) -> Keyring:
        return joined(map(secret_keyring, secrets))

    clock = SystemClock()
    journal = Journal(clock)
    return ImageManager(
        client=runtime,
        recorder=EventRecorder(journal, "node"),
        journal=journal,
        clock=clock,
        limiter=FairLimiter(1, 1),
        rate=PullRate(0, 0),
        read_keyring=lambda: node,
        pod_keyring=pod_keyring,
        access=access or ImageAccess(),
    )


async def pull(images: ImageManager, name: str, policy: str = "Always", pod: Pod = POD) -> str:
    """Get an image; with `Always`, whether it is there or not. Returns its id."""
    container = Container(name="c", image=name, image_pull_policy=policy)
    return (await images.ensure(pod, WantedImage.of_container(container), PodImages(), SANDBOX)).id


async def pull_records(root: Path, clock: SystemClock | None = None) -> PullRecords:
    records = PullRecords(root, Verification(), clock or SystemClock())
    await records.load()
    return records


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
    assert await pull(images(runtime, joined(map(secret_keyring, [pull_secret(PASSWORD)]))), name)
    assert PASSWORD not in capsys.readouterr().out


async def test_a_credential_provider_opens_the_registry(
    containerd: Containerd,
    registry: Registry,
    runtime: RuntimeClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    image = containerd.images[BUSYBOX].marked("for who asks a provider")
    name = registry.push(image, "lab/provided:1")
    answer = {
        "kind": "CredentialProviderResponse",
        "apiVersion": PROVIDER_V1,
        "cacheKeyType": "Registry",
        "auth": {NAME: {"username": USER, "password": PASSWORD}},
    }
    program = tmp_path / "provider"
    program.write_text(f"#!/bin/sh\ncat >>$0.asked\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    program.chmod(0o755)
    config = CredentialProvider(
        name="provider",
        match_images=("*.test/lab",),
        default_cache_duration=timedelta(hours=1),
        api_version=PROVIDER_V1,
    )
    plugin = CredentialPlugin(config, tmp_path, lambda *_: None)
    provider = ImageCredentialProvider(config, plugin, NoReferences())
    nobody = images(runtime, Keyring())
    with pytest.raises(ImageError, match=r"(?i)ErrImagePull: .*authoriz"):
        await pull(nobody, name)
    ours = evolve(nobody, providers=ImageCredentialProviders([provider]))
    for _ in range(2):
        assert await pull(ours, name)
    asked = [json.loads(line) for line in (tmp_path / "provider.asked").read_text().splitlines()]
    assert [each["image"] for each in asked] == [name.partition(":")[0]]
    assert PASSWORD not in capsys.readouterr().out


async def test_an_image_on_the_node_is_for_those_alone_who_can_open_its_registry(
    containerd: Containerd, registry: Registry, runtime: RuntimeClient, tmp_path: Path
) -> None:
    image = containerd.images[BUSYBOX].marked("for one tenant alone")
    name = registry.push(image, "lab/tenant:1")
    nobody, records = Keyring(), await pull_records(tmp_path)
    guessed, copied = (
        evolve(pull_secret(password), metadata=ObjectMeta(name="mine", namespace="x", uid=password))
        for password in ("guessed", PASSWORD)
    )
    owner = images(runtime, nobody, pull_secret(PASSWORD), access=records)
    image_id = await pull(owner, name, "IfNotPresent")
    for access in (records, await pull_records(tmp_path)):
        for secrets in ((), (guessed,)):
            stranger = images(runtime, nobody, *secrets, access=access)
            with pytest.raises(ImageError, match=r"(?i)ErrImagePull: .*authoriz"):
                await pull(stranger, name, "IfNotPresent", STRANGER)
            with pytest.raises(ImageError, match=r"ErrImageNeverPull: .* is not present with"):
                await pull(stranger, name, "Never", STRANGER)
    before = len(registry.requests())
    after_restart = await pull_records(tmp_path)
    for secret, pod in ((pull_secret(PASSWORD), POD), (copied, STRANGER)):
        friend = images(runtime, nobody, secret, access=after_restart)
        assert await pull(friend, name, "IfNotPresent", pod) == image_id
        assert await pull(friend, name, "Never", pod) == image_id
    assert len(registry.requests()) == before, "who has proven access need not ask again"


class Later(SystemClock):
    """A clock that is a minute ahead: what was recorded now is old."""

    def now_ns(self) -> int:
        return super().now_ns() + 60 * 10**9


async def test_records_go_with_their_images_and_what_a_kill_left_is_settled(
    containerd: Containerd, registry: Registry, runtime: RuntimeClient, tmp_path: Path
) -> None:
    image = containerd.images[BUSYBOX].marked("removed later")
    name = registry.push(image, "lab/removed:1")
    records = await pull_records(tmp_path)
    image_id = await pull(
        images(runtime, Keyring(), pull_secret(PASSWORD), access=records), name, "IfNotPresent"
    )
    folder = tmp_path / "image_manager"
    record = folder / "pulled" / file_name(image_id)
    assert record.exists()
    assert not list((folder / "pulling").iterdir())

    record.unlink()
    killed = await pull_records(tmp_path)
    await killed.begin(name)
    records = await pull_records(tmp_path)
    await records.tidy(runtime)
    assert record.exists()
    assert not list((folder / "pulling").iterdir())
    with pytest.raises(ImageError, match="ErrImageNeverPull"):
        await pull(images(runtime, Keyring(), access=records), name, "Never", STRANGER)

    await runtime.remove_image(cri.ImageSpec(image=image_id))
    records = await pull_records(tmp_path, Later())
    await records.tidy(runtime)
    assert not record.exists()
