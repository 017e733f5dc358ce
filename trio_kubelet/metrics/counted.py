"""Counts what the agent does, being told of it, and times the start of its node.

Nobody counts in the code that acts: `agent/monitoring.py` adds these methods to the callbacks of
those who act. What is known of a pod goes when its task has finished, so nothing grows with the
pods that have been.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from attrs import define

from state_machines.pod import PodState
from trio_kubelet.debugging import LongTurn
from trio_kubelet.k8s import (
    HUGEPAGES_PREFIX,
    Container,
    Pod,
    PodPhase,
    PodStatus,
    Quantity,
    ResourceRequirements,
)
from trio_kubelet.metrics.definitions import Counts, ProbeCounts, static_label
from trio_kubelet.pod_source import is_static
from trio_kubelet.probes import ProbeOutcome, ProbeRun
from trio_kubelet.resource_managers.placement import AssignmentKind, Boundary
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.rpc.watched import RpcCall
from trio_kubelet.runtime.config.names import CONTAINER_NAME_LABEL, POD_UID_LABEL
from trio_kubelet.runtime.images.manager import ImageLookup
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.status.context import POD_REJECTED

CONTAINER, INIT_CONTAINER = "container", "init_container"
EPHEMERAL_CONTAINER = "ephemeral_container"
UNKNOWN = "unknown"
OUT_OF = "OutOf"
OUT_OF_FOREIGN_PAGES = "OutOfhugepages"
"""The label of all sizes that the node does not have."""
_OF_CONTAINER = 4
"""Labels of a probe that are not about one run of it."""

_RESULTS = {
    ProbeOutcome.SUCCESS: "successful",
    ProbeOutcome.WARNING: "successful",
    ProbeOutcome.FAILURE: "failed",
}
"""As in the Go kubelet: what could not be run says nothing of the container, and is not counted."""


@define
class _Start:
    """The progress of a pod's start. Times are nanoseconds since the epoch, 0 for none."""

    seen_at_ns: int
    pulls_from_ns: int = 0
    pulls_until_ns: int = 0
    was_worked_for: bool = False
    is_over: bool = False


