"""The pods nursery: one task for each incarnation of a pod, and the order among them.

The sync loop starts tasks (`start`) and sends them requests (`put`). A pod whose UID comes back is
started when the task of its former incarnation has finished, which is then told to postpone nothing
(`hurry`); a static pod waits until its predecessor of the same full name has been released. Pods
that were over when their source let them go, which may be thousands at once, get tasks a few at a
time (`clean`). Of a task that has finished only the time is kept, for housekeeping.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog
import trio

from state_machines.backoff import BackoffPolicy
from state_machines.pod import PodState, may_have_running_containers
from state_machines.pod_ending import Ending, takes_turns
from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import is_static
from trio_kubelet.runtime.health import RuntimeState
from trio_kubelet.sync.pod_task import Beginning, PodRequest, PodSteps, PodTask, SharedByTasks
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.turns import TurnQueue

log = structlog.get_logger("pods")

RETRY = BackoffPolicy(initial_seconds=1.0, cap_seconds=10.0)
"""After a bug in a task. Requests of the pod wait meanwhile, so never for long."""
CLEANED_AT_ONCE = 16
"""Tasks of pods that were over before: more than have a turn to be cleaned."""


class PodTasks:
    """Owns the tasks of all pods, which run in `nursery`; cancelled, they leave all containers.

    `open_syncer` is called once for each incarnation, before its task starts. `on_released(uid)` is
    called when a pod holds nothing any more that others could want, `on_finished(uid, incarnation)`
    after each task's end, `on_work(pod, state, seconds)` after each piece of work, `on_orphan(uid)`
    when the task of a pod that nobody wants begins.

    All methods are plain functions: a handler of the sync loop calls them, and nothing interleaves.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        open_syncer: Callable[[Pod], PodSteps],
        shared: SharedByTasks,
    ) -> None:
        self.on_released = shared.on_released
        self.on_work = shared.on_work
        self.on_finished: Callbacks[[str, int]] = Callbacks()
        self.on_orphan: Callbacks[[str]] = Callbacks()
        self._nursery = nursery
        self._open_syncer = open_syncer
        self._shared = shared
        self._tasks: dict[str, PodTask] = {}
        self._last_of_name: dict[str, PodTask] = {}
        self._finished_at: dict[str, float] = {}
        self._cleaned: set[str] = set()
        self._uncleaned: dict[str, tuple[Pod, Beginning]] = {}
        self._turns = TurnQueue[str]()

    def __contains__(self, uid: str) -> bool:
        return uid in self._tasks or uid in self._uncleaned

    def __iter__(self) -> Iterator[PodTask]:
        return iter(tuple(self._tasks.values()))

    @property
    def uids(self) -> Sequence[str]:
        """The UIDs of all pods that have a task, or wait for one."""
        return [*self._tasks, *self._uncleaned]

    def get(self, uid: str) -> PodTask | None:
        """The task that lives under this UID, if any."""
        return self._tasks.get(uid)

    def is_released(self, uid: str) -> bool:
        """True if there is no task under this UID that holds anything others could want."""
        task = self._tasks.get(uid)
        return task is None or task.released.is_set()

    def hurry(self, uid: str, *, leaves_remains: bool) -> None:
        """The next incarnation waits for the end of the task under this UID."""
        waiting = self._uncleaned.get(uid)
        if waiting is not None:
            self._turns.remove(waiting[0].metadata.namespace, uid)
            self._clean_now(uid)
        task = self._tasks.get(uid)
        if task is not None:
            task.hurry(leaves_remains=leaves_remains)

    @property
    def finished_at(self) -> Mapping[str, float]:
        """The times at which tasks have ended lately, by UID, in trio's clock."""
        return self._finished_at

    def forget_finished_before(self, instant: float) -> None:
        """Drop what is known of tasks that ended before then."""
        self._finished_at = {u: at for u, at in self._finished_at.items() if at >= instant}

    def start(
        self,
        pod: Pod,
        incarnation: int,
        *,
        after: trio.Event | None = None,
        state: PodState = PodState.SYNC_POD,
        ending: Ending | None = None,
    ) -> None:
        """Start the task of an incarnation. There must be none under its UID.

        It waits for `after` before it does anything for the pod, unless that ends first. One
        that does not begin in SyncPod has an `ending`.
        """
        uid = pod.metadata.uid
        waits = takes_turns(state, is_static=is_static(pod))
        task = self._begin(
            pod,
            Beginning(
                incarnation=incarnation,
                predecessor=self._last_of_name.get(pod.metadata.key) if waits else None,
                after=after,
                state=state,
                ending=ending,
            ),
        )
        if may_have_running_containers(state):
            self._last_of_name[pod.metadata.key] = task
        if state is PodState.TERMINATING:
            self.on_orphan.call(uid)

    def _begin(self, pod: Pod, beginning: Beginning) -> PodTask:
        uid = pod.metadata.uid
        assert uid not in self._tasks, f"pod {uid} has a task already"
        task = PodTask(pod, self._open_syncer(pod), self._shared, beginning)
        self._tasks[uid] = task
        self._nursery.start_soon(self._run_task, uid, task, name=f"pod {pod.metadata.key}")
        return task

    def clean(self, pod: Pod, incarnation: int, ending: Ending) -> None:
        """Remove what is left of a pod that is over and has no task, when it is its turn."""
        uid = pod.metadata.uid
        released = Beginning(
            incarnation=incarnation,
            state=PodState.RELEASED,
            ending=ending,
            released_at=trio.current_time(),
        )
        self._uncleaned[uid] = (pod, released)
        self._turns.put(pod.metadata.namespace, uid)
        self._clean_next()

    def _clean_next(self) -> None:
        while self._turns and len(self._cleaned) < CLEANED_AT_ONCE:
            self._clean_now(self._turns.take())

    def _clean_now(self, uid: str) -> None:
        pod, released = self._uncleaned.pop(uid)
        try:
            self._begin(pod, released)
        except Exception:
            log.exception("pod cleanup failed", pod=pod.metadata.key)
        else:
            self._cleaned.add(uid)

    def put(self, uid: str, request: PodRequest) -> None:
        """Hand a request to a pod's task; who waits for a pod without one is answered at once."""
        task = self._tasks.get(uid)
        if task is not None:
            task.put(request)
            return
        for waiter in request.waiters:
            waiter.set()

    def on_runtime_state(self, before: RuntimeState, after: RuntimeState) -> None:
        """The runtime or its network has changed: what waited for it goes on."""
        if after.up and not before.up:
            self.resync_all("runtime is up")
        elif after.network_ready and not before.network_ready:
            self.resync_all("network is ready")

    def resync_all(self, why: str) -> None:
        """Make every pod that should run look again."""
        for task in self:
            if task.state is PodState.SYNC_POD:
                task.put(PodRequest(why=(why,)))

    async def _run_task(self, uid: str, task: PodTask) -> None:
        retries = Retries(RETRY)
        while not task.finished.is_set():
            try:
                await task.run()
            except Exception:
                log.exception("pod task failed, continuing", pod=task.pod.metadata.key)
                await retries.wait()
        del self._tasks[uid]
        if self._last_of_name.get(task.pod.metadata.key) is task:
            del self._last_of_name[task.pod.metadata.key]
        self._finished_at[uid] = trio.current_time()
        self._cleaned.discard(uid)
        self._clean_next()
        try:
            self.on_finished.call(uid, task.incarnation)
        except Exception:
            log.exception("pod cleanup after its end failed", pod=task.pod.metadata.key)
