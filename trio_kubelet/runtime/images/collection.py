"""The images that go from a node, and their order; pure.

An image is unused if no container has it, running or dead, and no pod here names it, for a
container or a volume: pods that wait to start and pulls under way are among them. Of the unused
ones those go first that were used least recently. Times are nanoseconds since the epoch.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from attrs import evolve, frozen

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.image_reference import full_image_name
from trio_kubelet.rpc.stubs.runtime import v1 as cri


@frozen(order=True)
class ImageKey:
    """An image of the runtime, by its id, and by its handler where it keeps one for each."""

    id: str
    runtime_handler: str = ""


@frozen(kw_only=True)
class PresentImage:
    """An image that the runtime has, with all names that lead to it, its id among them."""

    key: ImageKey
    names: frozenset[str]
    shown_name: str
    size_bytes: int
    pinned: bool


@frozen(kw_only=True)
class ImageUse:
    """The times at which an image was first seen and last used; 0: never since."""

    first_detected_ns: int
    last_used_ns: int = 0


@frozen(kw_only=True)
class DiskSpace:
    """The size of a file system, and what it has for those who are not root."""

    available_bytes: int
    capacity_bytes: int


@frozen(kw_only=True)
class ImageCollectionPolicy:
    """The settings imageGCHighThresholdPercent, imageGCLowThresholdPercent and the two ages.

    Unused images that are younger than `minimum_age` do not make room; those that have not been
    used for `maximum_age` go even if there is room (zero: they stay).
    """

    high_percent: int = 85
    low_percent: int = 80
    minimum_age: timedelta = timedelta(minutes=2)
    maximum_age: timedelta = timedelta()

    @property
    def is_off(self) -> bool:
        """True if images are to stay, however full the disk is and however old they are."""
        return self.high_percent == 100 and not self.maximum_age

    def is_over_high(self, space: DiskSpace) -> bool:
        """True if room is to be made on a disk that has a size."""
        available = min(space.available_bytes, space.capacity_bytes)
        used_percent = 100 - available * 100 // space.capacity_bytes
        return used_percent >= self.high_percent

    def bytes_to_free(self, space: DiskSpace) -> int:
        """The bytes that lack until the disk is under the low threshold; zero or less: none."""
        wanted = space.capacity_bytes * (100 - self.low_percent) // 100
        return wanted - space.available_bytes


def present_images(images: Iterable[cri.Image]) -> tuple[PresentImage, ...]:
    """The images of a list of the runtime; one without an id, which nobody could remove, is not."""
    return tuple(
        PresentImage(
            key=ImageKey(image.id, image.spec.runtime_handler),
            names=frozenset(
                {image.id, *map(full_image_name, (*image.repo_tags, *image.repo_digests))}
            ),
            shown_name=next(iter((*image.repo_tags, *image.repo_digests)), image.id),
            size_bytes=image.size,
            pinned=image.pinned,
        )
        for image in images
        if image.id
    )


def images_of_pods(pods: Iterable[Pod]) -> frozenset[str]:
    """The full names of the images that pods name, for their containers and their volumes."""
    return frozenset(full_image_name(name) for pod in pods for name in _images_of(pod) if name)


def _images_of(pod: Pod) -> Iterable[str]:
    spec = pod.spec
    for containers in (spec.init_containers, spec.containers, spec.ephemeral_containers):
        yield from (container.image for container in containers)
    yield from (each.image.reference for each in spec.volumes if each.image is not None)


def images_of_containers(containers: Iterable[cri.Container]) -> frozenset[str]:
    """The names and ids of the images of the runtime's containers, running or dead."""
    names = {
        name for each in containers for name in (each.image_id, each.image_ref, each.image.image)
    }
    return frozenset(map(full_image_name, names - {""})) | names


def with_uses(
    known: Mapping[ImageKey, ImageUse],
    images: Iterable[PresentImage],
    used: frozenset[str],
    now_ns: int,
) -> Mapping[ImageKey, ImageUse]:
    """The uses of the images that are there, after a look that found those of `used` in use.

    A time that is still to come, by a clock that was set back, becomes now.
    """
    uses: dict[ImageKey, ImageUse] = {}
    for image in images:
        use = known.get(image.key) or ImageUse(first_detected_ns=now_ns)
        if image.names & used:
            use = evolve(use, last_used_ns=now_ns)
        uses[image.key] = ImageUse(
            first_detected_ns=min(use.first_detected_ns, now_ns),
            last_used_ns=min(use.last_used_ns, now_ns),
        )
    return uses


def unused_images(
    images: Iterable[PresentImage], uses: Mapping[ImageKey, ImageUse], used: frozenset[str]
) -> Sequence[PresentImage]:
    """The images that may go, the one that was used least recently first; pinned ones stay."""
    return sorted(
        (image for image in images if not image.pinned and not image.names & used),
        key=lambda image: (
            uses[image.key].last_used_ns,
            uses[image.key].first_detected_ns,
            image.key,
        ),
    )


def is_old_enough(use: ImageUse, policy: ImageCollectionPolicy, now_ns: int) -> bool:
    """True if an unused image may make room: it is not one that was just pulled."""
    return now_ns - use.first_detected_ns >= _nanoseconds(policy.minimum_age)


def is_too_old(use: ImageUse, policy: ImageCollectionPolicy, now_ns: int) -> bool:
    """True if an unused image is to go because of its age alone (KEP-4210).

    Of one that was never used, the age counts from when it was seen first.
    """
    if not policy.maximum_age:
        return False
    since_ns = max(use.last_used_ns, use.first_detected_ns)
    return now_ns - since_ns > _nanoseconds(policy.maximum_age)


def _nanoseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1) * 1000
