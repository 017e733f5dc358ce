"""Several works at once, and one error."""

from functools import partial

import pytest
import trio
import trio.testing

from trio_kubelet.side_by_side import side_by_side


async def test_all_works_run_at_the_same_time(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    await side_by_side(*(partial(trio.sleep, 5) for _ in range(10)))
    assert trio.current_time() - began == 5


async def test_the_first_error_is_raised_bare_and_ends_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ended: list[str] = []

    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("the first")

    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")

    with pytest.raises(ValueError, match="the first"):
        await side_by_side(hang, fail)
    assert ended == ["cancelled"]


async def test_cancelling_ends_all(autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(1) as scope:
        await side_by_side(trio.sleep_forever, trio.sleep_forever)
    assert scope.cancelled_caught
