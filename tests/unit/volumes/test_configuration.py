"""Volumes of configuration data, from the objects of the API to the files that a pod sees."""

import gc
import stat
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from attrs import evolve, field, frozen

from trio_kubelet.k8s import (
    ClusterTrustBundleProjection,
    ConfigMap,
    ConfigMapProjection,
    ConfigMapVolumeSource,
    Container,
    DownwardAPIProjection,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    KeyToPath,
    ObjectFieldSelector,
    ObjectMeta,
    Pod,
    PodCertificateProjection,
    PodSecurityContext,
    PodSpec,
    ProjectedVolumeSource,
    Secret,
    SecretProjection,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from trio_kubelet.references import NoReferences, ObjectError, ObjectNotFoundError
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.collect import Collector
from trio_kubelet.volumes.payload import VolumeFile, VolumeTooLargeError
from trio_kubelet.volumes.plugin import VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes


@frozen(kw_only=True)
class Fetched(NoReferences):
    """Objects by name, as if the API server had them in the namespace `n`."""

    config_maps: dict[str, Mapping[str, str]] = field(factory=dict)
    secrets: dict[str, Mapping[str, bytes]] = field(factory=dict)
    tokens: dict[str, str] = field(factory=dict)
    anchors: dict[str, bytes] = field(factory=dict)
    down: list[str] = field(factory=list)

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        assert namespace == "n"
        if self.down:
            raise ObjectError(self.down[0])
        if name not in self.config_maps:
            raise ObjectNotFoundError("configmap", name)
        return ConfigMap(data=self.config_maps[name])

    async def secret(self, namespace: str, name: str) -> Secret:
        assert namespace == "n"
        if name not in self.secrets:
            raise ObjectNotFoundError("secret", name)
        return Secret(data=self.secrets[name])

    async def token(self, pod: Pod, audience: str, expiration_seconds: int | None) -> str:
        return f"{pod.metadata.uid} for {audience} {expiration_seconds}"

    async def trust_anchors(self, pod: Pod, projection: ClusterTrustBundleProjection) -> bytes:
        return self.anchors[projection.name]


@pytest.fixture
def data() -> Fetched:
    return Fetched(
        config_maps={"settings": {"a": "1", "b": "2"}},
        secrets={"keys": {"key": b"k"}},
        anchors={"roots": b"PEM"},
    )


@pytest.fixture
def folders(tmp_path: Path) -> PodFolders:
    return PodFolders(tmp_path)


@pytest.fixture
def volumes(folders: PodFolders, data: Fetched) -> Volumes:
    return local_volumes(
        folders, lambda pod: 1 << 20, data=data, clock=SystemClock(), privileged=False
    )


def pod_with(*volumes: Volume, fs_group: int | None = None, user: int | None = None) -> Pod:
    mounts = tuple(VolumeMount(name=each.name, mount_path=f"/{each.name}") for each in volumes)
    return Pod(
        metadata=ObjectMeta(name="p", namespace="n", uid="u1", labels={"app": "web"}),
        spec=PodSpec(
            containers=(Container(name="c", volume_mounts=mounts),),
            volumes=volumes,
            security_context=PodSecurityContext(fs_group=fs_group, run_as_user=user),
        ),
    )


def map_volume(name: str = "settings", optional: bool | None = None) -> Volume:
    return Volume(name="v", config_map=ConfigMapVolumeSource(name=name, optional=optional))


SECRET_VOLUME = Volume(name="s", secret=SecretVolumeSource(secret_name="keys", default_mode=0o400))
LABELS = (
    DownwardAPIVolumeFile(
        path="labels", field_ref=ObjectFieldSelector(field_path="metadata.labels")
    ),
)
DOWNWARD_VOLUME = Volume(name="d", downward_api=DownwardAPIVolumeSource(items=LABELS))


def projected(*sources: VolumeProjection) -> Volume:
    return Volume(name="all", projected=ProjectedVolumeSource(sources=sources, default_mode=0o644))


def shown(folder: str) -> dict[str, str]:
    return {
        each.name: each.read_text()
        for each in Path(folder).iterdir()
        if not each.name.startswith("..")
    }


async def test_each_kind_has_its_folder_and_no_container_writes_there(
    folders: PodFolders, volumes: Volumes
) -> None:
    pod = pod_with(map_volume(), SECRET_VOLUME, DOWNWARD_VOLUME, projected())
    mounted = await volumes.prepare(pod)
    assert {name: Path(each.host_path).parent.name for name, each in mounted.items()} == {
        "v": "kubernetes.io~configmap",
        "s": "kubernetes.io~secret",
        "d": "kubernetes.io~downward-api",
        "all": "kubernetes.io~projected",
    }
    for parent in (Path(each.host_path).parent for each in mounted.values()):
        assert stat.S_IMODE(parent.stat().st_mode) == 0o755
    assert all(each.read_only and each.selinux_relabel for each in mounted.values())
    assert shown(mounted["v"].host_path) == {"a": "1", "b": "2"}
    assert shown(mounted["s"].host_path) == {"key": "k"}
    assert stat.S_IMODE((Path(mounted["s"].host_path) / "key").stat().st_mode) == 0o400
    assert shown(mounted["d"].host_path) == {"labels": 'app="web"'}
    assert (folders.root / "pods/u1/plugins/kubernetes.io~empty-dir/wrapped_v/ready").exists()


async def test_a_running_pod_gets_what_changed(volumes: Volumes, data: Fetched) -> None:
    pod = pod_with(map_volume(), DOWNWARD_VOLUME)
    mounted = await volumes.prepare(pod)
    data.config_maps["settings"] = {"a": "one"}
    pod = evolve(pod, metadata=evolve(pod.metadata, labels={"app": "new"}))
    await volumes.prepare(pod)
    assert shown(mounted["v"].host_path) == {"a": "one"}
    assert shown(mounted["d"].host_path) == {"labels": 'app="new"'}


async def test_a_missing_object_is_told_as_users_know_it(volumes: Volumes) -> None:
    with pytest.raises(VolumesNotReady) as caught:
        await volumes.prepare(pod_with(map_volume("gone")))
    expected = 'MountVolume.SetUp failed for volume "v" : configmap "gone" not found'
    assert caught.value.failures == [("FailedMount", expected)]


async def test_an_optional_object_that_is_missing_is_empty_until_it_comes(
    volumes: Volumes, data: Fetched
) -> None:
    pod = pod_with(map_volume("later", optional=True))
    mounted = await volumes.prepare(pod)
    assert shown(mounted["v"].host_path) == {}
    data.config_maps["later"] = {"x": "y"}
    await volumes.prepare(pod)
    assert shown(mounted["v"].host_path) == {"x": "y"}


async def test_a_pod_goes_on_with_what_it_has_when_an_object_vanishes(
    volumes: Volumes, data: Fetched
) -> None:
    pod = pod_with(map_volume())
    assert (await volumes.prepare(pod))["v"].outdated is None
    del data.config_maps["settings"]
    mounted = (await volumes.prepare(pod))["v"]
    assert shown(mounted.host_path) == {"a": "1", "b": "2"}
    expected = 'MountVolume.SetUp failed for volume "v" : configmap "settings" not found'
    assert str(mounted.outdated) == expected


async def test_optional_does_not_excuse_a_server_that_does_not_answer(
    volumes: Volumes, data: Fetched
) -> None:
    data.down.append("no answer")
    with pytest.raises(VolumesNotReady, match="no answer"):
        await volumes.prepare(pod_with(map_volume(optional=True)))


@pytest.mark.parametrize("path", ["../../escaped", "/etc/escaped", "..data/x"])
async def test_no_item_leaves_the_volume(volumes: Volumes, path: str) -> None:
    source = ConfigMapVolumeSource(name="settings", items=(KeyToPath(key="a", path=path),))
    with pytest.raises(VolumesNotReady, match="invalid path"):
        await volumes.prepare(pod_with(Volume(name="v", config_map=source)))


async def test_volumes_and_marks_go_with_the_pod(folders: PodFolders, volumes: Volumes) -> None:
    await volumes.prepare(pod_with(map_volume(), SECRET_VOLUME, DOWNWARD_VOLUME, projected()))
    await volumes.tear_down("u1")
    assert [*folders.volumes("u1").iterdir()] == []
    await volumes.remove_pod("u1")
    assert await volumes.pods_on_disk() == set()


class TestProjected:
    SOURCES = (
        VolumeProjection(config_map=ConfigMapProjection(name="settings")),
        VolumeProjection(
            secret=SecretProjection(name="keys", items=(KeyToPath(key="key", path="b"),))
        ),
        VolumeProjection(downward_api=DownwardAPIProjection(items=LABELS)),
        VolumeProjection(
            service_account_token=ServiceAccountTokenProjection(
                path="token", audience="vault", expiration_seconds=600
            )
        ),
        VolumeProjection(
            cluster_trust_bundle=ClusterTrustBundleProjection(name="roots", path="ca.pem")
        ),
    )

    async def collect(
        self, data: Fetched, *sources: VolumeProjection, group: int | None = None
    ) -> Mapping[str, VolumeFile]:
        collector = Collector(data=data, allocatable=dict)
        volume = projected(*sources)
        make = await collector.collect(pod_with(volume, fs_group=group), volume)
        return make()

    async def test_all_sources_meet_in_one_folder_and_later_ones_win(self, data: Fetched) -> None:
        files = await self.collect(data, *self.SOURCES)
        assert {path: file.content for path, file in files.items()} == {
            "a": b"1",
            "b": b"k",
            "labels": b'app="web"',
            "token": b"u1 for vault 600",
            "ca.pem": b"PEM",
        }
        assert {file.mode for file in files.values()} == {0o644}

    async def test_nothing_is_fetched_for_more_sources_than_files(self, data: Fetched) -> None:
        wanted = (
            ServiceAccountTokenProjection(path=f"t{n}", audience=f"{n}") for n in range(10_001)
        )
        volume = projected(*(VolumeProjection(service_account_token=each) for each in wanted))
        collector = Collector(data=data, allocatable=dict)
        with pytest.raises(VolumeTooLargeError, match="has more than 10000 files"):
            await collector.collect(pod_with(volume), volume)

    async def test_a_token_is_for_the_pods_own_eyes(self, data: Fetched) -> None:
        files = await self.collect(data, *self.SOURCES, group=99)
        assert (files["token"].mode, files["token"].group) == (0o640, 99)
        assert files["a"].mode == 0o644
        collector = Collector(data=data, allocatable=dict)
        volume = projected(*self.SOURCES)
        make = await collector.collect(pod_with(volume, user=1234), volume)
        files = make()
        assert (files["token"].mode, files["token"].user) == (0o600, 1234)
        assert files["a"].user is None

    async def test_everything_that_is_missing_is_told_at_once(self, data: Fetched) -> None:
        gone = (
            VolumeProjection(secret=SecretProjection(name="no")),
            VolumeProjection(config_map=ConfigMapProjection(name="nor this")),
            VolumeProjection(config_map=ConfigMapProjection(name="fine", optional=True)),
        )
        expected = r'^\[secret "no" not found, configmap "nor this" not found\]$'
        with pytest.raises(ObjectError, match=expected):
            await self.collect(data, *gone)

    async def test_pod_certificates_are_refused(self, data: Fetched) -> None:
        source = VolumeProjection(pod_certificate=PodCertificateProjection(signer_name="x/y"))
        with pytest.raises(ObjectError, match="are not supported"):
            await self.collect(data, source)


async def test_without_an_api_server_the_pods_own_fields_are_files_all_the_same(
    folders: PodFolders,
) -> None:
    volumes = local_volumes(folders, lambda pod: 1 << 20, privileged=False)
    mounted = await volumes.prepare(pod_with(DOWNWARD_VOLUME))
    assert shown(mounted["d"].host_path) == {"labels": 'app="web"'}
    with pytest.raises(VolumesNotReady, match='secret "keys" not found'):
        await volumes.prepare(pod_with(SECRET_VOLUME))


async def test_a_volume_that_failed_keeps_nothing_of_what_it_was_made_of(
    volumes: Volumes, data: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not until a search for circles: each try would keep other megabytes until then."""
    seen: list[weakref.ref[ConfigMap]] = []

    async def config_map(self: Fetched, namespace: str, name: str) -> ConfigMap:
        found = ConfigMap(data=data.config_maps[name])
        seen.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Fetched, "config_map", config_map)
    data.config_maps["many"] = {f"k{number}": "" for number in range(20_000)}
    there = VolumeProjection(config_map=ConfigMapProjection(name="settings"))
    missing = VolumeProjection(secret=SecretProjection(name="missing"))
    wrong = VolumeProjection(
        config_map=ConfigMapProjection(name="settings", items=(KeyToPath(key="x", path="x"),))
    )
    pods = [pod_with(map_volume("many")), pod_with(projected(there, missing, wrong))]
    gc.collect()
    gc.disable()
    try:
        for pod in pods:
            with suppress(VolumesNotReady):
                await volumes.prepare(pod)
        assert len(seen) == 3
        assert [each() for each in seen] == [None] * 3
    finally:
        gc.enable()
