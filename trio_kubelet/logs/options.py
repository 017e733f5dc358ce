"""The container and the part of its log that a request asks for, read and checked; pure."""

from attrs import frozen

from trio_kubelet.foreign_text import boolean
from trio_kubelet.k8s import ContainerState, ContainerStateTerminated, Pod
from trio_kubelet.k8s.time import Time
from trio_kubelet.server.messages import RequestError, Values

_WAITING_WORDS = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


def is_in_spec(pod: Pod, container: str) -> bool:
    """True if the pod has a container of that name, of any kind."""
    return any(each.name == container for each in pod.spec.all_containers)


def container_id(pod: Pod, container: str, *, previous: bool) -> str:
    """The id of the container, with its runtime in front. Raises RequestError (400).

    `pod` has its newest status.
    """
    status = pod.status
    every = (
        *status.container_statuses,
        *status.init_container_statuses,
        *status.ephemeral_container_statuses,
    )
    found = next((each for each in every if each.name == container), None)
    what = f'container "{container}" in pod "{pod.metadata.name}"'
    if found is None:
        raise RequestError(400, f"{what} is not available")
    state, last = found.state or ContainerState(), found.last_state or ContainerState()
    if previous:
        if not _id(last.terminated):
            raise RequestError(400, f"previous terminated {what} not found")
        return _id(last.terminated)
    if state.running is not None:
        return found.container_id
    ended = _id(state.terminated) or _id(last.terminated)
    if ended:
        return ended
    if state.terminated is not None or last.terminated is not None:
        raise RequestError(400, f"{what} is terminated")
    if state.waiting is None:
        raise RequestError(400, f"{what} is waiting to start - no logs yet")
    reason = state.waiting.reason
    raise RequestError(400, f"{what} is waiting to start: {_WAITING_WORDS.get(reason, reason)}")


def _id(terminated: ContainerStateTerminated | None) -> str:
    return terminated.container_id if terminated is not None else ""


UNDECODABLE = '{"message": "Unable to decode query."}'
INVALID = '{"message": "Invalid request."}'

STREAMS = {"All": b"", "Stdout": b"stdout", "Stderr": b"stderr"}
_INT64 = 1 << 63


@frozen(kw_only=True)
class LogOptions:
    """`tail_lines` None: all; `since_ns` since the epoch; `stream` empty: both."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since_ns: int | None = None
    limit_bytes: int | None = None
    stream: bytes = b""


def log_options(query: Values, now_ns: int, *, streams: bool) -> LogOptions:
    """Read a query. Raises RequestError with the Go kubelet's words.

    `streams` is the gate PodLogsQuerySplitStreams; without it `stream` may not be given.
    """
    tail_lines, limit_bytes = _integer(query, "tailLines"), _integer(query, "limitBytes")
    since_seconds, since_time = _integer(query, "sinceSeconds"), _time(query, "sinceTime")
    stream = query.first("stream", "All")
    follow, previous = _boolean(query, "follow"), _boolean(query, "previous")
    timestamps = _boolean(query, "timestamps")
    if (
        (tail_lines is not None and tail_lines < 0)
        or (limit_bytes is not None and limit_bytes < 1)
        or (since_seconds is not None and (since_seconds < 1 or since_time is not None))
        or ("stream" in query and not streams)
        or stream not in STREAMS
        or (stream != "All" and tail_lines is not None)
    ):
        raise RequestError(422, INVALID)
    if since_seconds is not None:
        since_time = now_ns - since_seconds * 1_000_000_000
    return LogOptions(
        follow=follow and not previous,
        previous=previous,
        timestamps=timestamps,
        tail_lines=tail_lines,
        since_ns=since_time,
        limit_bytes=limit_bytes,
        stream=STREAMS[stream],
    )


def _boolean(query: Values, name: str) -> bool:
    text = query.first(name)
    value = boolean(text) if text else False
    if value is None:
        raise RequestError(400, UNDECODABLE)
    return value


def _integer(query: Values, name: str) -> int | None:
    text = query.first(name)
    if not text:
        return None
    digits = text[1:] if text[0] in "+-" else text
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 19:
        raise RequestError(400, UNDECODABLE)
    value = int(text)
    if not -_INT64 <= value < _INT64:
        raise RequestError(400, UNDECODABLE)
    return value


def _time(query: Values, name: str) -> int | None:
    text = query.first(name)
    if not text:
        return None
    try:
        return Time.parse(text).ns
    except ValueError as error:
        raise RequestError(400, UNDECODABLE) from error
