"""A node that gets old: years in which pods come, crash, are deleted, and want ever newer images.

A day of such a node costs little, as its agent looks at things by the hour: the settings that say
so are those of users, and what has no setting is stretched here (`STRETCHED`). So nothing of its
work is left out, but its looks at what did not change. In the first half agents are stopped and
killed, and the machine is booted; the second half belongs to one agent, in which what it does not
give back must show. Nothing else goes wrong: `world.py` is for that.

At the end of each month only the same two pods are left, and everything is counted (`Census`). A
node that keeps nothing of what has gone has the same figures then.
"""

import gc
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import trio
import trio.testing
from attrs import frozen

from tests.simulation.determinism import deterministic
from tests.simulation.node import NODE, Node, WallClock
from tests.simulation.scenes import Watcher
from trio_kubelet.eviction import rhythm
from trio_kubelet.hollow import BEHAVIOUR_ANNOTATION, HollowOptions, HollowRuntime
from trio_kubelet.k8s import (
    CONFIG_MAPS,
    EVENTS,
    PODS,
    SERVICE_ACCOUNTS,
    ConfigMap,
    ObjectMeta,
    Pod,
    ServiceAccount,
)
from trio_kubelet.k8s.codec import decode
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.plugins import registry
from trio_kubelet.references import tokens
from trio_kubelet.runtime import health
from trio_kubelet.runtime.garbage import collector as dead_containers
from trio_kubelet.runtime.images import collector as images
from trio_kubelet.status import writer
from trio_kubelet.sync import loop

HOUR = timedelta(hours=1)
HOUR_SECONDS = HOUR.total_seconds()
MONTHS_OF_A_BOOT = 3
PODS_OF_A_DAY = 3
SETTLE_SECONDS = 36 * HOUR_SECONDS
"""Longer than all periods below, and than the age of an image that nobody uses."""
PODS_OF_A_START = 8
"""Their starts and ends prove the runtime's events to an agent; it relists each second before."""

SETTINGS: Mapping[str, Any] = {
    "eviction_hard": {},
    "feature_gates": {"EventedPLEG": True},
    "container_log_monitor_interval": HOUR,
    "file_check_frequency": HOUR,
    "image_maximum_gc_age": 24 * HOUR,
    "node_lease_duration_seconds": int(4 * HOUR_SECONDS),
    "node_status_report_frequency": 6 * HOUR,
    "node_status_update_frequency": HOUR,
    "sync_frequency": HOUR,
    "volume_stats_agg_period": HOUR,
}
STRETCHED: tuple[tuple[ModuleType, str, float], ...] = (
    (dead_containers, "PERIOD_SECONDS", HOUR_SECONDS),
    (health, "CHECK_SECONDS", HOUR_SECONDS),
    (images, "LOOK_SECONDS", HOUR_SECONDS),
    (images, "PERIOD_SECONDS", HOUR_SECONDS),
    (loop, "HOUSEKEEPING_SECONDS", HOUR_SECONDS / 2),
    (registry, "LOOK_SECONDS", HOUR_SECONDS),
    (rhythm, "PERIOD_SECONDS", HOUR_SECONDS),
    (tokens, "_RENEWAL_INTERVAL_SECONDS", HOUR_SECONDS / 4),
    (writer, "RESYNC_SECONDS", HOUR_SECONDS),
)

FATES: Mapping[str, tuple[str, str]] = {
    "server": ("Always", "{}"),
    "crashing": ("Always", '{"runSeconds": 40, "exitCode": 1, "logLines": ["no"]}'),
    "job": ("Never", '{"runSeconds": 600, "terminationMessage": "done"}'),
    "retried": ("OnFailure", '[{"runSeconds": 5, "exitCode": 2}, {"runSeconds": 5}]'),
    "failing": ("Never", '{"runSeconds": 60, "exitCode": 3}'),
}
"""Restart policy and behaviour of pods, by the kinds of them."""
VOLUMES = (
    {"name": "scratch", "emptyDir": {}},
    {"name": "settings", "configMap": {"name": "settings"}},
    {
        "name": "token",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 7200}},
                {
                    "downwardAPI": {
                        "items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]
                    }
                },
            ]
        },
    },
)


@frozen(kw_only=True)
class Census:
    """The figures of a node on which only the pods that stay are left."""

    resident_kib: int
    objects: Mapping[str, int]
    """Live objects that the agent's code has classes for, by class."""
    tasks: int
    descriptors: int
    files: Mapping[str, int]
    """Files and folders below the agent's own folders and the logs, by the first parts of their
    paths."""


def grow_old(
    root: Path, *, months: int, days_of_month: int = 30, seed: int = 0
) -> tuple[Census, ...]:
    """Live through so many months; a census for the end of each.

    Raises AssertionError for an error in the agent's log.
    """
    with ExitStack() as stack:
        stack.enter_context(deterministic(seed))
        for module, name, seconds in STRETCHED:
            stack.enter_context(patch.object(module, name, new=seconds))
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(_live, root, months, days_of_month, seed, clock=clock)


async def _live(root: Path, months: int, days_of_month: int, seed: int) -> tuple[Census, ...]:
    watcher = Watcher()
    async with trio.open_nursery() as nursery:
        clock = WallClock()
        options = HollowOptions(name="containerd", version="2.1.0")
        runtime = HollowRuntime(clock, nursery, options)
        node = Node(root, clock, runtime, nursery, watcher)
        node.settings = SETTINGS
        node.start_agent()
        owner = Owner(node, watcher, random.Random(seed))
        censuses = await owner.live(months, days_of_month)
        node.stop_agent()
        await node.agent_ended()
        nursery.cancel_scope.cancel()
    return censuses


