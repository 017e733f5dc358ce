"""What pods were allocated: given once, kept over restarts, in the files of the Go kubelet."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from attrs import evolve

from tests.unit.runtime.test_resource_records import BY_GO, LARGER, RESOURCES, pod
from trio_kubelet.k8s import PodStatus, Quantity
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.runtime.lifecycle import resource_records
from trio_kubelet.runtime.lifecycle.allocations import (
    ACTUATED,
    ALLOCATED,
    Allocations,
)
from trio_kubelet.runtime.lifecycle.resource_records import parsed, printed, record_of

FILES = (ALLOCATED, ACTUATED)


def allocations(root: Path) -> Allocations:
    return Allocations(root, trio.CapacityLimiter(1))


def kept(root: Path, name: str = ALLOCATED) -> Any:
    return parsed((root / name).read_text())


async def test_a_pod_keeps_what_it_was_allocated_whatever_its_spec_says_since(
    tmp_path: Path,
) -> None:
    given = allocations(tmp_path)
    given.allocate(pod())
    given.allocate(pod(resources=LARGER))
    assert encode(given.allocated(pod(resources=LARGER))) == encode(pod())
    same = pod()
    assert given.allocated(same) is same


async def test_an_agent_that_is_started_anew_gives_pods_what_they_had(tmp_path: Path) -> None:
    first = allocations(tmp_path)
    first.allocate(pod(whole=RESOURCES))
    await first.keep()
    second = allocations(tmp_path)
    await second.load()
    changed = pod(resources=LARGER, whole=LARGER)
    second.allocate(changed)
    assert encode(second.allocated(changed)) == encode(pod(whole=RESOURCES))
    for name in FILES:
        assert kept(tmp_path, name) == {"u-2": record_of(pod(whole=RESOURCES))}
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


async def test_what_the_go_kubelet_allocated_stays_beside_what_is_new(tmp_path: Path) -> None:
    (tmp_path / ALLOCATED).write_text(BY_GO)
    given = allocations(tmp_path)
    await given.load()
    one = pod("u-1", resources=LARGER)
    given.allocate(one)
    given.allocate(pod("u-2"))
    limits = given.allocated(one).spec.containers[0].resources
    assert limits is not None
    assert limits.limits["cpu"] == Quantity("50m")
    await given.keep()
    assert kept(tmp_path) == {**parsed(BY_GO), "u-2": record_of(pod("u-2"))}
    await given.forget("u-2")
    assert (tmp_path / ALLOCATED).read_text() == BY_GO


async def test_what_containers_were_made_with_is_told_where_it_is_not_what_was_allocated(
    tmp_path: Path,
) -> None:
    """A Go kubelet that was stopped in the middle of a resize leaves it like that."""
    (tmp_path / ALLOCATED).write_text(printed({"u-2": record_of(pod(resources=LARGER))}))
    (tmp_path / ACTUATED).write_text(printed({"u-2": record_of(pod())}))
    given = allocations(tmp_path)
    await given.load()
    given.allocate(pod(resources=LARGER))
    actuated = given.actuated("u-2")
    assert encode(actuated["c"]) == RESOURCES
    given.allocate(pod("u-3"))
    assert given.actuated("u-3") == {}


async def test_what_a_pod_was_given_is_recorded_before_its_containers_are_made(
    tmp_path: Path,
) -> None:
    given = allocations(tmp_path)
    given.allocate(pod())
    await given.keep()
    assert kept(tmp_path) == {"u-2": record_of(pod())}


async def test_pods_that_ask_for_nothing_leave_no_file(tmp_path: Path) -> None:
    given = allocations(tmp_path)
    given.allocate(pod(resources={}))
    await given.keep()
    await given.forget("u-2")
    assert not (tmp_path / ALLOCATED).exists()
    assert not (tmp_path / ACTUATED).exists()


async def test_all_pods_of_a_record_are_known_until_they_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / ACTUATED).write_text(BY_GO)
    given = allocations(tmp_path)
    await given.load()
    given.allocate(pod())
    assert set(given.uids()) == {"u-1", "u-2"}
    await given.forget("u-1")
    assert set(given.uids()) == {"u-2"}
    assert kept(tmp_path, ACTUATED).keys() == {"u-2"}


@pytest.mark.parametrize("text", ["", json.dumps({"data": "{}", "checksum": 1})])
@pytest.mark.parametrize("name", FILES)
async def test_a_damaged_file_is_set_aside_and_a_new_one_is_written(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    given = allocations(tmp_path)
    with structlog.testing.capture_logs() as logs:
        await given.load()
    assert [entry["event"] for entry in logs] == ["damaged state file set aside"]
    assert (tmp_path / f"{name}.damaged").read_text() == text
    given.allocate(pod())
    await given.keep()
    for each in FILES:
        assert kept(tmp_path, each) == {"u-2": record_of(pod())}
    assert encode(given.allocated(pod(resources=LARGER))) == encode(pod())


@pytest.mark.parametrize(
    ("actuated", "told", "was_admitted", "has"),
    [
        (RESOURCES, None, True, RESOURCES),
        (RESOURCES, LARGER, True, RESOURCES),
        (None, RESOURCES, True, RESOURCES),
        (None, None, True, LARGER),
        (None, None, False, LARGER),
        (None, RESOURCES, False, LARGER),
    ],
)
async def test_a_pod_whose_record_was_damaged_has_what_it_had_before_its_resize(
    actuated: Any, told: Any, was_admitted: bool, has: Any, tmp_path: Path
) -> None:
    """Else a resize that was refused would count as done."""
    (tmp_path / ALLOCATED).write_text("{")
    if actuated is not None:
        text = printed({"u-2": record_of(pod(resources=actuated))})
        (tmp_path / ACTUATED).write_text(text)
    resized = pod(resources=LARGER)
    if told is not None:
        status = {"name": "c", "allocatedResources": told["requests"], "resources": told}
        resized = evolve(resized, status=decode(PodStatus, {"containerStatuses": [status]}))
    for _ in range(2):
        given = allocations(tmp_path)
        await given.load()
        given.allocate(resized, was_admitted=was_admitted)
        assert encode(given.allocated(resized).spec) == encode(pod(resources=has).spec)
        await given.keep()


async def test_a_status_without_an_allocation_tells_what_is_enforced(tmp_path: Path) -> None:
    status = {"containerStatuses": [{"name": "c", "resources": RESOURCES}]}
    resized = evolve(pod(resources=LARGER), status=decode(PodStatus, status))
    given = allocations(tmp_path)
    given.allocate(resized, was_admitted=True)
    assert encode(given.allocated(resized).spec) == encode(pod().spec)


async def test_a_file_that_cannot_be_opened_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ALLOCATED).mkdir()
    given = allocations(tmp_path)
    await given.load()
    given.allocate(pod())
    await given.keep()
    assert (tmp_path / ALLOCATED).is_dir()
    assert kept(tmp_path, ACTUATED).keys() == {"u-2"}


async def test_a_record_that_is_none_is_dropped_and_no_other(tmp_path: Path) -> None:
    bad = {"ContainerResources": {"c": {"limits": {"cpu": "a lot"}}}}
    (tmp_path / ALLOCATED).write_text(printed({"u-2": bad, "u-3": record_of(pod())}))
    given = allocations(tmp_path)
    await given.load()
    asking = pod(resources=LARGER)
    assert given.allocated(asking) is asking
    given.allocate(asking)
    await given.keep()
    assert kept(tmp_path) == {"u-2": record_of(asking), "u-3": record_of(pod())}


async def test_a_disk_that_is_full_holds_up_nobody_and_is_tried_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("a file is in the way")
    given = allocations(root)
    given.allocate(pod())
    with structlog.testing.capture_logs() as logs:
        await given.keep()
        await given.keep()
    assert [entry["event"] for entry in logs] == ["allocation checkpoint write failed"]
    root.unlink()
    await given.keep()
    assert kept(root).keys() == {"u-2"}


async def test_many_pods_share_a_write(tmp_path: Path) -> None:
    given = allocations(tmp_path)
    writes = 0

    def count(files: Any) -> None:
        nonlocal writes
        writes += 1
        write(files)

    write, given._write = given._write, count  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        for number in range(50):
            given.allocate(pod(f"u-{number}"))
            nursery.start_soon(given.keep)
    assert len(kept(tmp_path)) == 50
    assert writes <= 2


async def test_a_resize_is_allocated_and_then_actuated_container_by_container(
    tmp_path: Path,
) -> None:
    given, larger = allocations(tmp_path), pod(resources=LARGER, whole=LARGER)
    given.allocate(pod(whole=RESOURCES))
    assert given.is_actuated("u-2")
    given.resize(larger)
    assert given.allocated(larger) is larger
    assert not given.is_actuated("u-2")
    assert encode(given.actuated_pod(larger)) == encode(pod(whole=RESOURCES))
    given.actuate(larger, ("c",))
    assert encode(given.actuated_pod(larger)) == encode(pod(resources=LARGER, whole=RESOURCES))
    assert await given.keep()
    assert kept(tmp_path) == {"u-2": record_of(larger)}
    assert kept(tmp_path, ACTUATED) != kept(tmp_path)
    given.actuate(larger)
    assert given.is_actuated("u-2")
    assert given.actuated_pod(larger) is larger
    await given.keep()
    assert kept(tmp_path, ACTUATED) == kept(tmp_path)


async def test_a_pod_that_holds_nothing_has_nothing_to_be_actuated(tmp_path: Path) -> None:
    given, nothing = allocations(tmp_path), pod(resources={})
    given.allocate(nothing)
    given.actuate(nothing)
    assert given.is_actuated("u-2")
    assert given.actuated_pod(nothing) is nothing
    assert set(given.uids()) == set()


async def test_that_an_allocation_is_not_on_the_disk_is_told(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("a file is in the way")
    given = allocations(root)
    given.allocate(pod())
    assert not await given.keep()
    root.unlink()
    assert await given.keep()


async def test_the_resources_of_many_containers_are_encoded_and_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of containers are resized one after another, and their pod is looked at between."""
    calls: Counter[str] = Counter()

    def counted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object) -> Any:
            calls[name] += 1
            return work(*args)

        return call

    names = [f"c{number}" for number in range(50)]
    before, after = pod(), pod(resources=LARGER)
    container = before.spec.containers[0]
    many = tuple(evolve(container, name=name) for name in names)
    before = evolve(before, spec=evolve(before.spec, containers=many))
    larger = tuple(evolve(after.spec.containers[0], name=name) for name in names)
    after = evolve(after, spec=evolve(after.spec, containers=larger))
    given = allocations(tmp_path)
    given.allocate(before)
    given.resize(after)
    monkeypatch.setattr(resource_records, "encode", counted("encode", encode))
    monkeypatch.setattr(resource_records, "decode", counted("decode", decode))
    for name in names:
        given.actuate(after, (name,), "cpu")
        given.actuate(after, (name,), "memory")
        given.actuated_pod(after)
    assert given.is_actuated(after.metadata.uid)
    assert calls["encode"] <= 2 * len(names)
    assert calls["decode"] <= 10
