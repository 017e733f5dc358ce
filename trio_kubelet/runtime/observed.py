"""The runtime's view of a pod: frozen values, made once for each inspection.

The relist (`pleg/`) and each pod's own task read the runtime and turn its messages into these
values; everything that decides (`runtime/lifecycle/planning.py`, `status/`, housekeeping) reads
only them.
No CRI message travels further than this file and `runtime/client.py`.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property

from attrs import field, frozen

ENTRY_BYTES = 256
"""Of a sandbox in a list, beside its labels and annotations."""


class ObservedState(StrEnum):
    """The four states of a container in CRI."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


@frozen(kw_only=True)
class ObservedContainer:
    """One container of the runtime, dead or alive.

    Times are nanoseconds since the epoch, 0: not yet.
    """

    id: str
    name: str
    sandbox_id: str
    state: ObservedState
    restart_count: int = 0
    """The attempt of its metadata."""
    hash: str = ""
    """The annotation `io.kubernetes.container.hash`."""
    created_at: int = 0
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    message_file: str = ""
    """A file of the node: what lies behind its termination message path."""
    image: str = ""
    """The name that the pod's spec asked for."""
    image_id: str = ""
    """The id in the runtime."""
    image_ref: str = ""
    """The name that `image` resolved to, with digest."""
    log_path: str = ""
    user: "ObservedUser | None" = None
    stop_signal: str = ""
    recursively_read_only: frozenset[str] = frozenset()
    """The paths in the container at which everything below a mount is read-only, too."""
    image_mounts: Mapping[str, str] = field(factory=dict)
    """The names with digest of the images that are mounted, by the paths in the container; empty
    where the runtime does not tell."""
    resources: "ObservedResources | None" = None
    """None where the runtime does not tell (containerd 1.6)."""
    annotations: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class ObservedResources:
    """The resources that a container may use, in the kernel's terms; 0 where nothing is said."""

    cpu_shares: int = 0
    cpu_quota: int = 0
    cpu_period: int = 0
    memory_limit_bytes: int = 0


@frozen(kw_only=True)
class ObservedUser:
    """The identity that the first process of a container was given."""

    uid: int
    gid: int
    supplemental_groups: tuple[int, ...] = ()


@frozen(kw_only=True)
class ObservedSandbox:
    """One sandbox of a pod. `created_at` is in nanoseconds since the epoch."""

    id: str
    name: str
    namespace: str
    uid: str
    attempt: int
    ready: bool
    created_at: int
    ips: tuple[str, ...] = ()
    host_network: bool = False
    runtime_handler: str = ""
    labels: Mapping[str, str] = field(factory=dict)
    annotations: Mapping[str, str] = field(factory=dict)

    @cached_property
    def size_bytes(self) -> int:
        """About what its entry takes in the runtime's list of sandboxes."""
        texts = (*self.labels.items(), *self.annotations.items())
        return ENTRY_BYTES + sum(len(name.encode()) + len(value.encode()) for name, value in texts)


@frozen
class Unusable:
    """A sandbox that containers cannot go into."""

    why: str


@frozen
class Absent:
    """There is no sandbox."""


@frozen(kw_only=True)
class ObservedPod:
    """All that the runtime shows of one pod."""

    uid: str
    name: str
    namespace: str
    observed_at: float
    """trio's clock just before the runtime was asked: everything that ended before it is seen."""
    answered_at: float = -math.inf
    """trio's clock when it had answered: what is shown may be as late as that."""
    ips: tuple[str, ...] = ()
    """Kept from an earlier observation when the sandbox is gone."""
    sandboxes: tuple[ObservedSandbox, ...] = ()
    """The newest first."""
    containers: tuple[ObservedContainer, ...] = ()
    """The newest first."""

    @property
    def key(self) -> str:
        """The pod's name in logs: `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_empty(self) -> bool:
        """True if nothing of the pod is there."""
        return not self.sandboxes and not self.containers

    @property
    def ready_sandbox(self) -> ObservedSandbox | None:
        """The newest sandbox if it is ready."""
        if self.sandboxes and self.sandboxes[0].ready:
            return self.sandboxes[0]
        return None

    def usable_sandbox(self, *, host_network: bool) -> "ObservedSandbox | Unusable | Absent":
        """The newest sandbox if containers can go into it."""
        if not self.sandboxes:
            return Absent()
        newest = self.sandboxes[0]
        if not newest.ready:
            return Unusable("it is not ready")
        if sum(sandbox.ready for sandbox in self.sandboxes) > 1:
            return Unusable("another one is ready, too")
        if newest.host_network is not host_network:
            return Unusable("it is on another network than the pod wants")
        if not host_network and not newest.ips:
            return Unusable("it has no address")
        return newest

    @property
    def is_running(self) -> bool:
        """True if any container runs or any sandbox is ready."""
        return any(s.ready for s in self.sandboxes) or any(
            c.state is ObservedState.RUNNING for c in self.containers
        )

    @property
    def living(self) -> tuple[ObservedContainer, ...]:
        """The containers that run, or may run."""
        states = (ObservedState.RUNNING, ObservedState.UNKNOWN)
        return tuple(c for c in self.containers if c.state in states)

    @property
    def running_parts(self) -> tuple[str, ...]:
        """The containers and sandboxes that run, or may run, in words."""
        return (
            *(f"container {c.name}" for c in self.living),
            *(f"sandbox {s.id}" for s in self.sandboxes if s.ready),
        )

    def container(self, name: str) -> ObservedContainer | None:
        """The newest container of that name, in whatever state."""
        return next(iter(self.instances(name)), None)

    def instances(self, name: str) -> Sequence[ObservedContainer]:
        """The containers of that name, newest first."""
        return self._by_name.get(name, ())

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[ObservedContainer]]:
        found: dict[str, list[ObservedContainer]] = {}
        for container in self.containers:
            found.setdefault(container.name, []).append(container)
        return found
