"""The agent as a process of its own, on a runtime of ours: what its user starts and kills.

It gets a folder for everything: manifests, root, logs, its own log. Methods block until what
they promise is true, or raise LabError at their deadline; in a trio test run them in a thread.
Killing or stopping the agent leaves containers alone; `cleanup` takes all pods away through it,
and so does the end of a `with` block, which starts it again if it does not run.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lab import LabError, host
from lab.host import remove_cgroups
from lab.orphans import cgroup_of_ours, marked
from lab.processes import last_words, wait_until

START_DEADLINE_SECONDS = 180
STOP_DEADLINE_SECONDS = 30
REMOVAL_DEADLINE_SECONDS = 120

Json = dict[str, Any]


class LabAgent:
    """One agent, standalone, fed from the folder `manifests`.

    `endpoint` is the runtime's, empty for the hollow runtime; `settings` are further fields of
    KubeletConfiguration, `flags` further flags; `cgroup_root` is where its pods' cgroups are.
    `run_by` is a command that becomes the agent, whose own command line follows it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        endpoint: str = "",
        settings: Mapping[str, object] | None = None,
        flags: tuple[str, ...] = (),
        cgroup_root: str = "",
        run_by: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder.absolute()
        self.manifests = self.folder / "manifests"
        self.root = self.folder / "root"
        self.pod_logs = self.folder / "pod-logs"
        self.log = self.folder / "agent.log"
        self.cgroup_root = cgroup_root or f"/{cgroup_of_ours(self.folder.name)}"
        self._endpoint = endpoint
        self.settings = dict(settings or {})
        self._flags = flags
        self._run_by = run_by
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.end()
        except (LabError, OSError) as left:
            if error is None:
                raise
            error.add_note(f"And then: {left}")  # What went wrong first is what matters.

    @property
    def pid(self) -> int:
        """The process id; the agent must have been started."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def configuration(self) -> Json:
        """The configuration file's content."""
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": str(self.manifests),
            "podLogsDir": str(self.pod_logs),
            "containerRuntimeEndpoint": self._endpoint or "unix:///nowhere.sock",
            "cgroupRoot": self.cgroup_root,
            "failCgroupV1": False,
            "failSwapOn": False,
            "healthzPort": 0,
            "enableServer": False,
            "makeIPTablesUtilChains": False,  # The rules of this host are its own.
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
            **self.settings,
        }

    def start(self) -> None:
        """Start the agent and wait until it answers."""
        self.launch()
        wait_until(
            self._answers,
            deadline_seconds=START_DEADLINE_SECONDS,
            else_say=lambda: f"the agent does not answer: {self.last_words()}",
        )

    def launch(self) -> None:
        """Start the agent and do not wait."""
        self.manifests.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.json"
        config.write_text(json.dumps(self.configuration))
        command = [*self._run_by, sys.executable, "-m", "trio_kubelet", "run"]
        command += ["--config", str(config)]
        command += ["--root-dir", str(self.root), *self._flags]
        if not self._endpoint:
            command.append("--hollow")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=marked(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> int:
        """SIGTERM, and wait for the end; returns the exit code."""
        return self._end(signal.SIGTERM)

    def wait_for_end(self) -> int:
        """Wait until the agent ends by itself; returns the exit code."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(REMOVAL_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            raise LabError(f"the agent has not ended: {self.last_words()}") from None

    def kill(self) -> None:
        """SIGKILL: the agent has no chance to tidy up."""
        self._end(signal.SIGKILL)

    def write(self, name: str, manifest: Json | str) -> Path:
        """Put a manifest into the folder at once and whole, as a careful user does."""
        self.manifests.mkdir(parents=True, exist_ok=True)
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        hidden = self.manifests / f".{name}"
        hidden.write_text(text)
        return hidden.rename(self.manifests / name)

    def remove(self, name: str) -> None:
        """Take a manifest away."""
        (self.manifests / name).unlink()

    def pods(self) -> dict[str, Json]:
        """The agent's pods by name, with their statuses, which are empty before the first sync."""
        listed: list[Json] = self.ask("/pods")["items"]
        return {pod["metadata"]["name"]: {"status": {}, **pod} for pod in listed}

    def ask(self, path: str) -> Json:
        """Ask the agent's own socket for JSON. Raises OSError when nobody answers."""
        answer: Json = json.loads(self.read(path))
        return answer

    def read(self, path: str) -> bytes:
        """Ask the agent's own socket. Raises OSError when nobody answers."""
        connection = _UnixConnection(str(self.root / "agent.sock"))
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def wait_for(
        self, holds: Callable[[dict[str, Json]], bool], *, deadline_seconds: float = 120
    ) -> dict[str, Json]:
        """Wait until the pods look as wanted; returns them as they look then."""
        seen: dict[str, Json] = {}

        def look() -> bool:
            nonlocal seen
            try:
                seen = self.pods()
            except (OSError, http.client.HTTPException, ValueError):
                return False
            return holds(seen)

        wait_until(
            look,
            deadline_seconds=deadline_seconds,
            else_say=lambda: f"pods are {summary(seen)}; {self.last_words()}",
        )
        return seen

    def cleanup(self) -> None:
        """Remove all manifests and wait until nothing of any pod is left. The agent must run."""
        for manifest in self.manifests.iterdir():
            manifest.unlink()
        wait_until(
            self._has_nothing_left,
            deadline_seconds=REMOVAL_DEADLINE_SECONDS,
            else_say=lambda: f"pods are left; {self.last_words()}",
        )

    def end(self) -> None:
        """Take the pods away, end the agent, and remove what it leaves.

        An agent that does not run is started for it. LabError or OSError for what cannot be done;
        all that can be is.
        """
        with ExitStack() as stack:
            stack.callback(self.remove_cgroups)
            stack.callback(host.detach_mounts_below, self.folder)
            stack.callback(self.stop)
            if not self._runs() and not self._nothing_is_left():
                self.start()
            if self._runs():
                self.cleanup()

    def remove_cgroups(self) -> None:
        """Remove what the agent leaves as a node does: the cgroups above those of pods."""
        remove_cgroups(self.cgroup_root)

    def last_words(self) -> str:
        """The end of the agent's log."""
        return last_words(self.log.read_text(errors="replace"), 5) if self.log.exists() else ""

    def _has_nothing_left(self) -> bool:
        self._must_run()
        return self._nothing_is_left()

    def _nothing_is_left(self) -> bool:
        folders = (self.root / "pods", self.pod_logs)
        return not any(list(folder.iterdir()) for folder in folders if folder.exists())

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _answers(self) -> bool:
        try:
            self.pods()
        except (OSError, http.client.HTTPException, ValueError):
            self._must_run()
            return False
        return True

    def _must_run(self) -> None:
        """Raise LabError for an agent that does not run: waiting for it is in vain."""
        if not self._runs():
            raise LabError(f"the agent does not run: {self.last_words()}")

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            return process.wait(STOP_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            threads = host.thread_states(process.pid)
            process.kill()
            process.wait()
            raise LabError(
                f"the agent did not end: {self.last_words()}; its threads: {threads}"
            ) from None


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(5)
        self.sock.connect(self._path)


def is_running(pod: Json) -> bool:
    """Whether all containers of a pod run."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return bool(statuses) and all("running" in each["state"] for each in statuses)


def summary(pods: Mapping[str, Json]) -> str:
    """Pods in a few words, for the message of a failed wait."""
    words = []
    for name, pod in pods.items():
        status = pod.get("status", {})
        states = [next(iter(each["state"]), "") for each in status.get("containerStatuses", [])]
        words.append(f"{name} {status.get('phase', '?')} {states}")
    return "; ".join(words) or "none"


def pod_manifest(name: str, *containers: Json, **spec: object) -> Json:
    """A manifest with these containers; `spec` are further fields of the pod's spec."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": list(containers), **spec},
    }
