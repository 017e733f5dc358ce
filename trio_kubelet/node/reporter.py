"""Keeps the Node object true: registers the node, then reports its status.

`NodeView` is the object as the cluster has it, followed by list-and-watch; answers to the agent's
own writes are handed in too, because they are newer than what the watch has shown so far. Admission
reads labels, taints and allocatable there, reports and the lease start from it.

A report is due after ten seconds if something has changed (nodeStatusUpdateFrequency), else after
five minutes (nodeStatusReportFrequency), and at once when the runtime says something new: a node
is Ready as soon as it can be. What is not known yet right after a start is no news: a node that
was Ready stays so while its agent is exchanged. Reports start from the watched object; after a
failure the object is asked for. As in the Go kubelet a node that is deleted while its agent runs
is not made again; one that somebody else makes is reported on.

A report is a strategic merge patch with the status and what changed of the metadata. Conditions
are merged by type: those that are the agent's go out whole, so that a patch made from a version
that has aged leaves no condition half old, half new. Addresses would be merged by type as well,
which cannot hold two internal ones; they are replaced as a list, as the Go kubelet does.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog
import trio
from attrs import define, evolve, field, fields

from state_machines.backoff import BackoffPolicy
from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import NODES, Node, NodeCondition, NodeStatus, Time
from trio_kubelet.k8s.client import (
    Api,
    ApiError,
    ObjectChanged,
    ObjectRemoved,
    Selection,
    WatchEvent,
    reflect,
)
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.versions import version_number
from trio_kubelet.node.allocatable import NodeAmounts
from trio_kubelet.node.conditions import OWN_CONDITIONS, condition_events, is_ready
from trio_kubelet.node.node_object import adopted_node, has_changed, initial_node, updated_node
from trio_kubelet.node.observer import Observation
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.retries import Retries, stretched
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("node")

RETRY = BackoffPolicy(initial_seconds=0.1, cap_seconds=7.0)
REPORTS = 5
"""The tries of a report in one round."""

JITTER = 0.04
UNREADY_SECONDS = 1.0
"""A node that is not ready is looked at so often: what it waits for may be there."""

REPLACE = {"$patch": "replace"}


class NodeView:
    """The newest known version of one node. Written by its watch and by those who wrote to it.

    `current` is None before it is known and after it was deleted. `on_version` is called with each
    version, with None when the node is gone.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.current: Node | None = None
        self._known = trio.Event()
        self.on_version: Callbacks[[Node | None]] = Callbacks()

    async def wait_known(self) -> Node:
        """Return the node as soon as there is one."""
        while self.current is None:
            await self._known.wait()
        return self.current

    async def watch(self, api: Api) -> None:
        """Follow the node for ever, whatever breaks."""
        await reflect(api, NODES, self._on_event, Selection(fields=f"metadata.name={self.name}"))

    def offer(self, node: Node) -> None:
        """Take a version over, unless a newer one of the same node is known."""
        known = self.current
        is_same = known is not None and known.metadata.uid == node.metadata.uid
        if known is None or not is_same or _version(node) >= _version(known):
            self._set(node)

    async def _on_event(self, event: WatchEvent[Node]) -> None:
        match event:
            case ObjectChanged(object=node):
                self.offer(node)
            case ObjectRemoved(object=node):
                self._remove(node)

    def _remove(self, node: Node) -> None:
        if self.current is not None and self.current.metadata.uid == node.metadata.uid:
            self._set(None)

    def _set(self, node: Node | None) -> None:
        self.current = node
        if node is None:
            self._known = trio.Event()
        else:
            self._known.set()
        self.on_version.call(node)


def _version(node: Node) -> int:
    """The resource version as a number; the API compares them so (KEP-5504)."""
    return max(0, version_number(node.metadata.resource_version))


def node_patch(before: Node, after: Node) -> Mapping[str, object]:
    """The body of a PATCH of the subresource `status` that makes `after` of `before`."""
    patch: dict[str, object] = {"status": _status_patch(before, after)}
    metadata = {
        name: changes
        for name in ("labels", "annotations")
        if (changes := _changes(getattr(before.metadata, name), getattr(after.metadata, name)))
    }
    return {"metadata": metadata, **patch} if metadata else patch


