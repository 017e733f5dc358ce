"""What containers were given when they were made, kept for a Go kubelet that gets the node back.

It compares what a container asks for with its record of what the container was given, and takes
a record that is missing for nothing given. A container that wants to be restarted when it is
resized (`resizePolicy`) would then be restarted for no reason. So the records of pods with such
containers are kept in the Go kubelet's own file, and it finds them there. Other pods need none:
it gives their containers once more what they have.

The file is JSON with the text of the records and an FNV-1a of that text. One that cannot be read
is left alone: it is not the agent's to mend.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog
import trio

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import encode
from trio_kubelet.runtime.container_hash import fnv1a_32
from trio_kubelet.runtime.go_json import go_json
from trio_kubelet.runtime.pod_files import write_whole

log = structlog.get_logger("runtime")

FILE_NAME = "actuated_pods_state"
_FILE_MODE = 0o600
_RESTARTS = "RestartContainer"

Records = Mapping[str, Mapping[str, object]]
"""By the pod's UID: `ContainerResources` (by container), and what else the Go kubelet keeps."""


class ActuatedRecords:
    """Keeps the records of the pods that need them. Many tasks may use it at once.

    `root` is `--root-dir`; the file is read and written in threads of `limiter`.
    """

    def __init__(self, root: Path, limiter: trio.CapacityLimiter) -> None:
        self._path = root / FILE_NAME
        self._limiter = limiter
        self._noted: set[str] = set()
        self._turn = trio.Lock()

    async def note(self, pod: Pod) -> None:
        """Record what the pod's containers are given; at once back for a pod that needs no record.

        What was recorded before stays. Problems are logged: no pod waits for its record.
        """
        uid = pod.metadata.uid
        if uid in self._noted or not needs_record(pod):
            return
        await self._change(partial(with_record, pod=pod))
        self._noted.add(uid)

    async def forget(self, uid: str) -> None:
        """Drop the record of a pod of which nothing is left."""
        if uid in self._noted:
            await self._change(partial(without_record, uid=uid))
            self._noted.discard(uid)

    async def _change(self, change: Callable[[Records], Records]) -> None:
        async with self._turn:
            try:
                await trio.to_thread.run_sync(self._rewrite, change, limiter=self._limiter)
            except (OSError, ValueError) as error:
                log.warning(
                    "a record for the Go kubelet is not kept",
                    file=str(self._path),
                    problem=str(error),
                )

    def _rewrite(self, change: Callable[[Records], Records]) -> None:
        try:
            before = parsed(self._path.read_text())
        except FileNotFoundError:
            before = {}
        after = change(before)
        if after != before:
            write_whole(self._path, printed(after), mode=_FILE_MODE)


def needs_record(pod: Pod) -> bool:
    """Whether a container of the pod wants to be restarted when it is resized."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return any(
        policy.restart_policy == _RESTARTS
        for container in containers
        for policy in container.resize_policy
    )


def with_record(records: Records, *, pod: Pod) -> Records:
    """Return the records with that of a pod, which stays as it is if there is one."""
    if pod.metadata.uid in records:
        return records
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    given = {each.name: encode(each.resources) if each.resources else {} for each in containers}
    return {**records, pod.metadata.uid: {"ContainerResources": given}}


def without_record(records: Records, *, uid: str) -> Records:
    """Return the records without that of a pod."""
    return {each: record for each, record in records.items() if each != uid}


def parsed(text: str) -> Records:
    """Return the records in the text of a file; ValueError if it is not whole."""
    try:
        file = json.loads(text)
        data, checksum = file["data"], file["checksum"]
        if checksum != _checksum(data):
            raise ValueError("its checksum does not fit")
        records: Records = json.loads(data).get("entries") or {}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it has another form") from error
    return records


def printed(records: Records) -> str:
    """Return the text of a file with these records."""
    data = go_json({"entries": records})
    return go_json({"data": data, "checksum": _checksum(data)})


def _checksum(data: str) -> int:
    return fnv1a_32(f"(string){data}".encode())
