"""Which pods' sandboxes need not wait for their volumes."""

import pytest

from trio_kubelet.k8s import (
    ConfigMapProjection,
    ConfigMapVolumeSource,
    DownwardAPIProjection,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    Pod,
    PodSpec,
    ProjectedVolumeSource,
    SecretProjection,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from trio_kubelet.volumes.pod_storage import volumes_ready_without_wait

TOKEN = VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="token"))
ROOT_CA = VolumeProjection(config_map=ConfigMapProjection(name="kube-root-ca.crt"))
FIELDS = VolumeProjection(downward_api=DownwardAPIProjection())
OWN_MAP = VolumeProjection(config_map=ConfigMapProjection(name="own"))
SECRET = VolumeProjection(secret=SecretProjection(name="own"))


def projected(*sources: VolumeProjection) -> Volume:
    return Volume(name="v", projected=ProjectedVolumeSource(sources=sources))


EVERY_PODS = projected(TOKEN, ROOT_CA, FIELDS)


@pytest.mark.parametrize(
    ("volumes", "certain"),
    [
        ((), True),
        ((EVERY_PODS,), True),
        ((EVERY_PODS, Volume(name="e", empty_dir=EmptyDirVolumeSource())), True),
        ((Volume(name="e", empty_dir=EmptyDirVolumeSource(medium="Memory")),), True),
        ((Volume(name="e", empty_dir=EmptyDirVolumeSource(medium="HugePages-1Gi")),), False),
        ((projected(TOKEN, OWN_MAP),), False),
        ((projected(TOKEN, SECRET),), False),
        ((projected(VolumeProjection()),), False),
        ((Volume(name="m", config_map=ConfigMapVolumeSource(name="kube-root-ca.crt")),), False),
        ((EVERY_PODS, Volume(name="s", secret=SecretVolumeSource(secret_name="own"))), False),
        ((EVERY_PODS, Volume(name="h", host_path=HostPathVolumeSource(path="/h"))), False),
    ],
)
def test_only_what_every_pod_is_given_is_certain(
    volumes: tuple[Volume, ...], certain: bool
) -> None:
    assert volumes_ready_without_wait(Pod(spec=PodSpec(volumes=volumes))) is certain
