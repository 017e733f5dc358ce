"""The devices that were allocated to a container, as its config has them."""

from collections.abc import Mapping

from attrs import field, frozen

from trio_kubelet.rpc.stubs.runtime import v1 as cri


@frozen(kw_only=True)
class ContainerAllocation:
    """Variables, mounts, device files, annotations and CDI devices beside those of the spec.

    Where the spec says something else of a variable, and the agent of an annotation, that counts.
    """

    variables: Mapping[str, str] = field(factory=dict)
    mounts: tuple[cri.Mount, ...] = ()
    devices: tuple[cri.Device, ...] = ()
    annotations: Mapping[str, str] = field(factory=dict)
    cdi_devices: tuple[str, ...] = ()


NOTHING_ALLOCATED = ContainerAllocation()
