"""Which images go, and in which order; what is kept of their uses."""

from datetime import timedelta
from pathlib import Path

import pytest
from attrs import evolve

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.images.collection import (
    DiskSpace,
    ImageCollectionPolicy,
    ImageKey,
    ImageUse,
    images_of_containers,
    images_of_pods,
    is_old_enough,
    is_too_old,
    present_images,
    unused_images,
    with_uses,
)
from trio_kubelet.runtime.images.filesystem import disk_space
from trio_kubelet.runtime.images.use_records import FILE_NAME, MAX_BYTES, read_uses, write_uses

SECOND = 1_000_000_000
DIGEST = "sha256:" + "ab" * 32


def image(id_: str, *tags: str, pinned: bool = False, handler: str = "") -> cri.Image:
    spec = cri.ImageSpec(runtime_handler=handler)
    return cri.Image(id=id_, repo_tags=list(tags), pinned=pinned, spec=spec)


def order(
    images: list[cri.Image], uses: dict[str, ImageUse], used: frozenset[str] = frozenset()
) -> list[str]:
    known = {ImageKey(id_): use for id_, use in uses.items()}
    return [each.key.id for each in unused_images(present_images(images), known, used)]


def test_the_least_recently_used_goes_first_and_the_never_used_by_their_age() -> None:
    uses = {
        "late": ImageUse(first_detected_ns=1, last_used_ns=9),
        "early": ImageUse(first_detected_ns=5, last_used_ns=8),
        "young": ImageUse(first_detected_ns=7),
        "old": ImageUse(first_detected_ns=6),
    }
    assert order([image(id_) for id_ in uses], uses) == ["old", "young", "early", "late"]


@pytest.mark.parametrize(
    ("present", "used"),
    [
        (image("sha256:i", "docker.io/library/web:1"), "sha256:i"),
        (image("sha256:i", "docker.io/library/web:1"), "docker.io/library/web:1"),
        (image("sha256:i", pinned=True), "sha256:other"),
    ],
)
def test_an_image_that_is_used_by_any_of_its_names_stays_and_so_does_a_pinned_one(
    present: cri.Image, used: str
) -> None:
    assert order([present], {"sha256:i": ImageUse(first_detected_ns=1)}, frozenset({used})) == []


@pytest.mark.parametrize(
    ("container", "name"),
    [
        (cri.Container(image_ref="sha256:i"), "sha256:i"),
        (cri.Container(image_id="sha256:i"), "sha256:i"),
        (cri.Container(image=cri.ImageSpec(image="web")), "docker.io/library/web:latest"),
        (cri.Container(image_ref=f"web@{DIGEST}"), f"docker.io/library/web@{DIGEST}"),
    ],
)
def test_a_container_uses_its_image_by_whatever_the_runtime_tells(
    container: cri.Container, name: str
) -> None:
    assert name in images_of_containers([container])


def test_pods_name_images_for_all_kinds_of_containers_and_for_volumes() -> None:
    pod = decode(
        Pod,
        {
            "metadata": {"name": "p", "namespace": "n"},
            "spec": {
                "initContainers": [{"name": "i", "image": "init:1"}],
                "containers": [{"name": "c", "image": f"main:7@{DIGEST}"}],
                "ephemeralContainers": [{"name": "e", "image": "Not A Name"}],
                "volumes": [{"name": "v", "image": {"reference": "quay.io/data"}}],
            },
        },
    )
    assert images_of_pods([pod]) == {
        "docker.io/library/init:1",
        f"docker.io/library/main@{DIGEST}",
        "Not A Name",
        "quay.io/data:latest",
    }


def test_images_of_several_handlers_are_told_apart_and_one_without_id_is_left_out() -> None:
    found = present_images([image("i", handler="kata"), image("i"), image("")])
    assert [each.key for each in found] == [ImageKey("i", "kata"), ImageKey("i")]


def test_uses_are_those_of_the_images_that_are_there() -> None:
    known = {
        ImageKey("used"): ImageUse(first_detected_ns=10, last_used_ns=20),
        ImageKey("unused"): ImageUse(first_detected_ns=11, last_used_ns=21),
        ImageKey("gone"): ImageUse(first_detected_ns=12),
    }
    images = present_images([image("used"), image("unused"), image("new")])
    assert with_uses(known, images, frozenset({"used"}), 30) == {
        ImageKey("used"): ImageUse(first_detected_ns=10, last_used_ns=30),
        ImageKey("unused"): ImageUse(first_detected_ns=11, last_used_ns=21),
        ImageKey("new"): ImageUse(first_detected_ns=30),
    }


