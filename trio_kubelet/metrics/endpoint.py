"""The paths of the metrics, and how a scraper gets them."""

import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from trio_kubelet.metrics.text import CONTENT_TYPE, accepts_gzip
from trio_kubelet.server.messages import Request, Response
from trio_kubelet.server.router import ANY, Right, Route
from trio_kubelet.tasks.threads import run_in_thread

Scrape = Callable[[], Awaitable[bytes]]
"""Returns metrics as text, as they are now."""

WORTH_PACKING_BYTES = 1024
_GZIP = 16 + zlib.MAX_WBITS
_FAST = 1


def metrics_routes(scrapes: Mapping[str, Scrape]) -> Sequence[Route]:
    """One route for each path, by any method as in the Go kubelet."""
    return tuple(
        Route(ANY, path, _answer_with(scrape), Right(subresource="metrics"), is_public=True)
        for path, scrape in scrapes.items()
    )


def _answer_with(scrape: Scrape) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        body = await scrape()
        encoding = ",".join(request.headers.all("accept-encoding"))
        if len(body) < WORTH_PACKING_BYTES or not accepts_gzip(encoding):
            return Response(content_type=CONTENT_TYPE, body=body)
        packed = await run_in_thread(_packed, body)
        headers = (("Content-Encoding", "gzip"),)
        return Response(content_type=CONTENT_TYPE, headers=headers, body=packed)

    return answer


def _packed(body: bytes) -> bytes:
    packer = zlib.compressobj(_FAST, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush()
