"""The containers that ended by the kernel's OOM killer: asked of the kernel, not of the runtime.

Runtimes watch for it, too, but report the end of a container that lived shortly before they know
its cause. On cgroup v2 the counts of the pod's cgroup tell afterwards (`oom_ledger.py`), on v1
notices that were asked for before the start (`oom_files.py`). Files are read when a container
was seen to end, and at no other time.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio
from attrs import define, evolve, field

from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.resources.cgroup_names import CgroupDriver
from trio_kubelet.resources.cgroup_tree import CgroupTree
from trio_kubelet.resources.oom_files import (
    OomNotice,
    first_counts,
    first_notice,
    load_record,
    pod_folders,
    save_record,
)
from trio_kubelet.resources.oom_ledger import (
    OomLedger,
    SeenContainer,
    first_ledger,
    judged,
    shows_all,
)
from trio_kubelet.tasks.threads import run_in_thread

T = TypeVar("T")


@define(eq=False)
class OomKills:
    """Knows of each pod which of its containers the OOM killer ended.

    `tree` are the machine's cgroups; `pods` is where the folders of pods are. `whole`: an
    OOM kill takes all of a container (singleProcessOOMKill is off). No method raises: what the
    kernel does not tell is not known.
    """

    _tree: CgroupTree
    _pods: Path
    _cgroup_root: str = field(default="/", kw_only=True)
    _whole: bool = field(default=True, kw_only=True)
    _ledgers: dict[str, OomLedger] = field(init=False, factory=dict)
    _notices: dict[str, dict[str, OomNotice]] = field(init=False, factory=dict)
    _lock: trio.Lock = field(init=False, factory=trio.Lock)
    _limiter: trio.CapacityLimiter = field(init=False, factory=lambda: trio.CapacityLimiter(1))

    async def expect_start(self, uid: str, container_id: str) -> None:
        """Prepare for the end of a container that was made and is started next."""
        if self._tree.version != 1 or not is_path_part(container_id):
            return
        folders = [pod / container_id for pod in self._cgroups(uid, CgroupDriver.CGROUPFS)]
        notice = await self._in_thread(partial(first_notice, folders, trio.current_time()))
        if notice is not None:
            self._notices.setdefault(uid, {})[container_id] = notice

    async def killed(
        self, uid: str, seen: Sequence[SeenContainer], observed_at: float
    ) -> frozenset[str]:
        """Return the ids of those that the OOM killer ended, of all that a pod was seen to have.

        `observed_at` is trio's clock before the runtime was asked. Cancelled, it may be called
        again.
        """
        if uid in self._notices:
            async with self._lock:
                await self._drop_notices(uid, seen, observed_at)
        if not seen:
            self._ledgers.pop(uid, None)
            return frozenset()
        started = tuple(each for each in seen if each.started)
        if not self._knows(uid, started):
            async with self._lock:
                if not self._knows(uid, started):
                    await self._judge(uid, started)
        ledger = self._ledgers.get(uid)
        return ledger.killed if ledger is not None else frozenset()

    async def forget_container(self, uid: str, container_id: str) -> None:
        """Ask for no more of a container that was removed."""
        if container_id in self._notices.get(uid, {}):
            async with self._lock:
                if container_id in self._notices.get(uid, {}):
                    await self._close(uid, container_id)

    async def forget(self, uid: str) -> None:
        """Nothing of the pod is left in the runtime."""
        async with self._lock:
            for container_id in tuple(self._notices.get(uid, ())):
                await self._close(uid, container_id)
            self._ledgers.pop(uid, None)

    def _knows(self, uid: str, seen: Sequence[SeenContainer]) -> bool:
        """True if there is nothing to find out: where all is shown, what was before is nothing."""
        ledger = self._ledgers.get(uid)
        if ledger is not None:
            return ledger.knows_ends_of(seen)
        return shows_all(seen) and not any(each.ended for each in seen)

    async def _judge(self, uid: str, seen: Sequence[SeenContainer]) -> None:
        if not is_path_part(uid):
            return
        before = self._ledgers.get(uid)
        if before is None:
            before = await self._in_thread(partial(load_record, self._pods / uid))
        if before is not None:
            self._ledgers[uid] = before
        if self._tree.version == 1:
            after = await self._by_notices(uid, before or OomLedger(), seen)
        else:
            folders = tuple(self._cgroups(uid, *CgroupDriver))
            counts = await self._in_thread(partial(first_counts, folders))
            if counts is None:
                return
            after = judged(before or first_ledger(counts, seen), counts, seen, whole=self._whole)
        self._ledgers[uid] = after = after.with_newest(seen)
        with trio.CancelScope(shield=True):
            if after.record and (before is None or after.record != before.record):
                await self._in_thread(partial(save_record, self._pods / uid, after))
            for container_id in self._notices.get(uid, {}).keys() & after.verdicts.keys():
                await self._close(uid, container_id)

    async def _by_notices(
        self, uid: str, ledger: OomLedger, seen: Sequence[SeenContainer]
    ) -> OomLedger:
        """The ledger with the verdicts that notices give."""
        verdicts = dict(ledger.verdicts)
        notices = self._notices.get(uid, {})
        for each in seen:
            if not each.ended or each.id in verdicts:
                continue
            notice = notices.get(each.id)
            if notice is None or each.told_killed or not each.was_killed:
                verdicts[each.id] = each.told_killed
            else:
                verdicts[each.id] = await notice.was_killed()
        return evolve(ledger, verdicts=verdicts)

    async def _drop_notices(
        self, uid: str, seen: Sequence[SeenContainer], observed_at: float
    ) -> None:
        """Ask for no more of containers that are gone: made before they were not shown."""
        shown = {each.id for each in seen}
        for container_id, notice in tuple(self._notices.get(uid, {}).items()):
            if container_id not in shown and notice.made_at < observed_at:
                await self._close(uid, container_id)

    async def _close(self, uid: str, container_id: str) -> None:
        await self._in_thread(self._notices[uid][container_id].close)
        del self._notices[uid][container_id]
        if not self._notices[uid]:
            del self._notices[uid]

    def _cgroups(self, uid: str, *drivers: CgroupDriver) -> Iterator[Path]:
        """The folders that may be the pod's."""
        return pod_folders(self._tree.hierarchies["memory"], uid, self._cgroup_root, drivers)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await run_in_thread(work, limiter=self._limiter)
