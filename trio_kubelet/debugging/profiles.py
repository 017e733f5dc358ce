"""`/debug/pprof/…` and `/debug/flags/v`, with the Go kubelet's names where it has the thing."""

import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial

import trio

from trio_kubelet.debugging.samples import (
    Samples,
    count_objects,
    packed_profile,
    sampled_processor,
    task_lines,
    thread_lines,
)
from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.server.messages import Request, RequestError, Response, Values
from trio_kubelet.server.router import ADMIN, ANY, Route
from trio_kubelet.tasks.threads import run_in_thread

PROFILE_SECONDS = 30
MAX_PROFILE_SECONDS = 300
SHOWN_TYPES = 200
MAX_VERBOSITY = 2**31 - 1
VERBOSITY_DIGITS = 20

SetVerbosity = Callable[[int], None]


def profile_routes() -> Sequence[Route]:
    """Profiles of the process: its time, its objects, its tasks and threads."""
    profiles = _Profiles()
    return (
        Route("GET", "/debug/pprof/{profile...}", profiles.show, ADMIN),
        Route("GET", "/debug/pprof/profile", profiles.cpu, ADMIN),
    )


class _Profiles:
    """One processor profile at a time, and one of the heap, which holds up everything else."""

    def __init__(self) -> None:
        self._is_sampling = False
        self._counting = trio.CapacityLimiter(1)

    async def show(self, request: Request) -> Response:
        name = request.parameters["profile"]
        if not name:
            raise RequestError(404, "404: Page Not Found")
        if name == "cmdline":
            return Response(body="\0".join(sys.orig_argv).encode(errors="surrogateescape"))
        if name == "goroutine":
            stacks = request.query.first("debug") not in ("", "0", "1")
            return _text(task_lines(stacks=stacks))
        if name == "threadcreate":
            return _text(thread_lines())
        if name == "heap":
            return _text(await self._heap())
        raise RequestError(404, "Unknown profile")

    async def _heap(self) -> Sequence[str]:
        if self._counting.borrowed_tokens:
            raise RequestError(500, "Could not write heap profile: another one is being written")
        return await run_in_thread(_heap_lines, limiter=self._counting)

    async def cpu(self, request: Request) -> Response:
        """Samples of some seconds (`seconds`), for `go tool pprof`; as text with `debug=1`."""
        seconds = _seconds(request.query)
        if self._is_sampling:
            raise RequestError(500, "Could not enable CPU profiling: cpu profiling already in use")
        as_text = request.query.first("debug") not in ("", "0")
        headers = () if as_text else (("Content-Disposition", 'attachment; filename="profile"'),)
        kind = "text/plain; charset=utf-8" if as_text else "application/octet-stream"
        body = self._samples(seconds, as_text=as_text)
        await anext(body)  # From now on nobody else may sample, until the generator is closed.
        return Response(content_type=kind, headers=headers, body=body)

    async def _samples(self, seconds: int, *, as_text: bool) -> AsyncGenerator[bytes, None]:
        """Samples, after an empty piece. A client that goes ends the sampling."""
        self._is_sampling = True
        try:
            with sampled_processor() as samples:
                yield b""
                await trio.sleep(seconds)
        finally:
            self._is_sampling = False
        # Five minutes of many threads are seconds of work.
        write = partial(_folded, samples) if as_text else partial(packed_profile, samples, seconds)
        yield await run_in_thread(write)


def flag_routes(set_verbosity: SetVerbosity) -> Sequence[Route]:
    """`PUT /debug/flags/v`: how much is logged from now on, as `--v` says it at the start."""

    async def answer(request: Request) -> Response:
        if request.method != "PUT":
            return _plain(406, "unsupported http method\n")
        text = (await request.body.read()).decode(errors="replace")
        if not (text.isascii() and text.isdecimal()):
            return _plain(400, f"strconv.ParseUint: parsing {_quoted(text)}: invalid syntax\n")
        if len(text) > VERBOSITY_DIGITS or int(text) > MAX_VERBOSITY:
            return _plain(400, f"strconv.ParseUint: parsing {_quoted(text)}: value out of range\n")
        set_verbosity(int(text))
        return _plain(200, f"successfully set klog.logging.verbosity to {int(text)}\n")

    return (Route(ANY, "/debug/flags/v", answer, ADMIN),)


def _seconds(query: Values) -> int:
    text = query.first("seconds")
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_PROFILE_SECONDS))):
        return PROFILE_SECONDS
    return min(int(text), MAX_PROFILE_SECONDS) or PROFILE_SECONDS


def _heap_lines() -> Sequence[str]:
    objects = count_objects()
    total = sum(each.count for each in objects)
    size = sum(each.size_bytes for each in objects)
    return (
        f"{total} objects, {size} bytes, without what the garbage collector does not know",
        *(
            f"{each.size_bytes:>12} bytes {each.count:>9} {each.kind}"
            for each in objects[:SHOWN_TYPES]
        ),
    )


def _folded(samples: Samples) -> bytes:
    """A line a stack, outermost first, and its microseconds: what flame graphs are drawn from."""
    lines = Counter[str]()
    for stack, use in samples.items():
        line = ";".join(f"{line.function}:{line.number}" for line in reversed(stack))
        lines[line] += use.nanoseconds // 1000
    return b"".join(f"{line} {us}\n".encode(errors="replace") for line, us in lines.items())


def _quoted(text: str) -> str:
    return dumps(text).decode()


def _text(lines: Iterable[str]) -> Response:
    return Response(body="".join(f"{line}\n" for line in lines).encode(errors="replace"))


def _plain(status: int, text: str) -> Response:
    return Response(status=status, content_type="text/plain", body=text.encode(errors="replace"))
