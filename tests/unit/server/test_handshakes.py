"""TLS handshakes take turns."""

import trio

from trio_kubelet.server.handshakes import Turns


async def test_peers_take_turns_however_many_one_of_them_opens() -> None:
    turns, order = Turns(), list[str]()

    async def wait(peer: str) -> None:
        await turns.wait(peer)
        order.append(peer)

    async with trio.open_nursery() as nursery:
        for peer in ("many", "many", "many", "many"):
            nursery.start_soon(wait, peer)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(wait, "one")
    assert order.index("one") <= 2
    assert len(order) == 5


async def test_no_two_go_on_in_the_same_round_of_the_event_loop() -> None:
    turns, rounds, others = Turns(), list[int](), 0

    async def wait() -> None:
        await turns.wait("peer")
        rounds.append(others)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(wait)
        while len(rounds) < 20:
            others += 1
            await trio.lowlevel.checkpoint()
    assert len(set(rounds)) == 20


async def test_who_goes_away_takes_nobody_s_turn() -> None:
    turns, had = Turns(), list[int]()

    async def wait(number: int, scope: trio.CancelScope) -> None:
        with scope:
            await turns.wait("peer")
            had.append(number)

    scopes = [trio.CancelScope() for _ in range(9)]
    async with trio.open_nursery() as nursery:
        for number, scope in enumerate(scopes):
            nursery.start_soon(wait, number, scope)
        await trio.lowlevel.checkpoint()
        for scope in scopes[::3]:
            scope.cancel()
    assert set(had) >= {1, 2, 4, 5, 7, 8}
    with trio.fail_after(60):
        await turns.wait("peer")
