"""A connection from its first byte to its end: requests and their responses, one after another."""

from http.client import responses

import h11
import trio

from trio_kubelet.server.client import Client
from trio_kubelet.server.connections import ClientGoneError
from trio_kubelet.server.exchange import Exchange, error_response
from trio_kubelet.server.messages import Handler, RequestError
from trio_kubelet.server.request_head import check_head


class Connection:
    """The server's side of one connection."""

    def __init__(self, client: Client, handler: Handler) -> None:
        self._client = client
        self._handler = handler
        self._limits = client.limits
        self._http = h11.Connection(h11.SERVER, self._limits.head_bytes)
        self._asks_for_head = False

    async def serve(self) -> None:
        """Answer requests until client or server have enough; the stream is left to the caller."""
        deadline = trio.current_time() + self._limits.head_seconds
        try:
            await self._client.greet(self._limits.head_seconds)
            patience = max(0.0, deadline - trio.current_time())
            while (head := await self._next_head(patience)) is not None:
                exchange = Exchange(self._http, self._client, head)
                if not await exchange.run(self._handler):
                    if not exchange.request_read and not self._client.place.gone:
                        await self._client.linger()
                    return
                self._http.start_next_cycle()
                patience = self._limits.idle_seconds
        except RequestError as error:
            await self._refuse(error)
        except ClientGoneError:
            return

    async def _next_head(self, patience: float) -> h11.Request | None:
        """The next request's head, None if there is no more.

        Its first byte is waited for for `patience` seconds. Raises RequestError and
        ClientGoneError.
        """
        received = bytearray(self._http.trailing_data[0])
        deadline = trio.current_time() + (self._limits.head_seconds if received else patience)
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                seconds = max(0.0, deadline - trio.current_time())
                data = await self._client.receive(seconds, for_request=True)
                if not received:
                    deadline = trio.current_time() + self._limits.head_seconds
                received += data
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise RequestError(error.error_status_hint, str(error)) from error
        if not isinstance(event, h11.Request):
            return None
        self._asks_for_head = event.method == b"HEAD"
        rest = len(self._http.trailing_data[0])
        check_head(bytes(received[: len(received) - rest]), self._limits)
        return event

    async def _refuse(self, error: RequestError) -> None:
        """Tell a client that it does not speak HTTP, or too much of it."""
        response = error_response(error)
        assert isinstance(response.body, bytes)
        head = h11.Response(
            status_code=response.status,
            reason=responses.get(response.status, ""),
            headers=[
                ("Content-Type", response.content_type),
                ("Content-Length", str(len(response.body))),
                ("Connection", "close"),
            ],
        )
        data = self._http.send(head)
        if not self._asks_for_head:
            data += self._http.send(h11.Data(data=response.body))
        try:
            await self._client.send(data)
        except ClientGoneError:
            return
        await self._client.linger()