def _status_patch(before: Node, after: Node) -> Mapping[str, object]:
    # What is the same is not encoded: others may have put thousands of resources there.
    changed = [name for name in _COMPARED if _differ(name, before.status, after.status)]
    old, new = (_part(each.status, changed) for each in (before, after))
    patch = dict(_changes(old, new))
    conditions = [_whole(c) for c in after.status.conditions if c.type in OWN_CONDITIONS]
    if conditions:
        patch["conditions"] = conditions
    if before.status.addresses != after.status.addresses:
        patch["addresses"] = [*(encode(each) for each in after.status.addresses), REPLACE]
    return patch


_COMPARED = tuple(
    each.name for each in fields(NodeStatus) if each.name not in ("conditions", "addresses")
)
"""The fields of a status of which a patch has what has changed in them."""


def _differ(name: str, before: NodeStatus, after: NodeStatus) -> bool:
    return bool(getattr(before, name) != getattr(after, name))


def _part(status: NodeStatus, names: Iterable[str]) -> Mapping[str, object]:
    """Some fields of a status, encoded."""
    return encode(NodeStatus(**{name: getattr(status, name) for name in names}))


def _whole(condition: NodeCondition) -> Mapping[str, object]:
    """A condition with its words though they be empty: what is left out would stay as it was."""
    return {"reason": "", "message": "", **encode(condition)}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """The patch that turns one object into another: new values, and None for what is gone.

    Objects are compared field by field, lists as a whole.
    """
    changes: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        known = old.get(name)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            deeper = _changes(known, value)
            if deeper:
                changes[name] = deeper
        elif value != known:
            changes[name] = value
    return changes


