"""Statistics of a node with real containers, beside the kernel's own files."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.agent import Json, pod_manifest
from lab.processes import wait_until
from tests.integration.pods import DEADLINE_SECONDS, Node, container_ids, shell, until_term
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupTree
from trio_kubelet.stats.kernel_text import key_values

FACTS = Path(__file__).parents[1] / "facts"
SHAPE = dict(
    csv.reader((FACTS / "stats-summary-shape.tsv").read_text().splitlines(), delimiter="\t")
)
WITHIN = 0.05
MI = 1 << 20

NOT_ON_EVERY_MACHINE = (".psi.", "systemContainers[].swap", "swapAvailableBytes")
"""PSI is of cgroup v2; on v1 swap has a limit where one was set."""

BEYOND_THE_TABLE = {
    ".pods[].network",
    ".pods[].process_stats",
}
"""What the reference kubelet of the table had no occasion to show."""


@pytest.fixture(scope="module")
def busy(node: Node) -> Json:
    """A pod that holds 40 MiB, has written files, and uses the CPU."""
    script = (
        "trap exit TERM; dd if=/dev/zero of=/dev/shm/held bs=1M count=40;"
        " dd if=/dev/zero of=/layer bs=1M count=8;"
        " dd if=/dev/zero of=/data/file bs=1M count=5; echo said; while :; do :; done"
    )
    container = shell(
        "main",
        script,
        resources={"limits": {"memory": "128Mi", "cpu": "200m"}},
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
    )
    manifest = pod_manifest("busy", container, volumes=[{"name": "data", "emptyDir": {}}])
    pod = node.run(manifest)
    node.wait_for_output(pod, "main", "said")
    return pod


def ask(node: Node, query: str = "") -> Json:
    """The answer; a machine that is slow and busy may take its time."""
    answers: list[Json] = []

    def has_answered() -> bool:
        try:
            answers.append(node.agent.ask(f"/stats/summary{query}"))
        except TimeoutError:
            return False
        return True

    wait_until(
        has_answered,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"no statistics; {node.agent.last_words()}",
    )
    return answers[0]


def stats_of(summary: Json, pod: Json) -> Json:
    found: Json
    [found] = [each for each in summary["pods"] if each["podRef"]["uid"] == pod["metadata"]["uid"]]
    return found


def cgroup_of(container_id: str) -> dict[str, Path]:
    """The folder of a container's cgroup for each controller."""
    tree = CgroupTree.find(mount_points())
    return {
        controller: next(root.glob(f"**/*{container_id}*"))
        for controller, root in tree.hierarchies.items()
        if controller in ("cpu", "cpuacct", "memory")
    }


def kernels_word(container_id: str) -> tuple[int, int]:
    """CPU time in nanoseconds and the working set in bytes, read from the files themselves."""
    folders = cgroup_of(container_id)
    stat = key_values((folders["memory"] / "memory.stat").read_bytes())
    if "cpuacct" in folders:
        used = int((folders["memory"] / "memory.usage_in_bytes").read_text())
        cpu = int((folders["cpuacct"] / "cpuacct.usage").read_text())
        return cpu, used - stat[b"total_inactive_file"]
    used = int((folders["memory"] / "memory.current").read_text())
    cpu = key_values((folders["cpu"] / "cpu.stat").read_bytes())[b"usage_usec"] * 1000
    return cpu, used - stat[b"inactive_file"]


