"""The order of a start: who waits for whom, and what happens when a step fails."""

from collections.abc import Iterable

import pytest
import trio
import trio.testing

from trio_kubelet.startup import Step, once, run_steps


class Start:
    """A start that notes what happens, and can hold steps up."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.held: dict[str, trio.Event] = {}

    def step(self, name: str, *needs: str, stays: bool = False) -> Step:
        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            self.seen.append(f"begin {name}")
            if name in self.held:
                await self.held[name].wait()
            task_status.started()
            if stays:
                await trio.sleep_forever()

        return Step(name, needs, run)

    def announce(self, name: str) -> None:
        self.seen.append(f"done {name}")


async def run(start: Start, steps: Iterable[Step]) -> list[str]:
    with trio.fail_after(5):
        await run_steps(steps, start.announce)
    return start.seen


async def test_a_step_begins_after_all_that_it_needs() -> None:
    start = Start()
    seen = await run(start, [start.step("c", "a", "b"), start.step("b", "a"), start.step("a")])
    assert seen == ["begin a", "done a", "begin b", "done b", "begin c", "done c"]


async def test_a_step_that_hangs_holds_up_only_those_that_need_it() -> None:
    start = Start()
    start.held["slow"] = trio.Event()
    steps = [start.step("slow"), start.step("after", "slow"), start.step("free")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, start, steps)
        await trio.testing.wait_all_tasks_blocked()
        assert "done free" in start.seen
        assert "begin after" not in start.seen
        start.held["slow"].set()
    assert start.seen[-1] == "done after"


async def test_steps_that_go_on_do_not_hold_up_the_next() -> None:
    start = Start()
    steps = [start.step("loop", stays=True), start.step("next", "loop")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_steps, steps, start.announce)
        await trio.testing.wait_all_tasks_blocked()
        assert start.seen[-1] == "done next"
        nursery.cancel_scope.cancel()


async def test_an_error_in_one_step_ends_them_all_and_comes_out() -> None:
    async def fail() -> None:
        raise ValueError("no disk")

    start = Start()
    steps = [start.step("loop", stays=True), Step("disk", ("loop",), once(fail))]
    with pytest.raises(ExceptionGroup) as caught:
        await run(start, [*steps, start.step("never", "disk")])
    assert caught.group_contains(ValueError, match="no disk")
    assert "begin never" not in start.seen


async def test_a_step_that_is_done_once_is_announced_when_it_is_done() -> None:
    start = Start()

    async def work() -> None:
        start.seen.append("work")

    await run(start, [Step("once", (), once(work)), start.step("next", "once")])
    assert start.seen == ["work", "done once", "begin next", "done next"]


@pytest.mark.parametrize(
    ("needs", "stuck"),
    [
        ({"a": ("b",), "b": ("a",)}, "a needs .*b needs"),
        ({"a": ("nothing",)}, "a needs"),
        ({"a": ("a",), "b": ()}, "a needs"),
    ],
    ids=["a circle", "an unknown need", "itself"],
)
async def test_a_table_that_can_never_be_done_is_refused(
    needs: dict[str, tuple[str, ...]], stuck: str
) -> None:
    start = Start()
    with pytest.raises(ValueError, match=stuck):
        await run(start, [start.step(name, *before) for name, before in needs.items()])
    assert not start.seen