def test_no_use_is_later_than_a_clock_that_was_set_back() -> None:
    known = {ImageKey("i"): ImageUse(first_detected_ns=500, last_used_ns=600)}
    found = with_uses(known, present_images([image("i")]), frozenset(), 30)
    assert found == {ImageKey("i"): ImageUse(first_detected_ns=30, last_used_ns=30)}


POLICY = ImageCollectionPolicy()


@pytest.mark.parametrize(
    ("available", "is_over", "lacking"),
    [
        (100, False, -80),
        (16, False, 4),
        (15, True, 5),
        (0, True, 20),
        (200, False, -180),
    ],
)
def test_room_is_made_from_the_high_threshold_down_to_the_low_one(
    available: int, is_over: bool, lacking: int
) -> None:
    space = DiskSpace(available_bytes=available, capacity_bytes=100)
    assert (POLICY.is_over_high(space), POLICY.bytes_to_free(space)) == (is_over, lacking)


@pytest.mark.parametrize(
    ("changes", "is_off"),
    [
        ({}, False),
        ({"high_percent": 100}, True),
        ({"high_percent": 100, "maximum_age": timedelta(hours=1)}, False),
    ],
)
def test_collection_is_off_only_if_nothing_could_be_a_reason(
    changes: dict[str, object], is_off: bool
) -> None:
    assert evolve(POLICY, **changes).is_off is is_off  # type: ignore[arg-type]


@pytest.mark.parametrize(("age_seconds", "expected"), [(119, False), (120, True)])
def test_an_image_makes_room_once_it_is_not_new(age_seconds: int, expected: bool) -> None:
    use = ImageUse(first_detected_ns=SECOND)
    assert is_old_enough(use, POLICY, (1 + age_seconds) * SECOND) is expected


@pytest.mark.parametrize(
    ("use", "now", "expected"),
    [
        (ImageUse(first_detected_ns=SECOND), 3601, False),
        (ImageUse(first_detected_ns=SECOND), 3602, True),
        (ImageUse(first_detected_ns=SECOND, last_used_ns=100 * SECOND), 3700, False),
        (ImageUse(first_detected_ns=SECOND, last_used_ns=100 * SECOND), 3701, True),
    ],
)
def test_an_image_is_too_old_when_nobody_has_used_it_for_so_long(
    use: ImageUse, now: int, expected: bool
) -> None:
    policy = evolve(POLICY, maximum_age=timedelta(hours=1))
    assert is_too_old(use, policy, now * SECOND) is expected
    assert not is_too_old(use, POLICY, now * SECOND)


USES = {
    ImageKey("sha256:a"): ImageUse(first_detected_ns=5 * SECOND, last_used_ns=7 * SECOND),
    ImageKey("sha256:a", "kata"): ImageUse(first_detected_ns=6 * SECOND),
}


def test_uses_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_uses(tmp_path, USES)
    assert read_uses(tmp_path) == USES


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"images": 1}',
        b'{"images": [{"id": "i"}]}',
        b'{"images": [{"id": "i", "firstDetected": "yesterday"}]}',
        b'{"images": [{"id": "i", "firstDetected": 7}]}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_records_that_are_none_are_as_good_as_no_records(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert read_uses(tmp_path) == {}
    write_uses(tmp_path, USES)
    assert read_uses(tmp_path) == USES


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / FILE_NAME).open("wb") as file:
        file.truncate(MAX_BYTES * 1000)
    assert read_uses(tmp_path) == {}


def test_the_disk_is_measured_and_what_is_none_has_no_size(tmp_path: Path) -> None:
    space = disk_space(str(tmp_path))
    assert 0 < space.available_bytes < space.capacity_bytes
    nothing = DiskSpace(available_bytes=0, capacity_bytes=0)
    assert [disk_space(folder) for folder in ("/nowhere", "", "nul\0")] == [nothing] * 3
