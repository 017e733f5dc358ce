"""kill -9 of the agent at random moments, while pods come and go and one stays.

The pod that stays must not notice, and of those that go nothing may be left, whoever was to see to
it. `tests/integration/test_kills.py` does it for longer on the host.
"""

import os
import random
import time

from lab.agent import Json, pod_manifest
from lab.images import SLEEPER
from tests.guest.node import MANIFESTS, POD_LOGS, ROOT, UNIT, Node

KILLS = 2
LONGEST_WAIT_SECONDS = 3.0
SEED = int(os.environ.get("TRIO_KUBELET_SEED", "0")) or random.SystemRandom().randrange(2**32)
VOLUME = {"name": "memory", "emptyDir": {"medium": "Memory"}}
# Prints folders, logs, cgroups and mounts of pods.
TRACES = f"""
ls -d {ROOT}/pods/* {POD_LOGS}/*
find /sys/fs/cgroup/kubepods.slice -name '*-pod*.slice'
grep -o '{ROOT}/pods/[^ ]*' /proc/mounts || true
"""


def passing(name: str) -> Json:
    """A pod that comes and goes, with something to unmount."""
    mount = {"name": "memory", "mountPath": "/memory"}
    container = {"name": "main", "image": SLEEPER, "volumeMounts": [mount]}
    return pod_manifest(name, container, volumes=[VOLUME], terminationGracePeriodSeconds=2)


def traces(node: Node) -> set[str]:
    """What there is on the machine of any pod, in the spelling of systemd."""
    return set(node.guest.run(TRACES).replace("-", "_").splitlines())


def test_an_agent_that_is_killed_at_any_moment_disturbs_no_pod_and_leaves_nothing(
    node: Node,
) -> None:
    chance = random.Random(SEED)
    node.add(pod_manifest("steady", {"name": "main", "image": SLEEPER}))
    node.wait_for_pod("steady")
    before, processes, own = node.containers(), node.processes(), traces(node)
    assert len(own) == 3, "a folder, a log, a cgroup"
    names = [f"pass-{number}" for number in range(KILLS)]
    for number, name in enumerate(names):
        node.add(passing(name))
        if number:
            node.guest.run("rm", f"{MANIFESTS}/{names[number - 1]}.json")
        time.sleep(chance.uniform(0, LONGEST_WAIT_SECONDS))
        killed = node.pid
        node.systemctl("kill", "--signal=KILL", "--kill-whom=main", UNIT)
        node.wait_for_another(killed)
    node.wait_for_pod(names[-1])
    node.remove(*names)
    node.wait_for(
        lambda: traces(node) == own,
        lambda: f"seed {SEED}: {traces(node)} instead of {own}",
    )
    assert (node.containers(), node.processes()) == (before, processes), f"seed {SEED}"
    node.remove("steady")