class EventCounter:
    """Is told, and counts.

    `find_pod` gives a pod of the sources by its UID, `seen_ago` how many seconds ago it was seen
    for the first time, `resources` the names of the node's own resources.
    """

    def __init__(
        self,
        now_ns: Callable[[], int],
        find_pod: Callable[[str], Pod | None],
        seen_ago: Callable[[str], float],
        resources: Callable[[], Collection[str]],
    ) -> None:
        self.counts = Counts()
        self.probe_counts = ProbeCounts()
        self._now_ns = now_ns
        self._find_pod = find_pod
        self._seen_ago = seen_ago
        self._resources = resources
        self._starts: dict[str, _Start] = {}
        self._rejected: set[str] = set()
        self._created: dict[str, str] = {}
        self._probed: dict[str, set[tuple[str, ...]]] = {}
        self._has_network_pod = False

    # The runtime

    def runtime_called(self, call: RpcCall) -> None:
        """A call to the runtime came to its end."""
        counts, operation = self.counts, operation_name(call.method)
        counts.operations.labels(operation).inc()
        counts.operation_seconds.labels(operation).observe(call.seconds)
        if call.error is not None:
            counts.operation_errors.labels(operation).inc()
        if isinstance(call.request, cri.RunPodSandboxRequest):
            self._sandbox(call, call.request)
        elif isinstance(call.request, cri.CreateContainerRequest):
            self._created_container(call, call.request)
        elif isinstance(call.request, cri.RemoveContainerRequest):
            self._created.pop(call.request.container_id, None)
        elif isinstance(call.request, cri.StartContainerRequest):
            kind = self._created.pop(call.request.container_id, CONTAINER)
            if call.error is not None:
                counts.started_container_errors.labels(kind, "RunContainerError").inc()

    def _sandbox(self, call: RpcCall, request: cri.RunPodSandboxRequest) -> None:
        counts, handler = self.counts, request.runtime_handler
        counts.started_pods.inc()
        counts.sandbox_seconds.labels(handler).observe(call.seconds)
        options = request.config.linux.security_context.namespace_options
        has_user_namespace = bool(options.userns_options.uids)
        if has_user_namespace:
            counts.started_user_namespaced_pods.inc()
        if call.error is not None:
            counts.started_pod_errors.inc()
            counts.sandbox_errors.labels(handler).inc()
            if has_user_namespace:
                counts.started_user_namespaced_pod_errors.inc()

    def _created_container(self, call: RpcCall, request: cri.CreateContainerRequest) -> None:
        self._image_volumes(request, is_made=call.error is None)
        labels = request.config.labels
        kind = self._type(labels.get(POD_UID_LABEL, ""), labels.get(CONTAINER_NAME_LABEL, ""))
        self.counts.started_containers.labels(kind).inc()
        if call.error is not None:
            self.counts.started_container_errors.labels(kind, "CreateContainerError").inc()
        elif isinstance(call.response, cri.CreateContainerResponse):
            self._created[call.response.container_id] = kind

    def _image_volumes(self, request: cri.CreateContainerRequest, *, is_made: bool) -> None:
        counts = self.counts
        images = sum(bool(mount.image.image) for mount in request.config.mounts)
        counts.image_volumes.inc(images)
        (counts.mounted_image_volumes if is_made else counts.unmounted_image_volumes).inc(images)

    def observed(self, before: ObservedPod, after: ObservedPod) -> None:
        """A pod was looked at: containers that have ended since are counted."""
        if before.containers == after.containers:
            return
        ran = {each.id for each in before.containers if each.state is ObservedState.RUNNING}
        for each in after.containers:
            if each.state is ObservedState.EXITED and each.id in ran:
                kind = self._type(after.uid, each.name)
                self.counts.terminated_containers.labels(
                    kind, str(each.exit_code), each.reason
                ).inc()

    def _type(self, uid: str, name: str) -> str:
        pod = self._find_pod(uid)
        if pod is not None and any(each.name == name for each in pod.spec.init_containers):
            return INIT_CONTAINER
        if pod is not None and any(each.name == name for each in pod.spec.ephemeral_containers):
            return EPHEMERAL_CONTAINER
        return CONTAINER

    def relisted(self, seconds: float, interval_seconds: float) -> None:
        """Everything in the runtime was looked at, so long after the last time."""
        self.counts.relist_seconds.observe(seconds)
        if interval_seconds != float("inf"):
            self.counts.relist_interval.observe(interval_seconds)

    def runtime_event(self, seconds: float) -> None:
        """An event of the runtime came so late; the runtime's clock may be ahead."""
        self.counts.event_seconds.observe(max(0.0, seconds))

    def event_stream_opened(self) -> None:
        """A stream of the runtime's events has begun."""
        self.counts.event_streams.inc()

    def event_stream_failed(self) -> None:
        """A stream of the runtime's events has ended, or there was none."""
        self.counts.event_stream_errors.inc()

    def cgroup_operation(self, operation: str, seconds: float) -> None:
        """A cgroup was made, changed or removed, or could not be."""
        self.counts.cgroup_seconds.labels(operation).observe(seconds)

    def sleep_cut_short(self) -> None:
        """A hook had no time to sleep to the end."""
        self.counts.cut_short_sleeps.inc()

    def http_fell_back(self) -> None:
        """A hook over HTTPS was answered in plain HTTP."""
        self.counts.http_fallbacks.inc()

    def device_plugin_registers(self, resource: str) -> None:
        """Count a call of a device plugin to register; its resource is empty for no valid name."""
        self.counts.device_plugin_registrations.labels(resource).inc()

    def claims_handled(self, operation: str, is_error: bool, seconds: float) -> None:
        """The claims of a pod were prepared or unprepared, or could not be."""
        labels = (str(is_error).lower(), operation)
        self.counts.claim_operation_seconds.labels(*labels).observe(seconds)

    def claims_used(self, counts: Mapping[str, int]) -> None:
        """Pods use so many claims, by driver; and in all."""
        self.counts.claims_in_use.clear()
        for driver, count in counts.items():
            self.counts.claims_in_use.labels(driver).set(count)

    def devices_allocated(self, resource: str, seconds: float) -> None:
        """Count a call of Allocate, however it ended."""
        self.counts.device_allocation_seconds.labels(resource).observe(seconds)

    def pod_resources_asked(self, kind: str) -> None:
        """Count a call at the pod resources socket."""
        self.counts.pod_resources_requests.labels("v1").inc()
        self.counts.pod_resources_requests_by_kind[kind].labels("v1").inc()

    def pod_resources_refused(self, kind: str) -> None:
        """Count a call there that was answered with an error."""
        self.counts.pod_resources_errors_by_kind[kind].labels("v1").inc()

    def pod_events_dropped(self, number: int) -> None:
        """Count events that a client of the pods socket has lost."""
        self.counts.pod_events_dropped.inc(number)

    def evicted(self, signal: str) -> None:
        """A pod is evicted for a signal, or for a limit of its own."""
        self.counts.evictions.labels(eviction_signal=signal).inc()

    def eviction_decided(self, signal: str, age_seconds: float) -> None:
        """A pod was chosen by figures of that age."""
        self.counts.eviction_stats_age.labels(eviction_signal=signal).observe(age_seconds)

    def loop_held(self, turn: LongTurn) -> None:
        """A task held the event loop."""
        self.counts.long_turns.observe(turn.cpu_seconds)

    def resize_tried(self, seconds: float, worked: bool) -> None:
        """A pod was brought to what it is allocated, or could not be."""
        self.counts.resize_milliseconds.labels(str(worked).lower()).observe(seconds * 1e3)

    def resize_asked(self, before: Pod, after: Pod) -> None:
        """A spec asks for other resources of containers than its former version."""
        former = {each.name: each for each in _resizable(before)}
        for container in _resizable(after):
            if container.name in former:
                for labels in _changes(former[container.name], container):
                    self.counts.requested_resizes.labels(*labels).inc()

    def cpus_asked(self, has_got: bool) -> None:
        """A container was to have CPUs for itself."""
        self.counts.cpu_pinnings.inc()
        if not has_got:
            self.counts.cpu_pinning_errors.inc()

    def memory_asked(self, has_got: bool) -> None:
        """A container was to have memory of certain NUMA nodes."""
        self.counts.memory_pinnings.inc()
        if not has_got:
            self.counts.memory_pinning_errors.inc()

    def part_assigned(self, resource: str, kind: AssignmentKind) -> None:
        """A container was assigned CPUs or memory."""
        source = "node" if kind is AssignmentKind.NODE_EXCLUSIVE else "pod"
        self.counts.manager_allocations.labels(resource, source).inc()
        self.counts.manager_assignments.labels(str(kind), resource).inc()

    def part_refused(self, resource: str, source: str) -> None:
        """A pod could not have what its containers were to be assigned."""
        self.counts.manager_errors.labels(resource, source).inc()

    def boundary_looked_at(self, boundary: Boundary, scope: str, is_inside: bool) -> None:
        """CPUs of a container or pod are inside of a boundary, or could not be."""
        counts = self.counts.aligned if is_inside else self.counts.not_aligned
        counts.labels(str(boundary), scope).inc()

    def topology_looked_at(self, seconds: float, is_aligned: bool) -> None:
        """A new pod was given its part of the machine, or refused it."""
        self.counts.topology_admissions.inc()
        self.counts.topology_milliseconds.observe(seconds * 1e3)
        if not is_aligned:
            self.counts.topology_refusals.inc()

    def resize_refused(self, detail: str) -> None:
        """A pod asks for resources that the node will never give it."""
        self.counts.infeasible_resizes.labels(detail).inc()

    def deferred_resize_granted(self, trigger: str) -> None:
        """A pod is allocated what it has waited for."""
        self.counts.deferred_accepted_resizes.labels(trigger).inc()

    # Pods

    def orphan_found(self, _uid: str) -> None:
        """A pod was found in the runtime that nobody wants."""
        self.counts.orphaned_pods.inc()

    def image_looked_up(self, lookup: ImageLookup) -> None:
        """The one look of a request for an image has ended, however it did."""
        if lookup.present is None:
            present = required = UNKNOWN
        else:
            present, required = (str(each).lower() for each in (lookup.present, lookup.needs_pull))
        self.counts.image_requests.labels(present, lookup.policy.lower(), required).inc()
        if lookup.access is not None:
            self.counts.image_access_checks.labels(lookup.access).inc()

    def image_pulled(self, uid: str, seconds: float) -> None:
        """A pull for a pod has ended, well or not, so long after it was asked for."""
        start = self._starts.get(uid)
        if start is None or start.is_over:
            return
        start.pulls_until_ns = self._now_ns()
        if not start.pulls_from_ns:
            start.pulls_from_ns = start.pulls_until_ns - round(seconds * 1e9)

    def image_collected(self, reason: str) -> None:
        """An image was removed: for space, or for its age."""
        self.counts.collected_images.labels(reason).inc()

    def worked(self, pod: Pod, state: PodState, seconds: float) -> None:
        """Work for a pod came to its end."""
        uid, kind = pod.metadata.uid, "sync" if state is PodState.SYNC_POD else "kill"
        start = self._start_of(pod)
        if state is PodState.SYNC_POD and not start.was_worked_for:
            kind, start.was_worked_for = "create", True
            self.counts.work_began_after.observe(max(0.0, self._seen_ago(uid) - seconds))
            self.counts.containers_per_pod.observe(len(pod.spec.containers))
        self.counts.work_seconds.labels(kind).observe(seconds)

    def _start_of(self, pod: Pod) -> _Start:
        """The known part of a pod's start; its first status is told before its first work."""
        meta = pod.metadata
        known = self._starts.get(meta.uid)
        if known is None:
            seen_at_ns = self._now_ns() - round(self._seen_ago(meta.uid) * 1e9)
            known = self._starts[meta.uid] = _Start(seen_at_ns=seen_at_ns)
        return known

    def status_changed(self, pod: Pod, status: PodStatus) -> None:
        """A pod has a new status."""
        uid = pod.metadata.uid
        start = self._start_of(pod)
        if status.phase == PodPhase.FAILED and status.message.startswith(POD_REJECTED):
            if uid not in self._rejected:
                self._rejected.add(uid)
                self.counts.rejections.labels(self._rejection(status.reason)).inc()
        elif status.phase == PodPhase.RUNNING:
            self._runs(pod, status, start)

    def _rejection(self, reason: str) -> str:
        """The label of a reason: pods may ask for huge pages of as many sizes as there are names.

        Of other resources that the node does not have pods are not told that it is out of them.
        """
        resource = reason.removeprefix(OUT_OF)
        is_foreign = resource.startswith(HUGEPAGES_PREFIX) and resource not in self._resources()
        return OUT_OF_FOREIGN_PAGES if is_foreign else reason

    def status_synced(self, seconds: float) -> None:
        """The API shows the newest status of a pod, so long after it began to differ."""
        self.counts.status_sync_seconds.observe(seconds)

    def _runs(self, pod: Pod, status: PodStatus, start: _Start) -> None:
        """Count the start of a pod that was not running before this agent saw it."""
        if start.is_over:
            return
        started = [
            each.state.running.started_at.ns
            for each in status.container_statuses
            if each.state is not None
            and each.state.running is not None
            and each.state.running.started_at is not None
        ]
        if len(started) < len(pod.spec.containers):
            return
        start.is_over = True
        now_ns = self._now_ns()
        if max(started, default=0) + 1_000_000_000 <= start.seen_at_ns:
            return
        self.counts.pod_start.observe((now_ns - start.seen_at_ns) / 1e9)
        created = pod.metadata.creation_timestamp
        if created is None:
            return
        total = max(0, now_ns - created.ns)
        pulls = max(0, start.pulls_until_ns - start.pulls_from_ns) if start.pulls_from_ns else 0
        self.counts.pod_start_total.observe(total / 1e9)
        self.counts.pod_start_sli.observe((total - pulls) / 1e9)
        if not pod.spec.host_network and not self._has_network_pod:
            self._has_network_pod = True
            self.counts.first_pod_start_sli.set((total - pulls) / 1e9)

    def came_back(self, pod: Pod) -> None:
        """The UID of a pod came back before its former task had finished; now it has."""
        self.counts.restarted_pods.labels(static_label(static=is_static(pod))).inc()

    def finished(self, uid: str) -> None:
        """The task of a pod has ended: what was known of it is not needed any more."""
        self._starts.pop(uid, None)
        self._rejected.discard(uid)
        probed = self._probed.pop(uid, set())
        for labels in probed:
            self.probe_counts.runs.remove(*labels)
        for labels in {labels[:_OF_CONTAINER] for labels in probed}:
            self.probe_counts.seconds.remove(*labels)

    def probe_run(self, run: ProbeRun) -> None:
        """A probe was run. As in the Go kubelet, only those that succeed say how long they took."""
        result = _RESULTS.get(run.outcome)
        if result is None:
            return
        meta = run.pod.metadata
        labels = (str(run.kind), run.container, meta.name, meta.namespace)
        of_run = (*labels, result, meta.uid)
        self._probed.setdefault(meta.uid, set()).add(of_run)
        self.probe_counts.runs.labels(*of_run).inc()
        if run.outcome is not ProbeOutcome.FAILURE:
            self.probe_counts.seconds.labels(*labels).observe(run.duration_seconds)

    # Requests

    def api_answered(self, host: str, method: str, code: int | None, seconds: float) -> None:
        """The API server has answered, or (without a code) it could not be reached."""
        shown = "<error>" if code is None else str(code)
        self.counts.api_requests.labels(shown, host, method).inc()
        self.counts.api_seconds.labels(host, method).observe(seconds)


