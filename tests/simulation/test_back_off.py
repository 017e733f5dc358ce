"""How long the agent waits before it tries again, over hours that pass in no time."""

from itertools import pairwise
from pathlib import Path

import pytest
import trio

from tests.simulation.scenes import Scene, play, pod
from trio_kubelet.hollow import Behaviour, HollowOptions, HollowRegistry

LATE_SECONDS = 3


async def lives(scene: Scene, seconds: float) -> list[tuple[float, float]]:
    """Start and end, in seconds, of each container that has ended within that time."""
    seen: dict[str, tuple[float, float]] = {}
    with trio.move_on_after(seconds):
        while True:
            for each in scene.runtime.containers:
                if each.finished_at:
                    seen[each.id] = (each.started_at / 1e9, each.finished_at / 1e9)
            await trio.sleep(0.25)
    return sorted(seen.values())


def waits(ended: list[tuple[float, float]]) -> list[float]:
    return [after[0] - before[1] for before, after in pairwise(ended)]


def assert_waits(ended: list[tuple[float, float]], wanted: tuple[int, ...]) -> None:
    found = waits(ended)[: len(wanted)]
    assert len(found) == len(wanted)
    for seconds, least in zip(found, wanted, strict=True):
        assert least <= round(seconds, 3) <= least + LATE_SECONDS, found


def test_a_container_that_goes_on_crashing_waits_for_five_minutes_at_most(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(pod())
        ended = await lives(scene, 3000)
        assert_waits(ended, (0, 10, 20, 40, 80, 160, 300, 300, 300))

    play(tmp_path, scene, HollowOptions(behaviours=lambda _: Behaviour(run_seconds=2, exit_code=1)))


@pytest.mark.parametrize(("run_seconds", "wanted"), [(500, (0, 10, 20, 40)), (700, (0, 0, 0, 0))])
def test_ten_minutes_of_running_make_a_container_a_healthy_one(
    tmp_path: Path, run_seconds: int, wanted: tuple[int, ...]
) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(pod())
        ended = await lives(scene, 5 * (run_seconds + 50))
        assert_waits(ended, wanted)

    behaviour = Behaviour(run_seconds=run_seconds, exit_code=1)
    play(tmp_path, scene, HollowOptions(behaviours=lambda _: behaviour))


def test_an_image_that_cannot_be_pulled_is_in_back_off_soon_after_the_error(
    tmp_path: Path,
) -> None:
    async def scene(scene: Scene) -> None:
        scene.put(pod())
        seen: list[str] = []
        with trio.move_on_after(25):
            while True:
                for status in scene.status().container_statuses:
                    waiting = status.state.waiting if status.state else None
                    if waiting is not None and waiting.reason not in seen[-1:]:
                        seen.append(waiting.reason)
                await trio.sleep(0.1)
        pull = ["ErrImagePull", "ImagePullBackOff"]
        assert [reason for reason in seen if reason != "ContainerCreating"] == pull * 2

    registry = HollowRegistry(unreachable=frozenset({"registry.example.com"}))
    play(tmp_path, scene, HollowOptions(registry=registry))
