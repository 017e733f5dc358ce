"""Two connections made one: bytes go both ways until one end has enough."""

import trio

CLIENT_PIECE_BYTES = 64 * 1024
PARTNER_PIECE_BYTES = 128 * 1024
LAST_WORDS_SECONDS = 10.0
"""When the client has ended, so long its partner may take to end, too."""


async def splice(
    client: trio.abc.Stream, partner: trio.SocketStream, ahead: bytes, idle_seconds: float
) -> None:
    """Pass bytes on, first those that the partner has sent `ahead`; returns when it is over.

    It is when the partner ends, when either connection breaks, some seconds after the client has
    ended (its end is passed on), or when nothing has come from either for `idle_seconds` (0: no
    limit). Closes the partner's connection.
    """
    with trio.CancelScope() as over:

        def moved() -> None:
            if idle_seconds > 0:
                over.deadline = trio.current_time() + idle_seconds

        async def from_client() -> None:
            try:
                while data := await client.receive_some(CLIENT_PIECE_BYTES):
                    moved()
                    await partner.send_all(data)
                await partner.send_eof()
                await trio.sleep(LAST_WORDS_SECONDS)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            over.cancel()

        async def from_partner() -> None:
            try:
                if ahead:
                    await client.send_all(ahead)
                while data := await partner.receive_some(PARTNER_PIECE_BYTES):
                    moved()
                    await client.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            over.cancel()

        moved()
        async with partner, trio.open_nursery() as nursery:
            nursery.start_soon(from_client)
            nursery.start_soon(from_partner)
