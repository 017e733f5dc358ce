"""Ten good pods beside one hostile pod or client, and what must not happen to them.

What is done to them happens in the block of `Victims.undisturbed`, which demands that meanwhile the
good pods' probes went on, no container of theirs was exchanged, no task held the event loop for
100 ms of CPU, and the agent did not grow by more than 50 MiB.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from benchmarks.idle import resident_mib
from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.processes import wait_until
from tests.turns import is_too_long

GOOD_PODS = 10
MOST_MEBIBYTES = 50
RUNS = 3
"""So often each good pod's probe, which has a period of a second, must run once more."""
DEADLINE_SECONDS = 60
REJECTIONS_DEADLINE_SECONDS = 240
"""For thousands of them, at three milliseconds of a processor each."""
_RUN = re.compile(r'^prober_probe_total\{.*pod="(good-\d+)[^"]*".*result="successful".*\} (\S+)$')


@frozen
class Victims:
    """Ten good pods, and the agent that they share with an attacker."""

    agent: LabAgent

    @classmethod
    def of(cls, agent: LabAgent, container: Json) -> "Victims":
        """Start ten pods of a container; they run, and each has been asked by its probe."""
        found = cls(agent)
        probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
        for number in range(GOOD_PODS):
            manifest = pod_manifest(f"good-{number}", {**container, "readinessProbe": probe})
            agent.write(f"good-{number}.json", manifest)
        agent.wait_for(lambda pods: sum(map(is_running, _good(pods).values())) == GOOD_PODS)
        wait_until(
            lambda: len(found._runs()) == GOOD_PODS,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"probes do not run: {found._runs()}",
        )
        return found

    def leave(self) -> None:
        """Take the good pods away, and wait until nothing of them is left on the node.

        Others of the same manifests would show the containers of these until then.
        """
        uids = [pod["metadata"]["uid"] for pod in _good(self.agent.pods()).values()]
        folders = [Path(self.agent.root) / "pods" / uid for uid in uids]
        for number in range(GOOD_PODS):
            self.agent.remove(f"good-{number}.json")
        wait_until(
            lambda: not any(folder.exists() for folder in folders),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"good pods are left: {[each for each in folders if each.exists()]}",
        )

    @contextmanager
    def beside(self, manifest: Json | str) -> Iterator[None]:
        """A manifest that is there until the end of the block, which disturbs none of them."""
        with self.undisturbed():
            self.agent.write("attack.yaml", manifest)
            yield
        self.agent.remove("attack.yaml")

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """What happens in the block disturbs none of them."""
        containers, memory = self._containers(), resident_mib(self.agent.pid)
        seen = len(self._turns())
        yield
        runs = self._runs()
        wait_until(
            lambda: all(count >= runs[name] + RUNS for name, count in self._runs().items()),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"probes do not go on: {runs}, {self._runs()}",
        )
        assert self._containers() == containers
        long = [each for each in self._turns()[seen:] if is_too_long(each["cpu_seconds"])]
        assert not long, f"turns of the event loop: {long}"
        grown = resident_mib(self.agent.pid) - memory
        assert grown < MOST_MEBIBYTES, f"the agent grew by {grown} MiB"

    def wait_pod(
        self,
        name: str,
        is_so: Callable[[Json], bool],
        deadline_seconds: float = 2 * DEADLINE_SECONDS,
    ) -> None:
        """Wait until something is so of the pod whose name begins like this."""
        self.agent.wait_for(
            lambda pods: any(is_so(pod) for full, pod in pods.items() if full.startswith(name)),
            deadline_seconds=deadline_seconds,
        )

    def wait_waiting(self, name: str, reason: str) -> None:
        """Wait until the first container of a pod waits for this reason."""
        self.wait_pod(name, lambda pod: _waits_for(pod) == reason)

    def wait_journal(self, words: str, name: str = "") -> None:
        """Wait until the agent has noted these words of the attack, or of the pod of this name."""
        wait_until(
            lambda: any(
                words in each["cause"] and _is_of_attack(each["key"]) and name in each["key"]
                for each in self.agent.ask("/debug/journal")["entries"]
            ),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"nothing in the journal says {words!r}",
        )

    def wait_relist(self, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until the agent has seen all that the runtime has, twice: once may be from before.

        Where it cannot, the node is not ready.
        """
        begun = self._relists()
        wait_until(
            lambda: self._relists() > begun + 1,
            deadline_seconds=deadline_seconds,
            else_say=lambda: "the runtime cannot list what it has",
        )

    def wait_rejected(self, count: int) -> None:
        """Wait until so many pods were rejected."""
        begun = self._sum_of("kubelet_admission_rejections_total{")
        wait_until(
            lambda: self._sum_of("kubelet_admission_rejections_total{") >= begun + count,
            deadline_seconds=REJECTIONS_DEADLINE_SECONDS,
            else_say=lambda: f"not {count} pods were rejected",
        )

    def wait_probed(self, name: str, count: int, deadline_seconds: float) -> None:
        """Wait until so many runs of probes of the pod whose name begins like this have ended."""
        run = re.compile(rf'^prober_probe_total\{{.*pod="{name}.*\}} (\S+)$', re.MULTILINE)

        def runs() -> float:
            metrics = self.agent.read("/metrics/probes").decode()
            return sum(float(each) for each in run.findall(metrics))

        wait_until(
            lambda: runs() >= count,
            deadline_seconds=deadline_seconds,
            else_say=lambda: f"{runs()} of {count} probes of {name} have run",
        )

    def _relists(self) -> float:
        return self._sum_of("kubelet_pleg_relist_duration_seconds_count ")

    def _sum_of(self, beginning: str) -> float:
        """The sum of the metrics whose lines begin like this."""
        lines = self.agent.read("/metrics").decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(beginning))

    def _containers(self) -> Mapping[str, str]:
        return {
            name: pod["status"]["containerStatuses"][0]["containerID"]
            for name, pod in _good(self.agent.pods()).items()
        }

    def _runs(self) -> Mapping[str, float]:
        lines = self.agent.read("/metrics/probes").decode().splitlines()
        found = (match for line in lines if (match := _RUN.match(line)))
        return {match[1]: float(match[2]) for match in found}

    def _turns(self) -> list[Mapping[str, float]]:
        turns: list[Mapping[str, float]] = self.agent.ask("/debug/turns")["turns"]
        return turns


def _good(pods: Mapping[str, Json]) -> Mapping[str, Json]:
    return {name: pod for name, pod in pods.items() if name.startswith("good-")}


def _is_of_attack(key: str) -> bool:
    """Whether an entry of the journal is about the hostile pod, or about its manifest."""
    return "hostile" in key or "attack" in key


def _waits_for(pod: Json) -> str:
    statuses = pod["status"].get("containerStatuses", ())
    return next((str(each["state"].get("waiting", {}).get("reason", "")) for each in statuses), "")
