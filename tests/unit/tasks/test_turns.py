"""A few go on in each round of the event loop, owners in turns."""

import pytest
import trio
import trio.testing

from trio_kubelet.tasks.turns import TURNS_IN_A_ROUND, Turns


async def test_peers_take_turns_however_many_one_of_them_opens() -> None:
    turns, order = Turns(), list[str]()

    async def wait(peer: str) -> None:
        await turns.wait(peer)
        order.append(peer)

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(wait, "many")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(wait, "one")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(turns.give)
        while len(order) < 201:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    # The turns of the first round were free, and are had at once.
    assert TURNS_IN_A_ROUND <= order.index("one") < 2 * TURNS_IN_A_ROUND


async def test_only_a_few_go_on_in_a_round_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio_kubelet.tasks.turns.TURNS_IN_A_ROUND", 1)
    turns, in_rounds, rounds = Turns(), list[int](), 0

    async def wait() -> None:
        await turns.wait("peer")
        in_rounds.append(rounds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.give)
        for _ in range(20):
            nursery.start_soon(wait)
        while len(in_rounds) < 20:
            rounds += 1
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    # Tasks run in any order within a round, so neighbours may see the same number.
    assert max(map(in_rounds.count, in_rounds)) <= 2


@pytest.mark.parametrize("rounds", range(12))
async def test_who_goes_away_takes_nobody_s_turn(rounds: int) -> None:
    turns, had = Turns(), list[int]()

    async def wait(number: int, scope: trio.CancelScope) -> None:
        with scope:
            await turns.wait("peer")
            had.append(number)

    scopes = [trio.CancelScope() for _ in range(9)]
    async with trio.open_nursery() as nursery:
        with trio.fail_after(60):
            for number, scope in enumerate(scopes):
                nursery.start_soon(wait, number, scope)
            nursery.start_soon(turns.give)
            for _ in range(rounds):
                await trio.lowlevel.checkpoint()
            for scope in scopes[::3]:
                scope.cancel()
            while not {1, 2, 4, 5, 7, 8} <= set(had):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
