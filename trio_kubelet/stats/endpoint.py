"""`/stats/summary`: what monitoring and schedulers ask of the node's use, as JSON."""

from collections.abc import Sequence

from trio_kubelet.foreign_text import boolean
from trio_kubelet.server.endpoints import json_response
from trio_kubelet.server.messages import Request, Response
from trio_kubelet.server.router import ANY, Right, Route
from trio_kubelet.stats.provider import StatsProvider
from trio_kubelet.stats.summary import summary
from trio_kubelet.tasks.threads import run_in_thread

STATS = Right(subresource="stats")


def stats_routes(stats: StatsProvider, node_name: str) -> Sequence[Route]:
    """`/stats/summary[?only_cpu_and_memory=true]`, by GET and POST as the Go kubelet has it.

    `/stats/` has nothing at it, but `/stats` is sent there.
    """

    async def answer(request: Request) -> Response:
        short = bool(boolean(request.query.first("only_cpu_and_memory")))
        found = await (stats.rated_usage() if short else stats.full())
        # A pod of a thousand containers takes a tenth of a second.
        return await run_in_thread(
            lambda: json_response(summary(found, node_name, only_cpu_and_memory=short))
        )

    async def refuse(_request: Request) -> Response:
        return Response(status=404, body=b"404: Page Not Found")

    return (
        *(
            Route(method, "/stats/summary[/]", answer, STATS, is_public=True)
            for method in ("GET", "POST")
        ),
        Route(ANY, "/stats/", refuse, STATS, is_public=True),
    )
