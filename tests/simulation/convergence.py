"""What must be true some time after the last fault: the node is what its sources want.

Nothing is left of pods that nobody wants, in the runtime and on disk; the others have become what
their shapes say; and what is told of them is what the runtime shows.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import trio

from tests.apiserver.rules import claims_of
from tests.simulation.health import health_of
from tests.simulation.node import NODE, Node
from tests.simulation.record import Life, Record, Wanted
from tests.simulation.shapes import Fate
from tests.simulation.shared import files_of
from trio_kubelet.hollow.records import HollowContainer
from trio_kubelet.k8s import (
    LEASES,
    NODES,
    PODS,
    TERMINAL_PHASES,
    ContainerStatus,
    Pod,
    PodStatus,
)
from trio_kubelet.k8s.kinds import EVENTS
from trio_kubelet.node.lease import LEASE_NAMESPACE
from trio_kubelet.pod_source import CONFIG_MIRROR
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.telemetry.correlation import ALIKE_MESSAGES, SPAM_BURST

LEASE_SECONDS = 40.0
LEAST_LEFT_SECONDS = 15.0
"""Of the life of a token: what a fifth of it has left after the longest time between syncs."""
LATE_SECONDS = 90.0
"""How long a container that failed a probe may take to end: its grace, with slow calls."""
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
EVENT_SECONDS = 10.0
"""How long after its occasion an event is in the API, where nothing fails."""
TOLD_WITHIN_NS = 1_000_000_000
"""How long after a change of a container its status may be on its way."""
LATEST_LOOK_SECONDS = 320.0
"""When a relist has shown what no event told of."""
OLD_MESSAGE_FILES = 5
"""Of containers that were there when the last one was made, and of some that could not be made."""
NEVER_SETTLED = (Fate.CRASHES, Fate.WAITS)
"""Containers of such pods may end at any time."""
RUNNING = cri.ContainerState.CONTAINER_RUNNING


def unsettled(node: Node, record: Record) -> Iterator[str]:
    """What is not as it should be after a time without faults."""
    yield from leftovers(node, record)
    wanted = {uid: pod for uid, pod in record.wanted.items() if not pod.deleted}
    if node.agent is None:
        yield "there is no agent"
        return
    yield from _node_problems(node)
    known = {stored.pod.metadata.uid: stored.pod for stored in node.agent.parts.store}
    for uid in sorted(known.keys() ^ wanted.keys()):
        yield f"pod {uid} is wanted: {uid in wanted}, known to the agent: {uid in known}"
    shown = shown_pods(node)
    for uid in sorted(known.keys() & wanted.keys()):
        if uid not in shown:
            yield f"pod {uid} is not shown by the API"
            continue
        status = shown[uid].status
        containers = _newest(node, uid)
        yield from _old_message_files(node, uid)
        if _is_gone_for_pressure(uid, record):
            ends = _wrong_ends(wanted[uid], status, containers, record)
            yield from (f"pod {uid}: {what}" for what in ends)
        elif not _is_excused(wanted[uid], status, record):
            missed = _missed_fate(wanted[uid], status, containers)
            yield from (f"pod {uid}: {what}" for what in missed)
            wrong = _wrong_health(shown[uid], containers)
            yield from (f"pod {uid}: {what}" for what in wrong)
            late = _late_restarts(wanted[uid], record)
            yield from (f"pod {uid}: {what}" for what in late)
            yield from _wrong_resources(wanted[uid], status, containers)
            stale = _stale_files(node, wanted[uid])
            yield from (f"pod {uid}: {what}" for what in stale)
        if not _may_be_told_late(wanted[uid], record):
            lies = _lies(known[uid], status, containers, node.clock.now_ns())
            yield from (f"pod {uid}: {what}" for what in lies)


def _node_problems(node: Node) -> Iterator[str]:
    """Whether the node does not look usable to those who ask the API server."""
    shown = node.api.find(NODES, NODE)
    conditions = {c.type: c.status for c in shown.status.conditions} if shown else {}
    pressures = [
        kind for kind, status in conditions.items() if "Pressure" in kind and status != "False"
    ]
    if conditions.get("Ready") != "True" or pressures:
        yield f"the node is not ready, or under pressure still: {conditions}"
    lease = node.api.find(LEASES, NODE, LEASE_NAMESPACE)
    renewed = lease.spec.renew_time if lease is not None else None
    age_seconds = (node.clock.now_ns() - renewed.ns) / 1e9 if renewed else math.inf
    if not -1 <= age_seconds <= LEASE_SECONDS:
        yield f"the lease was renewed {age_seconds:.0f} s ago"


def shown_pods(node: Node) -> dict[str, Pod]:
    """What the API shows, by the UIDs that pods have on the node: mirrors show static ones."""
    return {
        each.metadata.annotations.get(CONFIG_MIRROR, each.metadata.uid): each
        for each in node.api.all(PODS)
    }


def _stale_files(node: Node, wanted: Wanted) -> Iterator[str]:
    """Where the files of a running pod are not what the API has for it now."""
    shape = wanted.shape
    if shape.fate is not Fate.RUNS:
        return
    volumes = node.pod_folders / shape.uid / "volumes"
    if shape.shared:
        shown = {f.name: f.read_bytes() for f in volumes.glob("*/shared/*") if f.is_file()}
        if shown != (right := files_of(node.api, shape.shared)):
            yield f"its files are {shown} and should be {dict(right)}"
    if shape.has_token and not list(volumes.glob("*/access/token")):
        yield "it has no token"


def bad_tokens(node: Node, record: Record) -> Iterator[str]:
    """The tokens that are of no use to the pods that have them."""
    for path in sorted(node.pod_folders.glob("*/volumes/*/access/token")):
        uid = path.relative_to(node.pod_folders).parts[0]
        if uid not in record.wanted or record.wanted[uid].deleted:
            continue
        claims = claims_of(path.read_text())
        if (bound := claims["kubernetes.io"]["pod"]["uid"]) != uid:
            yield f"the token of pod {uid} is for {bound}"
        if (seconds := claims["exp"] - node.clock.now_ns() / 1e9) < LEAST_LEFT_SECONDS:
            yield f"the token of pod {uid} is good for {seconds:.0f} s"


def untold_events(node: Node, record: Record) -> Iterator[str]:
    """The events of this agent that users should see in the API, and do not.

    Pods that have much to say are left out: some of their events are, too, or are combined.
    """
    if node.agent is None:
        return
    told = {
        (event.involved_object.uid, event.reason, event.message) for event in node.api.all(EVENTS)
    }
    recorded = [(at, event.pod.metadata, event) for at, event in node.agent.recorded if event.pod]
    said = Counter(meta.uid for _, meta, _ in recorded)
    messages: dict[tuple[str, str], set[str]] = defaultdict(set)
    for _, meta, event in recorded:
        messages[meta.uid, event.reason].add(event.message)
    for recorded_at, meta, event in recorded:
        kinds = len(messages[meta.uid, event.reason])
        may_be_left_out = said[meta.uid] > SPAM_BURST or kinds >= ALIKE_MESSAGES
        is_new = trio.current_time() - recorded_at < EVENT_SECONDS
        if may_be_left_out or is_new or (meta.key, event.reason) in record.refused_events:
            continue
        if (meta.uid, event.reason, event.message) not in told:
            yield f"{event.reason} of pod {meta.uid}, recorded at {recorded_at:.0f}"


def _old_message_files(node: Node, uid: str) -> Iterator[str]:
    """Where files for the messages of containers pile up: a crash may go on for months."""
    for folder in (node.pod_folders / uid / "containers").glob("*"):
        files = _names(folder)
        if len(files) > len(_containers(node, uid)) + OLD_MESSAGE_FILES:
            yield f"pod {uid}: {folder.name} has {len(files)} files for messages"


def _is_excused(wanted: Wanted, status: PodStatus, record: Record) -> bool:
    """Whether something outside of the pod decided about it."""
    if wanted.shape.has_deadline:
        return record.clock_jumped_at > wanted.made_at
    return status.reason == "NodePorts" and wanted.shape.wants_port


def _is_gone_for_pressure(uid: str, record: Record) -> bool:
    """True if the node has evicted a pod, or has not taken it."""
    return uid in record.kept_away or uid in record.evictions


def _wrong_ends(
    wanted: Wanted, status: PodStatus, containers: dict[str, HollowContainer], record: Record
) -> Iterator[str]:
    """Where a pod that was evicted is there still, or its status does not say why it is not.

    One that was ending for its deadline when it was evicted keeps that reason.
    """
    eviction = record.evictions.get(wanted.shape.uid)
    if containers:
        yield f"it was evicted, and has {sorted(containers)}"
    if wanted.shape.has_deadline and status.reason == "DeadlineExceeded":
        return
    if (status.phase, status.reason) != ("Failed", "Evicted"):
        yield f"it was evicted or rejected, and its status says {status.phase} {status.reason}"
    if eviction is None:
        return
    if status.message != eviction.message:
        yield f"it was evicted for {eviction.message!r}, and its status says {status.message!r}"
    disruptions = [each.reason for each in status.conditions if each.type == "DisruptionTarget"]
    if disruptions != (["TerminationByKubelet"] if eviction.resource else []):
        yield f"it was evicted for {eviction.resource!r}, and its disruptions are {disruptions}"


def untold_pressures(node: Node, record: Record) -> Iterator[str]:
    """The pressures that the agent knows of, and the API does not show."""
    known = node.agent.parts.pressure.current() if node.agent is not None else None
    if known is None or trio.current_time() - record.pressure_changed_at < EVENT_SECONDS:
        return
    shown = node.api.find(NODES, NODE)
    conditions = {c.type: c.status for c in shown.status.conditions} if shown else {}
    told = [conditions.get(kind) == "True" for kind in PRESSURES]
    if told != [known.memory, known.disk, known.pid]:
        yield f"the node is under {known}, and is shown as {conditions}"


def _may_be_told_late(wanted: Wanted, record: Record) -> bool:
    """Whether a container may have ended, and nobody can know yet: an event was lost, or a hook
    is under way.
    """
    shape = wanted.shape
    if shape.fate not in NEVER_SETTLED:
        return False
    lives = record.lives.get(shape.uid, {}).values()
    starts = [x.started_at or 0.0 for x in lives if x.name == shape.regular_names[0]]
    hook_ends_at = max(starts, default=0.0) + shape.post_start_seconds
    return record.loses_events or trio.current_time() < hook_ends_at + 1


def leftovers(node: Node, record: Record) -> Iterator[str]:
    """What is there of pods that nobody wants."""
    wanted = {uid for uid, pod in record.wanted.items() if not pod.deleted}
    places = {
        "sandboxes": [s.config.metadata.uid for s in node.runtime.sandboxes],
        "containers": [c.sandbox.config.metadata.uid for c in node.runtime.containers],
        "pod folders": _names(node.pod_folders),
        "log folders": [name.split("_")[2] for name in _names(node.logs)],
        "objects": shown_pods(node).keys(),
    }
    for place, uids in places.items():
        for uid in sorted(set(uids) - wanted):
            yield f"pod {uid} is not wanted, and there are {place} of it"
    for link in sorted(node.log_links.glob("*")):
        if not link.is_symlink() or not link.readlink().parent.parent.exists():
            yield f"the log link {link.name} leads nowhere"


def _names(folder: Path) -> list[str]:
    return [each.name for each in folder.glob("*")]


def _newest(node: Node, uid: str) -> dict[str, HollowContainer]:
    """The newest container of each name in a pod."""
    containers = _containers(node, uid)
    containers.sort(key=lambda c: c.config.metadata.attempt)
    return {c.config.metadata.name: c for c in containers}


def _containers(node: Node, uid: str) -> list[HollowContainer]:
    return [c for c in node.runtime.containers if c.sandbox.config.metadata.uid == uid]


def _missed_fate(
    wanted: Wanted, status: PodStatus, containers: dict[str, HollowContainer]
) -> Iterator[str]:
    shape = wanted.shape
    running = {name for name, c in containers.items() if c.state == RUNNING}
    regular = set(shape.regular_names)
    if shape.fate is Fate.RUNS:
        steady = regular | shape.sidecar_names
        if running != steady or status.phase != "Running":
            yield f"{sorted(running)} run instead of {sorted(steady)}; phase {status.phase}"
    elif shape.fate is Fate.CRASHES:
        if status.phase not in ("Running", "Pending"):
            yield f"it crashes and is restarted for ever, but its phase is {status.phase}"
    elif shape.fate is Fate.WAITS:
        if running & regular or status.phase != "Pending":
            yield f"it should wait; {sorted(running)} run, phase {status.phase}"
    else:
        phase = {Fate.SUCCEEDS: "Succeeded", Fate.FAILS: "Failed"}[shape.fate]
        # Without its sandbox a pod that never restarts stays as it is, as in the Go kubelet; and an
        # end that nobody wanted may be one that no rule lets its container come back from.
        is_bound = not (wanted.harmed and (shape.never_restarts or shape.retried_names))
        if running or (is_bound and status.phase != phase):
            yield f"it should have ended; {sorted(running)} run, phase {status.phase}"


def _late_restarts(wanted: Wanted, record: Record) -> Iterator[str]:
    """Exits that restart all of a pod, of which nothing has come."""
    uid = wanted.shape.uid
    sandboxes = {life.sandbox_id for life in record.lives.get(uid, {}).values() if _runs_in(life)}
    for cause in (c for each in sorted(sandboxes) for c in record.restarts_of_all(uid, each)):
        seconds = trio.current_time() - (cause.ended_at or 0.0)
        if not cause.removed and seconds > LATEST_LOOK_SECONDS:
            yield f"{cause.name} ended {seconds:.0f} s ago, and all was to be restarted"


def _runs_in(life: Life) -> bool:
    """Whether the sandbox of a container is its pod's own still."""
    return bool(life.container.sandbox.ready)


