"""The sandboxes that need not wait for the volumes of their pods."""

from pathlib import Path

import pytest

from tests.unit.references.cluster import open_cluster
from tests.unit.references.pods import pod_with
from tests.unit.volumes.test_pod_storage import Storage
from trio_kubelet.k8s import (
    ConfigMapProjection,
    ConfigMapVolumeSource,
    DownwardAPIProjection,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    KeyToPath,
    ProjectedVolumeSource,
    SecretProjection,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)

TOKEN = VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="token"))
ROOT_CA = VolumeProjection(config_map=ConfigMapProjection(name="kube-root-ca.crt"))
FIELDS = VolumeProjection(downward_api=DownwardAPIProjection())
ITEM = (KeyToPath(key="k", path="p"),)
OTHER_ITEM = (KeyToPath(key="k", path="p"), KeyToPath(key="other", path="q"))


def projected(*sources: VolumeProjection) -> Volume:
    return Volume(name="v", projected=ProjectedVolumeSource(sources=sources))


def config_map(
    name: str, items: tuple[KeyToPath, ...] = (), optional: bool | None = None
) -> Volume:
    source = ConfigMapVolumeSource(name=name, items=items, optional=optional)
    return Volume(name="m", config_map=source)


def secret(name: str, items: tuple[KeyToPath, ...] = (), optional: bool | None = None) -> Volume:
    source = SecretVolumeSource(secret_name=name, items=items, optional=optional)
    return Volume(name="s", secret=source)


def projected_map(name: str, items: tuple[KeyToPath, ...] = ()) -> VolumeProjection:
    return VolumeProjection(config_map=ConfigMapProjection(name=name, items=items))


def projected_secret(name: str, items: tuple[KeyToPath, ...] = ()) -> VolumeProjection:
    return VolumeProjection(secret=SecretProjection(name=name, items=items))


EVERY_PODS = projected(TOKEN, ROOT_CA, FIELDS)
EMPTY = Volume(name="e", empty_dir=EmptyDirVolumeSource())


@pytest.mark.parametrize(
    ("volumes", "certain"),
    [
        ((), True),
        ((EVERY_PODS, EMPTY), True),
        ((Volume(name="e", empty_dir=EmptyDirVolumeSource(medium="Memory")),), True),
        ((Volume(name="e", empty_dir=EmptyDirVolumeSource(medium="HugePages-1Gi")),), False),
        ((EVERY_PODS, config_map("own"), secret("own")), True),
        ((projected(TOKEN, projected_map("own"), projected_secret("own")),), True),
        ((config_map("none"), EVERY_PODS), False),
        ((EVERY_PODS, secret("none")), False),
        ((projected(TOKEN, projected_map("none")),), False),
        ((projected(TOKEN, projected_secret("none")),), False),
        ((config_map("none", optional=True), secret("none", optional=True)), True),
        ((config_map("own", items=ITEM), secret("own", items=ITEM)), True),
        ((config_map("own", items=OTHER_ITEM),), False),
        ((secret("own", items=OTHER_ITEM),), False),
        ((projected(projected_map("own", items=OTHER_ITEM)),), False),
        ((projected(projected_secret("own", items=OTHER_ITEM)),), False),
        ((config_map("own", items=OTHER_ITEM, optional=True),), True),
        ((projected(VolumeProjection()),), False),
        ((EVERY_PODS, Volume(name="h", host_path=HostPathVolumeSource(path="/h"))), False),
        ((config_map("own"),) * 16, True),
        ((config_map("own"),) * 17, False),
    ],
)
async def test_volumes_are_certain_where_all_objects_and_keys_are_there(
    tmp_path: Path, volumes: tuple[Volume, ...], certain: bool
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("own", k="v")
        cluster.put_secret("own", k=b"v")
        storage = Storage(cluster, tmp_path)
        assert await storage.pods.volumes_are_certain(pod_with(volumes=volumes)) is certain