def test_figures_are_those_of_the_cgroup_files_beside_them(node: Node, busy: Json) -> None:
    container_id = container_ids(busy)["main"]

    def is_near(
        told: float, cpu_and_memory: tuple[tuple[int, int], tuple[int, int]], at: int
    ) -> bool:
        before, after = (pair[at] for pair in cpu_and_memory)
        return before * (1 - WITHIN) <= told <= after * (1 + WITHIN)

    def are_near() -> bool:
        before = kernels_word(container_id)
        [told] = stats_of(ask(node, "?only_cpu_and_memory=true"), busy)["containers"]
        both = (before, kernels_word(container_id))
        cpu, memory = told["cpu"]["usageCoreNanoSeconds"], told["memory"]["workingSetBytes"]
        return is_near(cpu, both, 0) and is_near(memory, both, 1) and memory > 40 * MI

    # An answer may be ten seconds old, in which a busy container has gone on.
    wait_until(are_near, deadline_seconds=DEADLINE_SECONDS, else_say=lambda: str(ask(node)))


def test_the_rate_is_what_the_limit_allows(node: Node, busy: Json) -> None:
    def is_at_the_limit() -> bool:
        [told] = stats_of(ask(node), busy)["containers"]
        rate: int = told["cpu"]["usageNanoCores"]
        return 0.5 * 200e6 < rate < 1.2 * 200e6

    wait_until(is_at_the_limit, deadline_seconds=DEADLINE_SECONDS, else_say=lambda: str(ask(node)))


def test_disks_have_what_was_written_to_them(node: Node, busy: Json) -> None:
    def found() -> bool:
        told = stats_of(ask(node), busy)
        [container] = told["containers"]
        if "rootfs" not in container or "volume" not in told:
            return False
        volumes = {each["name"]: each for each in told["volume"]}
        return bool(
            container["rootfs"]["usedBytes"] >= 8 * MI
            and volumes["data"]["usedBytes"] >= 5 * MI
            and container["logs"]["usedBytes"] > 0
            and told["ephemeral-storage"]["usedBytes"] >= 13 * MI
        )

    wait_until(found, deadline_seconds=DEADLINE_SECONDS, else_say=lambda: str(ask(node)))


def test_what_an_init_container_has_left_in_its_layer_is_its_pods_use_of_the_disk(
    node: Node,
) -> None:
    manifest = pod_manifest(
        "left",
        until_term("main"),
        initContainers=[shell("init", "dd if=/dev/zero of=/layer bs=1M count=30")],
    )
    pod = node.run(manifest)

    def found() -> bool:
        told = stats_of(ask(node), pod)
        return bool(told.get("ephemeral-storage", {}).get("usedBytes", 0) >= 30 * MI)

    wait_until(found, deadline_seconds=DEADLINE_SECONDS, else_say=lambda: str(ask(node)))


def paths(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each leaf of an answer: its path as in the table, and its type."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{path}[]")
    else:
        yield path, type(value).__name__


def test_the_answer_has_the_shape_of_the_table(node: Node, busy: Json) -> None:
    def problems() -> list[str]:
        told = dict(paths(ask(node)))
        strange = [
            path
            for path in told.keys() - SHAPE.keys()
            if not path.startswith(tuple(BEYOND_THE_TABLE))
        ]
        missing = [
            path
            for path in SHAPE.keys() - told.keys()
            if not any(part in path for part in NOT_ON_EVERY_MACHINE)
            and not path.startswith(".node.systemContainers[].swap")
        ]
        wrong = [
            path
            for path, kind in told.items()
            if SHAPE.get(path, kind) not in (kind, "int" if kind == "float" else kind)
        ]
        return sorted(strange + missing + wrong)

    wait_until(lambda: not problems(), deadline_seconds=30, else_say=lambda: str(problems()))


def test_only_cpu_and_memory_has_nothing_else(node: Node, busy: Json) -> None:
    told = ask(node, "?only_cpu_and_memory=true")
    names = {
        path.split(".")[2].removesuffix("[]") for path, _ in paths(told) if path[1:5] == "node"
    }
    assert names == {"nodeName", "startTime", "systemContainers", "cpu", "memory", "swap"}
    pod = stats_of(told, busy)
    assert pod.keys() == {"podRef", "startTime", "containers", "cpu", "memory"}
    assert all(each.keys() == {"name", "startTime", "cpu", "memory"} for each in pod["containers"])