def _wrong_resources(
    wanted: Wanted, status: PodStatus, containers: dict[str, HollowContainer]
) -> Iterator[str]:
    """Where a pod of the API has not what it asks for; there is room for all.

    One that asks for too much has all that it asked for at one time before.
    """
    if wanted.is_static:
        return
    has = {
        name: (container.resources.cpu_shares, container.resources.memory_limit_in_bytes)
        for name, container in containers.items()
        if name in wanted.shape.amounts and container.state == RUNNING
    }
    is_refused = wanted.shape.asks_for_too_much
    granted = [each.amounts for each in (wanted.feasible if is_refused else (wanted.shape,))]
    if not any(has.items() <= each.items() for each in granted):
        yield f"pod {wanted.shape.uid}: its containers have {has} of cpu and memory, not {granted}"
    told = [(c.type, c.reason) for c in status.conditions if c.type.startswith("PodResize")]
    right = [("PodResizePending", "Infeasible")] if is_refused else []
    is_over = status.phase in TERMINAL_PHASES
    if told != right and not (is_refused and is_over):
        yield f"pod {wanted.shape.uid}: what is said of a resize is {told}"


def _wrong_health(pod: Pod, containers: dict[str, HollowContainer]) -> Iterator[str]:
    """Where a container that was left alone has not become what its nature is."""
    conditions = {each.type: each.status for each in pod.status.conditions}
    is_told_ready = conditions.get("Ready") == "True"
    ready: list[bool] = []
    for told in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        container = containers.get(told.name)
        health = health_of(container) if container is not None else None
        if container is None or health is None or container.state != RUNNING:
            continue
        age_seconds = trio.current_time() - health.started_at
        is_decided = age_seconds > health.decided_after_seconds + LATE_SECONDS
        if is_decided and health.ends_by_nature:
            yield f"{told.name} fails a probe, and runs for {age_seconds:.0f} s"
        if is_decided and told.ready is not health.is_ready_by_nature:
            yield f"{told.name} is ready by nature: {health.is_ready_by_nature}, told: {told.ready}"
        if is_decided and (late := health.not_asked()):
            yield f"{told.name} was not asked for {', '.join(late)}"
        ready.append(told.ready)
    if ready and is_told_ready and not all(ready):
        yield f"it is told to be ready: {is_told_ready}, its containers: {ready}"


def _lies(
    pod: Pod, status: PodStatus, containers: dict[str, HollowContainer], now_ns: int
) -> Iterator[str]:
    """Where a status differs from what the runtime has shown for a moment."""
    for told in (*status.init_container_statuses, *status.container_statuses):
        shown = containers.get(told.name)
        if shown is not None and 0 <= now_ns - _changed_at_ns(shown) < TOLD_WITHIN_NS:
            continue
        runs = shown is not None and shown.state == RUNNING
        if runs != _is_running(told):
            yield f"{told.name} runs: {runs}, but its status says {told.state}"
        if shown is not None and told.container_id.rpartition("/")[2] != shown.id:
            yield f"{told.name} is {shown.id[:12]}, but its status says {told.container_id}"
    sandboxes = {c.sandbox.ip for c in containers.values() if c.state == RUNNING}
    if sandboxes and not pod.spec.host_network and sandboxes != {status.pod_ip}:
        yield f"its addresses are {sorted(sandboxes)}, its status says {status.pod_ip}"


def _changed_at_ns(container: HollowContainer) -> int:
    return max(container.created_at, container.started_at, container.finished_at)


def _is_running(status: ContainerStatus) -> bool:
    return status.state is not None and status.state.running is not None