def _resizable(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers
    yield from pod.spec.containers


def _changes(before: Container, after: Container) -> Iterator[tuple[str, str, str]]:
    """Operation, requirement and resource of each amount that differs."""
    former, latter = (each.resources or ResourceRequirements() for each in (before, after))
    for requirement, had, gets in (
        ("requests", former.requests, latter.requests),
        ("limits", former.limits, latter.limits),
    ):
        for resource in ("cpu", "memory"):
            operation = _operation(had.get(resource), gets.get(resource))
            if operation:
                yield operation, requirement, resource


def _operation(had: Quantity | None, gets: Quantity | None) -> str:
    """The change of an amount, in the Go kubelet's word; empty if there is none."""
    if had == gets:
        return ""
    if had is None or gets is None:
        return "add" if had is None else "remove"
    return "increase" if gets > had else "decrease"


def operation_name(method: str) -> str:
    """A method of CRI as the Go kubelet calls it: `run_pod_sandbox` is `run_podsandbox`.

    A list that comes as a stream is a list.
    """
    name = method.replace("pod_sandboxes", "podsandbox").replace("pod_sandbox", "podsandbox")
    return name.replace("stream_", "list_")


class NodeStartup:
    """The time that a machine took to become a node: from its boot until its Node object is ready.

    A node that the cluster knew before has not started up now, and none of this is said of it.
    Made when the agent starts, `uptime_seconds` after the machine's boot.
    """

    def __init__(self, counts: Counts, now_ns: Callable[[], int], uptime_seconds: float) -> None:
        self._counts = counts
        self._now_ns = now_ns
        self._uptime_seconds = uptime_seconds
        self._started_at_ns = now_ns()
        self._registered_at_ns: int | None = None

    def registered(self, seconds: float) -> None:
        """A new Node object was made, so long after this was first tried."""
        counts, now_ns = self._counts, self._now_ns()
        before = (now_ns - self._started_at_ns) / 1e9 - seconds
        counts.startup_pre_kubelet_seconds.set(self._uptime_seconds)
        counts.startup_pre_registration_seconds.set(max(0.0, before))
        counts.startup_registration_seconds.set(seconds)
        self._registered_at_ns = now_ns

    def ready(self) -> None:
        """The node has become ready; the first time ends the start of a new one."""
        registered_at_ns, now_ns = self._registered_at_ns, self._now_ns()
        if registered_at_ns is None:
            return
        self._registered_at_ns = None
        counts = self._counts
        counts.startup_post_registration_seconds.set((now_ns - registered_at_ns) / 1e9)
        since_start = (now_ns - self._started_at_ns) / 1e9
        counts.startup_seconds.set(self._uptime_seconds + since_start)
