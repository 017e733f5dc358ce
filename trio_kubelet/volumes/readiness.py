"""Which pods' volumes will be there for certain. Pure.

Most pods have the one volume that the admission of service accounts gives to each: a token, the
certificates of the API server and the namespace's name. Nothing of it can be missing for long,
so such a pod's sandbox need not wait until it is written.
"""

from trio_kubelet.k8s import Pod, StorageMedium, Volume, VolumeProjection
from trio_kubelet.references.object_references import ROOT_CERTIFICATES


def volumes_ready_without_wait(pod: Pod) -> bool:
    """True if no object that somebody has to make, and nothing of the node, can be missing."""
    return all(map(_is_ready_without_wait, pod.spec.volumes))


def _is_ready_without_wait(volume: Volume) -> bool:
    if volume.empty_dir is not None:
        return volume.empty_dir.medium in (StorageMedium.DEFAULT, StorageMedium.MEMORY)
    if volume.projected is not None:
        return all(map(_is_always_there, volume.projected.sources))
    return volume.downward_api is not None


def _is_always_there(source: VolumeProjection) -> bool:
    if source.config_map is not None:
        return source.config_map.name == ROOT_CERTIFICATES
    return source.downward_api is not None or source.service_account_token is not None
