"""What is seen of a node at one moment: the moving part of its status.

Gathered by `observer.py`, judged by `status.py`. The words in `errors` are those in which the
Ready condition explains itself, as the Go kubelet has them.
"""

from collections.abc import Iterable

from attrs import field, frozen

from trio_kubelet.k8s import ContainerImage
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.features import RuntimeFeatures

MAX_NAMES_OF_AN_IMAGE = 5
_LARGEST_SIZE_BYTES = 2**63 - 1
"""The runtime's number has no sign, the API's has one: it would refuse the whole status."""


@frozen(kw_only=True)
class Pressures:
    """Of what the node runs out, by its thresholds."""

    memory: bool = False
    disk: bool = False
    pid: bool = False


@frozen(kw_only=True)
class Observation:
    """One look at the node.

    `addresses` are the internal ones; None when they cannot be told, and those that are announced
    stay. `runtime` is name and version, `containerd://2.1.4`, empty while unknown. `errors` are
    the reasons why the node is not ready, none if it is; `is_early`: they may be no more than
    what an agent that has just started does not know yet. `pressures` is None before the node was
    measured for the first time.
    """

    addresses: tuple[str, ...] | None = None
    runtime: str = ""
    runtime_features: RuntimeFeatures = field(factory=RuntimeFeatures)
    images: tuple[ContainerImage, ...] = ()
    pressures: Pressures | None = None
    errors: tuple[str, ...] = ()
    is_early: bool = False


def runtime_words(version: cri.VersionResponse) -> str:
    """Name and version of a runtime as `nodeInfo.containerRuntimeVersion` has them."""
    return f"{version.runtime_name}://{version.runtime_version.removeprefix('v')}"


def container_images(images: Iterable[cri.Image], most: int) -> tuple[ContainerImage, ...]:
    """The `most` largest images (-1: all), each with up to five names, digests first."""
    by_size = sorted(images, key=lambda image: image.size, reverse=True)
    shown = by_size if most < 0 else by_size[:most]
    return tuple(
        ContainerImage(
            names=(*image.repo_digests, *image.repo_tags)[:MAX_NAMES_OF_AN_IMAGE],
            size_bytes=min(image.size, _LARGEST_SIZE_BYTES),
        )
        for image in shown
    )