@define(kw_only=True)
class NodeReporter:
    """Owner of the node's status."""

    _profile: NodeProfile
    _resources: Callable[[], NodeAmounts]
    """Returns what the node has now."""
    _view: NodeView
    _api: Api
    """For registration."""
    _heartbeat: Api
    """The client with its own connection, for reports."""
    _observe: Callable[[], Awaitable[Observation]]
    """Looks at the node."""
    _recorder: EventRecorder
    _clock: Clock
    _chance: random.Random
    """Spreads the reports of many nodes over time."""
    _wake: trio.Event = field(init=False, factory=trio.Event)
    _next_report_at: float | None = field(init=False, default=None)
    _unschedulable: bool = field(init=False, default=False)
    _retries: Retries = field(init=False, factory=lambda: Retries(RETRY))
    _reboot_told: bool = field(init=False, default=False)
    _is_outdated: bool = field(init=False, default=False)
    _first_tried_at: float | None = field(init=False, default=None)
    on_registered: Callbacks[[float]] = field(init=False, factory=Callbacks)
    """Called when a new Node object was made, with the seconds since this was first tried."""
    on_ready: Callbacks[[]] = field(init=False, factory=Callbacks)
    """Called each time that the node becomes ready."""
    volumes_in_use: Callable[[], tuple[str, ...] | None] = field(init=False, default=lambda: None)
    """Returns the volumes that must not be detached from the node.

    None while they are not known: then the Node goes on naming those that it names.
    """

    def wake(self) -> None:
        """Report now if something has changed, instead of when the next report is due."""
        self._wake.set()

    def use(self, settings: Settings) -> None:
        """Look and report as often as other settings say, from now on."""
        self._profile = evolve(self._profile, settings=settings)
        self._next_report_at = None
        self.wake()

    def returned(self) -> None:
        """The API server is back: look at once what it made of the node meanwhile.

        Controllers call a node unknown that was not heard of, and the watch may tell late.
        """
        self._is_outdated = True
        self.wake()

    async def run(self) -> None:
        """Register, then report for ever. An API server that is away is waited for."""
        await self._register()
        while True:
            self._wake = trio.Event()
            try:
                await self._report()
            except Exception:
                log.exception("node status report failed")
            with trio.move_on_after(self._seconds_to_next_look()):
                await self._wake.wait()

    def _seconds_to_next_look(self) -> float:
        node = self._view.current
        seconds = self._profile.configuration.node_status_update_frequency.total_seconds()
        period = stretched(seconds, JITTER, self._chance.random)
        if node is None or is_ready(node.status.conditions):
            return period
        return min(period, UNREADY_SECONDS)

    async def _register(self) -> None:
        """Return when the cluster knows the node."""
        if not self._profile.configuration.register_node:
            await self._view.wait_known()
            return
        while True:
            try:
                await self._try_to_register()
            except ApiError as error:
                self._warn("node registration failed, will retry", error)
            except Exception:
                log.exception("node registration failed")
            else:
                self._retries.reset()
                return
            await self._retries.wait()

    async def _try_to_register(self) -> None:
        initial = initial_node(self._profile_now(), await self._observe(), self._now())
        if self._first_tried_at is None:
            self._first_tried_at = trio.current_time()
        try:
            created = await self._api.create(NODES, initial)
        except ApiError as error:
            if not (error.is_already_exists or error.is_forbidden):
                raise
            await self._adopt(initial, error)
        else:
            log.info("node registered", name=self._profile.name)
            self.on_registered.call(trio.current_time() - self._first_tried_at)
            self._view.offer(created)
            self._schedule(changed=True)
            self._record_conditions((), created)

    async def _adopt(self, initial: Node, refusal: ApiError) -> None:
        try:
            existing = await self._api.get(NODES, self._profile.name)
        except ApiError as error:
            # Who may not create nodes is told that, not that there is none.
            raise (refusal if error.is_not_found else error) from None
        adopted = adopted_node(initial, existing)
        if adopted != existing:
            existing = await self._api.patch(
                NODES,
                self._profile.name,
                body=node_patch(existing, adopted),
                subresource="status",
            )
        log.info("node already registered", name=self._profile.name)
        self._view.offer(existing)

    async def _report(self) -> None:
        observed = await self._observe()
        problem: ApiError | None = None
        for attempt in range(REPORTS):
            try:
                node = await self._known(attempt)
                if node is not None:
                    await self._try_to_report(node, observed)
                    self._retries.reset()
                    return
            except ApiError as error:
                problem = error
        self._warn("node status report failed, will retry", problem)

    async def _known(self, attempt: int) -> Node | None:
        """The node to start from: as watched at first, as the API server has it afterwards."""
        if attempt == 0 and not self._is_outdated:
            return self._view.current
        node = await self._heartbeat.get(NODES, self._profile.name)
        self._is_outdated = False
        return node

    async def _try_to_report(self, before: Node, observed: Observation) -> None:
        self._record_schedulable(before)
        if observed.is_early and is_ready(before.status.conditions):
            return
        after = updated_node(self._profile_now(), observed, before, self._now())
        used = self.volumes_in_use()
        if used is not None:
            after = evolve(after, status=evolve(after.status, volumes_in_use=used))
        changed = has_changed(before, after)
        if not changed and not self._is_due():
            return
        answer = await self._heartbeat.patch(
            NODES, self._profile.name, body=node_patch(before, after), subresource="status"
        )
        self._schedule(changed=changed)
        self._view.offer(answer)
        self._record_reboot(before)
        self._record_conditions(before.status.conditions, after)

    def _profile_now(self) -> NodeProfile:
        return evolve(self._profile, resources=self._resources())

    def _is_due(self) -> bool:
        return self._next_report_at is None or trio.current_time() >= self._next_report_at

    def _schedule(self, *, changed: bool) -> None:
        """Say when the next report is due, though nothing changes.

        After a change the time is spread by half the period to both sides, so that nodes which
        changed together do not go on reporting together.
        """
        spread = self._chance.random() - 0.5 if changed or self._next_report_at is None else 0.0
        seconds = self._profile.configuration.node_status_report_frequency.total_seconds()
        self._next_report_at = trio.current_time() + seconds * (1 + spread)

    def _record_conditions(self, before: Sequence[NodeCondition], after: Node) -> None:
        for reason in condition_events(before, after.status.conditions):
            self._record(reason)
        if is_ready(after.status.conditions) and not is_ready(before):
            self.on_ready.call()

    def _record_schedulable(self, node: Node) -> None:
        unschedulable = bool(node.spec.unschedulable)
        if unschedulable != self._unschedulable:
            self._record("NodeNotSchedulable" if unschedulable else "NodeSchedulable")
        self._unschedulable = unschedulable

    def _record_reboot(self, before: Node) -> None:
        boot_id = self._profile.machine.boot_id
        known = before.status.node_info.boot_id if before.status.node_info is not None else ""
        if self._reboot_told or not known or known == boot_id:
            return
        self._reboot_told = True
        self._recorder.node(
            EventType.WARNING,
            "Rebooted",
            f"Node {self._profile.name} has been rebooted, boot id: {boot_id}",
        )

    def _record(self, reason: str) -> None:
        message = f"Node {self._profile.name} status is now: {reason}"
        self._recorder.node(EventType.NORMAL, reason, message)

    def _warn(self, event: str, error: ApiError | None) -> None:
        problem = str(error or "there is no such node")
        self._retries.warn(log, event, name=self._profile.name, error=problem)

    def _now(self) -> Time:
        return Time.from_ns(self._clock.now_ns())
