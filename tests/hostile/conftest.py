"""One hostile pod or client beside ten good pods, on a real agent with the hollow runtime.

Each attack is a test of its own. That of a pod puts a manifest beside those of the good pods, and
waits until the agent has said what it makes of it; that of a client opens connections to the node's
port. Then it leaves the block of `Victims.undisturbed`, which demands that meanwhile the good pods'
probes went on, no container of theirs was exchanged, no task held the event loop for 100 ms of CPU,
and the agent did not grow by more than 50 MiB.
"""

import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from attrs import frozen

from benchmarks.idle import resident_mib
from lab.agent import LabAgent, is_running, pod_manifest
from lab.ports import free_port
from lab.processes import wait_until

GOOD_PODS = 10
LONGEST_TURN_SECONDS = 0.1
MOST_MEBIBYTES = 50
RUNS = 3
"""So often each good pod's probe, which has a period of a second, must run once more."""
DEADLINE_SECONDS = 60
_RUN = re.compile(r'^prober_probe_total\{.*pod="(good-\d+)[^"]*".*result="successful".*\} (\S+)$')


HOST = "127.0.0.1"


class NodePort:
    """The node's port, and the authority whose certificates open it."""

    def __init__(self, folder: Path) -> None:
        self.number = free_port()
        self._authority = trustme.CA()
        self._file = folder / "clients.crt"
        self._authority.cert_pem.write_to_path(str(self._file))

    @property
    def settings(self) -> Mapping[str, object]:
        """Those of the agent."""
        return {
            "enableServer": True,
            "port": self.number,
            "authentication": {
                "x509": {"clientCAFile": str(self._file)},
                "webhook": {"enabled": False},
            },
            "authorization": {"mode": "AlwaysAllow"},
        }

    def context(self, name: str = "") -> ssl.SSLContext:
        """What a client needs; one without a name shows no certificate."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if name:
            self._authority.issue_cert(f"{name}.test", common_name=name).configure_cert(context)
        return context

    def connect(self, context: ssl.SSLContext, address: str = HOST) -> ssl.SSLSocket:
        """Open a connection from an address of this machine."""
        target = (HOST, self.number)
        plain = socket.create_connection(target, DEADLINE_SECONDS, source_address=(address, 0))
        return context.wrap_socket(plain)

    def status(self, context: ssl.SSLContext, path: str) -> int:
        """Ask once, on a connection of its own."""
        with self.connect(context) as connection:
            return ask(connection, path)


def ask(connection: ssl.SSLSocket, path: str) -> int:
    """Send a request; returns the status of the answer, of which the body is left unread."""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return int(connection.recv(4096).split(maxsplit=2)[1])


@frozen
class Victims:
    """Ten good pods, and the agent that they share with an attacker."""

    agent: LabAgent
    port: NodePort

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

    def log_of(self, name: str) -> str:
        """The path of a pod's log at the port; what writes it elsewhere is the runtime's shim."""
        meta = next(
            pod["metadata"] for full, pod in self.agent.pods().items() if full.startswith(name)
        )
        folder = self.agent.pod_logs / f"default_{meta['name']}_{meta['uid']}" / "c"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "0.log").write_text("2026-01-31T12:00:00.000000000Z stdout F said\n")
        return f"/containerLogs/default/{meta['name']}/c"

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
    port = NodePort(folder)
    with LabAgent(folder, endpoint="", settings=port.settings) as agent:
        found = Victims(agent, port)
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
