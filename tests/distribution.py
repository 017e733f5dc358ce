"""Which tests go to the same process where several share them (pytest-xdist).

Tests of one module on one containerd share an agent, those of one module in a guest its state, for
each cgroup driver or part there, and end-to-end tests a control plane; each such group goes to one
process, as a whole. All other tests go wherever there is time for them.
"""

import re

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ON_A_CONTAINERD = re.compile(r"[\[-](containerd(-[0-9a-z.+]+)?)[\]-]")
# The first parameter of those tests that share what they make for each of its values.
IN_A_GUEST = re.compile(r"\[(cgroupfs|systemd|limits|lives|runc|crun)[\]-]")


class Distribution(LoadScopeScheduling):  # type: ignore[misc] # pytest-xdist has no types
    """Hands out the groups in the order of their first tests."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        """Hand out what takes minutes as late as can be: who is ready first is to have it.

        A process needs to know its next test before it runs one, and no more.
        """
        following = next(iter(self.workqueue), "")
        is_alone = "::" in following
        if following and not is_alone and self._pending_of(self.assigned_work[node]) > 1:
            return
        super()._reschedule(node)


def group_of(nodeid: str) -> str:
    """The group of a test; one that needs no company is a group of its own."""
    path, _, name = nodeid.partition("::")
    if path.startswith("tests/e2e/"):
        return "tests/e2e"
    if path.startswith("tests/guest/"):
        kind = IN_A_GUEST.search(name)
        return f"{path} {kind[1]}" if kind else path
    if found := ON_A_CONTAINERD.search(name):
        return f"{path} {found[1]}"
    return nodeid
