"""The last words of containers: the message that their status shows.

A container writes it to its termination message path, behind which lies a file of the node;
with terminationMessagePolicy FallbackToLogsOnError the end of the log stands in for an empty
file. Path and policy are in the container's annotations, so the message is found even when
the pod's spec is not known any more.
"""

from collections.abc import Iterable, Mapping
from functools import partial

from attrs import frozen

from trio_kubelet.k8s import TerminationMessagePolicy
from trio_kubelet.rpc import MOST_MESSAGE_CHARACTERS
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config import names
from trio_kubelet.runtime.pod_files import read_log_tail, read_termination_message
from trio_kubelet.tasks.fair_limiter import Share

NEVER_STARTED = "ContainerCannotRun"
"""The reason of a container that could not even be started, and so has no log."""


@frozen(kw_only=True)
class MessageSource:
    """The place of an ended container's message: paths on the node, empty for "not there".

    `runtime_message` is what the runtime itself says of the end; it comes first.
    """

    container_id: str
    runtime_message: str = ""
    file: str = ""
    log: str = ""


def message_source(status: cri.ContainerStatus) -> MessageSource | None:
    """The place of a container's message; None if there is nothing to look at."""
    if status.state != cri.ContainerState.CONTAINER_EXITED:
        return None
    source = MessageSource(
        container_id=status.id,
        runtime_message=status.message[:MOST_MESSAGE_CHARACTERS],
        file=message_file(status),
        log=status.log_path if _may_use_log(status) else "",
    )
    return source if source.file or source.log else None


def message_file(status: cri.ContainerStatus) -> str:
    """The file behind the termination message path of a container; empty if there is none."""
    path = status.annotations.get(names.TERMINATION_MESSAGE_PATH_ANNOTATION)
    mounted = (mount.host_path for mount in status.mounts if mount.container_path == path)
    return next(mounted, "") if path else ""


def read_messages(sources: Iterable[MessageSource]) -> dict[str, str]:
    """Read the messages, by container id. Blocks; what cannot be read is left out."""
    return {source.container_id: _read(source) for source in sources}


async def termination_messages(
    statuses: Iterable[cri.ContainerStatus], threads: Share
) -> Mapping[str, str]:
    """The messages of those of the containers that have one, by id.

    All are read in one go by one thread. Cancelled, it leaves nothing but that thread, which
    ends by itself.
    """
    sources = [source for status in statuses if (source := message_source(status))]
    if not sources:
        return {}
    return await threads.run_sync(partial(read_messages, sources), abandon_on_cancel=True)


def _may_use_log(status: cri.ContainerStatus) -> bool:
    policy = status.annotations.get(names.TERMINATION_MESSAGE_POLICY_ANNOTATION)
    return (
        policy == TerminationMessagePolicy.FALLBACK_TO_LOGS_ON_ERROR
        and status.exit_code != 0
        and status.reason != NEVER_STARTED
    )


def _read(source: MessageSource) -> str:
    own = read_termination_message(source.file) if source.file else ""
    if not own and source.log:
        own = read_log_tail(source.log)
    return ": ".join(part for part in (source.runtime_message, own) if part)
