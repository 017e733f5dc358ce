"""After a power failure at any moment an agent finds all that its promises stand on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.power_failures import Failure, PowerFailures
from tests.unit.runtime.test_allocations import allocations
from tests.unit.runtime.test_pull_records import (
    FOUND,
    IMAGE,
    IMAGE_ID,
    MINE,
    NOBODY,
    records,
    shows,
)
from tests.unit.runtime.test_resource_records import LARGER, pod
from tests.unit.runtime.test_user_namespaces import asking
from tests.unit.sources.manifest_texts import kept, manifest
from tests.unit.sources.test_kept import records as manifests
from trio_kubelet.k8s.codec import encode
from trio_kubelet.kernel.whole_files import write_all_whole, write_whole
from trio_kubelet.runtime.images.access import AccessCheck
from trio_kubelet.runtime.user_namespaces import PodIdRanges


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def boots(tmp_path: Path) -> Callable[[PowerFailures], Iterator[tuple[Failure, Path]]]:
    """Each failure with the folder that the next boot finds."""

    def restored(failures: PowerFailures) -> Iterator[tuple[Failure, Path]]:
        seen = []
        for number, failure in enumerate(failures.found):
            if (failure.moment, failure.files) in seen:
                continue
            seen.append((failure.moment, failure.files))
            folder = tmp_path / f"boot-{number}"
            folder.mkdir()
            failure.restore(folder)
            yield failure, folder

    return restored


Boots = Callable[[PowerFailures], Iterator[tuple[Failure, Path]]]


def test_the_model_loses_what_was_not_synced(disk: Path, boots: Boots) -> None:
    failures = PowerFailures(disk)
    with failures.noted():
        write_whole(disk / "file", b"new")
    found = {path.read_bytes() for _, folder in boots(failures) for path in folder.glob("file")}
    assert found == {b"", b"new"}
    last = {failure.survived: dict(failure.files) for failure in failures.found[-3:]}
    assert last == {"nothing": {}, "names": {"file": b""}, "all": {"file": b"new"}}


def test_a_file_is_the_old_one_or_the_new_one_and_the_new_one_at_the_end(
    disk: Path, boots: Boots
) -> None:
    (disk / "old").write_bytes(b"old")
    failures = PowerFailures(disk)
    with failures.noted():
        write_all_whole({disk / "old": b"new", disk / "other": b"new"}, durable=True)
        written = failures.moment
        write_whole(disk / "a" / "b" / "c", b"deep", folder_mode=0o700, durable=True)
    for failure, folder in boots(failures):
        assert (folder / "old").read_bytes() in (b"old", b"new")
        if failure.moment > written:
            assert (folder / "other").read_bytes() == b"new"
    assert all(failure.files.get("a/b/c") == b"deep" for failure in failures.found[-3:])


async def test_an_image_that_was_pulled_with_a_secret_is_nobody_elses(
    disk: Path, boots: Boots
) -> None:
    failures = PowerFailures(disk)
    with failures.noted():
        of_node = await records(disk)
        await of_node.begin(IMAGE)
        asked = failures.moment
        await of_node.succeed(IMAGE, IMAGE_ID, MINE)

    for failure, folder in boots(failures):
        if failure.moment <= asked:
            continue  # The runtime was asked for nothing yet.
        later = await records(folder)
        found = await later.check(IMAGE, FOUND, shows(NOBODY))
        assert found is AccessCheck.MUST_AUTHENTICATE, failure


async def test_ids_that_were_given_to_a_pod_are_given_to_no_other(disk: Path, boots: Boots) -> None:
    (disk / "pods").mkdir()
    failures = PowerFailures(disk)
    with failures.noted():
        (disk / "pods" / "u-1").mkdir()  # Its volumes were made before.
        ranges = await PodIdRanges.open(disk, (), ids_per_pod=65536, max_pods=110)
        given = await ranges.mapping(asking("u-1"))
        told = failures.moment
    for failure, folder in boots(failures):
        if failure.moment > told:
            later = await PodIdRanges.open(folder, ("u-1",), ids_per_pod=65536, max_pods=110)
            assert await later.mapping(asking("u-2")) != given
            assert await later.mapping(asking("u-1")) == given


async def test_allocations_are_those_before_or_those_after(disk: Path, boots: Boots) -> None:
    failures = PowerFailures(disk)
    with failures.noted():
        given = allocations(disk)
        given.allocate(pod())
        await given.keep()
        written = failures.moment
    for failure, folder in boots(failures):
        later = allocations(folder)
        await later.load()
        changed = pod(resources=LARGER)
        later.allocate(changed)
        shown = encode(later.allocated(changed))
        expected = [encode(pod())] if failure.moment > written else [encode(pod()), encode(changed)]
        assert shown in expected


def test_manifests_that_are_kept_are_those_before_or_those_after(disk: Path, boots: Boots) -> None:
    before, after = manifests(manifest("a")), manifests(manifest("a"), manifest("b"))
    failures = PowerFailures(disk)
    with failures.noted():
        kept(disk / "static-pods").save({}, before)
        written = failures.moment
        kept(disk / "static-pods").save(before, after)
        changed = failures.moment
    for failure, folder in boots(failures):
        found = kept(folder / "static-pods").load()
        if failure.moment > changed:
            assert found == after
        elif failure.moment > written:
            assert found in (before, after)
        else:
            assert found in ({}, before)
