# ruff: noqa: ASYNC240 - the tests look at the disk themselves
"""Volumes of configuration data on the real kernel: memory, owners, sub-paths, takeover."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from trio_kubelet.k8s import (
    ClusterTrustBundleProjection,
    ConfigMap,
    ConfigMapVolumeSource,
    Container,
    ObjectMeta,
    Pod,
    PodSecurityContext,
    PodSpec,
    ProjectedVolumeSource,
    Secret,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from trio_kubelet.kernel.mountinfo import MountPoint, mount_points, mounts_at_or_below
from trio_kubelet.references import NoReferences, ObjectError, ObjectNotFoundError
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.mount import unmount
from trio_kubelet.volumes.volumes import Volumes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

GROUP, USER = 4321, 1234
MI = 1 << 20

SECRET = Volume(name="s", secret=SecretVolumeSource(secret_name="keys", default_mode=0o400))
MAP = Volume(name="m", config_map=ConfigMapVolumeSource(name="settings"))
TOKEN = Volume(
    name="t",
    projected=ProjectedVolumeSource(
        default_mode=0o644,
        sources=(
            VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="token")),
        ),
    ),
)


class Objects(NoReferences):
    """What the API server would give; `secret_data` and `token_text` may change."""

    def __init__(self) -> None:
        self.secret_data = {"key": b"old"}
        self.token_text = "one"
        self.down = False

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        return ConfigMap(data={"a": "1", "b": "2"})

    async def secret(self, namespace: str, name: str) -> Secret:
        if self.down:
            raise ObjectNotFoundError("secret", name)
        return Secret(data=self.secret_data)

    async def token(self, pod: Pod, audience: str, expiration_seconds: int | None) -> str:
        return self.token_text

    async def trust_anchors(self, pod: Pod, projection: ClusterTrustBundleProjection) -> bytes:
        raise ObjectError("none here")


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[PodFolders]:
    yield PodFolders(tmp_path)
    for each in mounts_at_or_below(tmp_path.resolve(), mount_points()):
        unmount(each.path)


@pytest.fixture
def volumes(folders: PodFolders, objects: Objects) -> Volumes:
    return agent(folders, objects)


def agent(folders: PodFolders, objects: Objects) -> Volumes:
    return local_volumes(folders, lambda pod: 64 * MI, data=objects)


def pod_with(*volumes: Volume, group: int | None = None, user: int | None = None) -> Pod:
    mounts = tuple(VolumeMount(name=each.name, mount_path=f"/{each.name}") for each in volumes)
    return Pod(
        metadata=ObjectMeta(name="p", namespace="n", uid="u1"),
        spec=PodSpec(
            containers=(Container(name="c", volume_mounts=mounts),),
            volumes=volumes,
            security_context=PodSecurityContext(fs_group=group, run_as_user=user),
        ),
    )


def mounts_of(folders: PodFolders) -> tuple[MountPoint, ...]:
    return mounts_at_or_below(folders.root.resolve(), mount_points())


def owned(path: Path) -> tuple[int, int, str]:
    status = path.lstat()
    return status.st_uid, status.st_gid, oct(stat.S_IMODE(status.st_mode))


async def test_secrets_and_tokens_are_in_memory_and_config_maps_on_disk(
    folders: PodFolders, volumes: Volumes
) -> None:
    mounted = await volumes.prepare(pod_with(SECRET, MAP, TOKEN))
    in_memory = {each.path for each in mounts_of(folders) if each.fs_type == "tmpfs"}
    assert in_memory == {Path(mounted[name].host_path).resolve() for name in ("s", "t")}
    assert (Path(mounted["s"].host_path) / "key").read_bytes() == b"old"


async def test_another_agent_finds_the_volume_and_its_pod_sees_no_change(
    folders: PodFolders, volumes: Volumes, objects: Objects
) -> None:
    pod = pod_with(SECRET)
    path = Path((await volumes.prepare(pod))["s"].host_path)
    before = (path / "..data").readlink()
    await agent(folders, objects).prepare(pod)
    assert (path / "..data").readlink() == before
    assert len(mounts_of(folders)) == 1


async def test_a_change_is_seen_through_a_mount_that_is_held(
    volumes: Volumes, objects: Objects
) -> None:
    pod = pod_with(SECRET)
    path = Path((await volumes.prepare(pod))["s"].host_path)
    held = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        objects.secret_data = {"key": b"new", "more": b"x"}
        await volumes.prepare(pod)
        assert Path(f"/proc/self/fd/{held}/key").read_bytes() == b"new"
        assert Path(f"/proc/self/fd/{held}/more").read_bytes() == b"x"
    finally:
        os.close(held)


async def test_memory_that_is_gone_after_a_reboot_is_made_again_before_the_pod_starts(
    folders: PodFolders, volumes: Volumes, objects: Objects
) -> None:
    pod = pod_with(SECRET)
    path = Path((await volumes.prepare(pod))["s"].host_path)
    unmount(path)
    objects.down = True
    with pytest.raises(Exception, match='secret "keys" not found'):
        await volumes.prepare(pod)
    objects.down = False
    await volumes.prepare(pod)
    assert (path / "key").read_bytes() == b"old"


async def test_the_group_owns_and_reads_everything(volumes: Volumes) -> None:
    mounted = await volumes.prepare(pod_with(SECRET, MAP, TOKEN, group=GROUP))
    secret, settings, token = (Path(mounted[name].host_path) for name in ("s", "m", "t"))
    assert owned(settings) == (0, GROUP, "0o2777")
    assert owned(secret)[1:] == (GROUP, "0o3777")
    assert owned((secret / "..data").resolve()) == (0, GROUP, "0o2755")
    assert owned((secret / "key").resolve()) == (0, GROUP, "0o440")
    assert owned((settings / "a").resolve()) == (0, GROUP, "0o644")
    assert owned((token / "token").resolve()) == (0, GROUP, "0o640")
    assert owned(secret / "..data")[:2] == (0, GROUP)
    assert owned(secret / "key")[:2] == (0, GROUP)


async def test_a_token_belongs_to_the_user_of_the_pod(volumes: Volumes) -> None:
    mounted = await volumes.prepare(pod_with(TOKEN, MAP, user=USER))
    token = Path(mounted["t"].host_path) / "token"
    assert owned(token.resolve()) == (USER, 0, "0o600")
    assert owned((Path(mounted["m"].host_path) / "a").resolve()) == (0, 0, "0o644")


async def test_ownership_is_no_reason_to_write_again(volumes: Volumes) -> None:
    pod = pod_with(SECRET, TOKEN, group=GROUP, user=USER)
    mounted = await volumes.prepare(pod)
    before = [(Path(each.host_path) / "..data").readlink() for each in mounted.values()]
    await volumes.prepare(pod)
    assert [(Path(each.host_path) / "..data").readlink() for each in mounted.values()] == before
    changed = evolve(pod, spec=evolve(pod.spec, security_context=None))
    await volumes.prepare(changed)
    assert (Path(mounted["s"].host_path) / "..data").readlink() != before[0]


async def test_a_key_is_bound_as_a_sub_path_and_a_restarted_container_gets_the_new_one(
    folders: PodFolders, volumes: Volumes, objects: Objects
) -> None:
    pod = pod_with(SECRET)
    secret = (await volumes.prepare(pod))["s"]
    bound = Path(await volumes.bind_sub_path(pod, secret, "c", 0, "key"))
    assert bound.read_bytes() == b"old"
    objects.secret_data = {"key": b"new"}
    await volumes.prepare(pod)
    assert bound.read_bytes() == b"old"
    await volumes.bind_sub_path(pod, secret, "c", 0, "key")
    assert bound.read_bytes() == b"new"
    await volumes.remove_pod("u1")
    assert mounts_of(folders) == ()
    assert await volumes.pods_on_disk() == set()