class Owner:
    """The owner of the node and of all pods on it."""

    def __init__(self, node: Node, watcher: Watcher, chance: random.Random) -> None:
        self._node = node
        self._watcher = watcher
        self._chance = chance
        self._made = 0
        self._until: dict[str, float] = {}
        """The time, on trio's clock, at which the owner of a pod deletes it, by the pod's name."""
        account = ServiceAccount(metadata=ObjectMeta(name="default", namespace="default"))
        node.api.create(SERVICE_ACCOUNTS, account)
        settings = ConfigMap(metadata=ObjectMeta(name="settings", namespace="default"))
        node.api.create(CONFIG_MAPS, settings)
        self._create(document("stays", "server", "registry.example.com/stays:1"))
        self._write_manifest("stays-static", image="registry.example.com/stays:1")
        self._create_jobs()

    async def live(self, months: int, days_of_month: int) -> tuple[Census, ...]:
        """Live through so many months; a census for the end of each."""
        censuses: list[Census] = []
        for month in range(1, months + 1):
            for day in range(days_of_month):
                await self._live_a_day((month - 1) * days_of_month + day)
            await self._end_month()
            censuses.append(self._count())
            if month <= months / 2:
                await self._replace_agent(boots=month % MONTHS_OF_A_BOOT == 0)
        return tuple(censuses)

    async def _live_a_day(self, day: int) -> None:
        """Let the owners do what they do on a day, at any hour of it."""
        image = f"registry.example.com/app:{day}"
        self._change_settings(day)
        self._write_manifest("daily-static", image=image)
        acts = sorted(self._chance.uniform(0, 20 * HOUR_SECONDS) for _ in range(PODS_OF_A_DAY))
        began = trio.current_time()
        for at_seconds in acts:
            await trio.sleep_until(began + at_seconds)
            self._delete_due()
            kind = self._chance.choice(list(FATES))
            lives_hours = self._chance.uniform(20, 200) if kind == "server" else 3
            self._create_for(lives_hours, kind, image)
        await trio.sleep_until(began + 24 * HOUR_SECONDS)
        self._delete_due()
        # The API server forgets events after an hour; a test would remember each request.
        for event in self._node.api.all(EVENTS):
            self._node.api.delete(EVENTS, event.metadata.name, event.metadata.namespace)
        self._node.api.requests.clear()
        self._node.load.forget_uses()
        self._node.api.storage.compact()
        if self._node.agent is not None:
            self._node.agent.recorded.clear()
        assert self._watcher.errors == []

    async def _end_month(self) -> None:
        """Let only those pods be left that stay, and all that was theirs go."""
        self._delete(list(self._until))
        (self._node.manifests / "daily-static.json").unlink()
        await trio.sleep(SETTLE_SECONDS)

    async def _replace_agent(self, *, boots: bool) -> None:
        """Stop the agent, or kill it, perhaps as its machine loses its power; start another."""
        if boots:
            self._node.kill_agent()
            for sandbox in self._node.runtime.sandboxes:
                self._node.runtime.sandboxes.fail(sandbox.id)
            for container in self._node.runtime.containers:
                self._node.runtime.containers.kill(container.id)
            self._node.boot()
        elif self._chance.random() < 0.5:
            self._node.kill_agent()
        else:
            self._node.stop_agent()
        await self._node.agent_ended()
        self._node.start_agent()
        self._create_jobs()

    def _create_jobs(self) -> None:
        for _ in range(PODS_OF_A_START):
            self._create_for(1, "job", "registry.example.com/job:1")

    def _create_for(self, hours: float, kind: str, image: str) -> None:
        self._made += 1
        name = f"{kind}-{self._made}"
        self._create(document(name, kind, image))
        self._until[name] = trio.current_time() + hours * HOUR_SECONDS

    def _create(self, pod: Mapping[str, Any]) -> None:
        spec = {**pod["spec"], "nodeName": NODE}
        self._node.api.create(PODS, with_defaults(decode(Pod, {**pod, "spec": spec})))

    def _delete_due(self) -> None:
        now = trio.current_time()
        self._delete([name for name, until in self._until.items() if until <= now])

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._node.api.delete(PODS, name, "default")
            del self._until[name]

    def _write_manifest(self, name: str, *, image: str) -> None:
        static = document(name, "server", image)
        # Static pods have nothing of the API.
        static["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
        self._node.write_manifest(name, json.dumps({"apiVersion": "v1", "kind": "Pod", **static}))

    def _change_settings(self, day: int) -> None:
        settings = ConfigMap(
            metadata=self._node.api.get(CONFIG_MAPS, "settings", "default").metadata,
            data={"day": str(day)},
        )
        self._node.api.update(CONFIG_MAPS, settings)

    def _count(self) -> Census:
        gc.collect()
        modules = ("trio_kubelet.", "state_machines.")
        return Census(
            resident_kib=_resident_kib(),
            objects=Counter(
                f"{type(each).__module__}.{type(each).__qualname__}"
                for each in gc.get_objects()
                if str(type(each).__module__).startswith(modules)
            ),
            tasks=trio.lowlevel.current_statistics().tasks_living,
            descriptors=len(list(Path("/proc/self/fd").iterdir())),
            files=Counter(_files(self._node.root)),
        )


def document(name: str, kind: str, image: str) -> dict[str, Any]:
    """Return a pod of a kind that `FATES` has."""
    policy, behaviour = FATES[kind]
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {BEHAVIOUR_ANNOTATION: behaviour},
        },
        "spec": {
            "containers": [{"name": "main", "image": image}],
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": 1,
            "volumes": list(VOLUMES),
        },
    }


def _resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def _files(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            parts = (Path(folder) / name).relative_to(root).parts
            yield "/".join(parts[:2])
