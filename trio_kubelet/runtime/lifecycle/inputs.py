"""What a pod's containers are made with, got ready before the first of them is."""

from collections.abc import Mapping

from attrs import field, frozen

from trio_kubelet.runtime.config.container_config import ContainerAllocation
from trio_kubelet.runtime.config.environment import EnvironmentSources, NoSources
from trio_kubelet.runtime.config.mounts import PreparedVolume


@frozen(kw_only=True)
class PodInputs:
    """What a pod's containers are made with, got ready before any of them is.

    `volumes` by name; `sources` and `services` as for `environment`; `allocations` by the names of
    containers.
    """

    volumes: Mapping[str, PreparedVolume] = field(factory=dict)
    sources: EnvironmentSources = field(factory=NoSources)
    services: Mapping[str, str] = field(factory=dict)
    allocations: Mapping[str, ContainerAllocation] = field(factory=dict)
