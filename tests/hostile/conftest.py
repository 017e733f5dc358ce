"""One hostile pod beside ten good ones, on a real agent with the hollow runtime.

Each attack is a test of its own: it puts a manifest beside those of the good pods, waits until the
agent has said what it makes of it, and leaves the block of `Victims.undisturbed`, which then
demands that meanwhile the good pods' probes went on, no container of theirs was exchanged, no task
held the event loop for 100 ms of CPU, and the agent did not grow by more than 50 MiB.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import frozen

from benchmarks.idle import resident_mib
from lab.agent import LabAgent, is_running, pod_manifest
from lab.processes import wait_until

GOOD_PODS = 10
LONGEST_TURN_SECONDS = 0.1
MOST_MEBIBYTES = 50
RUNS = 3
"""So often each good pod's probe, which has a period of a second, must run once more."""
DEADLINE_SECONDS = 60
_RUN = re.compile(r'^prober_probe_total\{.*pod="(good-\d+)[^"]*".*result="successful".*\} (\S+)$')


@frozen
class Victims:
    """Ten good pods, and the agent that they share with an attacker."""

    agent: LabAgent

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
        long = [each for each in self._turns()[seen:] if each["cpu_seconds"] > LONGEST_TURN_SECONDS]
        assert long == []
        assert resident_mib(self.agent.pid) - memory < MOST_MEBIBYTES

    def waiting_reason(self, name: str) -> str:
        """Why the first container of a pod waits; empty if it does not."""
        for pod_name, pod in self.agent.pods().items():
            if pod_name.startswith(name):
                for status in pod["status"].get("containerStatuses", ()):
                    return str(status["state"].get("waiting", {}).get("reason", ""))
        return ""

    def wait_waiting(self, name: str, reason: str) -> None:
        """Wait until a pod waits for this reason."""
        wait_until(
            lambda: self.waiting_reason(name) == reason,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"{name} waits for {self.waiting_reason(name)!r}",
        )

    def wait_journal(self, words: str) -> None:
        """Wait until the agent has noted something with these words."""
        wait_until(
            lambda: any(
                words in each["cause"] for each in self.agent.ask("/debug/journal")["entries"]
            ),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"nothing in the journal says {words!r}",
        )

    def _containers(self) -> Mapping[str, str]:
        return {
            name: pod["status"]["containerStatuses"][0]["containerID"]
            for name, pod in self.agent.pods().items()
            if name.startswith("good-")
        }

    def _runs(self) -> Mapping[str, float]:
        lines = self.agent.read("/metrics/probes").decode().splitlines()
        found = (match for line in lines if (match := _RUN.match(line)))
        return {match[1]: float(match[2]) for match in found}

    def _turns(self) -> list[Mapping[str, float]]:
        turns: list[Mapping[str, float]] = self.agent.ask("/debug/turns")["turns"]
        return turns


@pytest.fixture(scope="session")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """The good pods run, and each has been asked by its probe."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    with LabAgent(folder, endpoint="") as agent:
        found = Victims(agent)
        for number in range(GOOD_PODS):
            probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
            container = {"name": "c", "image": "good", "readinessProbe": probe}
            agent.write(f"good-{number}.json", pod_manifest(f"good-{number}", container))
        agent.wait_for(lambda pods: len(pods) == GOOD_PODS and all(map(is_running, pods.values())))
        wait_until(
            lambda: len(found._runs()) == GOOD_PODS,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"probes do not run: {found._runs()}",
        )
        yield found
