"""A guest with the agent as its service, installed from the wheel as docs/joining.md says."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from lab.agent import Json, is_running, summary
from lab.control_plane import ControlPlane
from lab.guest.guest import Guest
from lab.guest.recipe import REPOSITORY
from lab.locks import locked
from lab.processes import run, wait_until
from trio_kubelet.resources import CgroupDriver

UNIT = "trio-kubelet.service"
PACKAGING = REPOSITORY / "packaging"
CONFIGURATION = "/etc/kubernetes/trio-kubelet.yaml"
RUNTIME_CONFIGURATION = "/etc/containerd/config.toml"
MANIFESTS = "/etc/kubernetes/manifests"
ROOT = "/var/lib/kubelet"
POD_LOGS = "/var/log/pods"
DROP_IN = f"/run/systemd/system/{UNIT}.d/50-test.conf"
DEADLINE_SECONDS = 240.0
# Which containers there are, and how often each was started.
Containers = Mapping[str, tuple[str, int]]


def build_wheel(folder: Path) -> Path:
    """The agent as it is released; built once for all who give the same folder."""
    with locked(folder / "lock"):
        if not list(folder.glob("*.whl")):
            pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
            run([*pip, "--wheel-dir", folder, REPOSITORY], deadline_seconds=300)
    (built,) = folder.glob("*.whl")
    return built


class Node:
    """The service on its machine. A test leaves it running, and without pods of its own."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def install(self, wheel: Path) -> None:
        """Put the program, a configuration and the unit in place, and start it."""
        self.guest.write(f"/root/{wheel.name}", wheel.read_bytes())
        self.guest.run(
            f"""
            /opt/trio-kubelet/bin/pip install --quiet --no-index /root/{wheel.name}
            ln -sf /opt/trio-kubelet/bin/trio-kubelet /usr/bin/trio-kubelet
            mkdir -p {MANIFESTS}
            """
        )
        self.guest.write(CONFIGURATION, (PACKAGING / "config.yaml").read_bytes())
        self.guest.write(f"/etc/systemd/system/{UNIT}", (PACKAGING / "systemd" / UNIT).read_bytes())
        self.systemctl("daemon-reload")
        self.systemctl("enable", "--now", UNIT)

    def join(self, control_plane: ControlPlane) -> None:
        """Make it a node of a cluster with a bootstrap token, as docs/joining.md says."""
        bootstrap = control_plane.bootstrap_kubeconfig().read_bytes()
        self.guest.write("/etc/kubernetes/bootstrap-kubelet.conf", bootstrap, mode=0o600)
        drop_in = f"{UNIT}.d/10-cluster.conf"
        self.guest.write(
            f"/etc/systemd/system/{drop_in}", (PACKAGING / "systemd" / drop_in).read_bytes()
        )
        self.systemctl("daemon-reload")
        self.systemctl("restart", UNIT)

    def systemctl(self, *words: str) -> str:
        """Call systemctl; LabError with what it says if it fails."""
        return self.guest.run("systemctl", *words)

    def show(self, name: str) -> str:
        """A property of the service, such as `MainPID`."""
        return self.systemctl("show", UNIT, "--value", "--property", name).strip()

    @property
    def pid(self) -> int:
        """The agent's process; 0 if none runs."""
        return int(self.show("MainPID"))

    def wait_for_another(self, pid: int) -> None:
        """Wait until systemd has started another agent, and it is ready."""
        asks = ("show", UNIT, "--property=MainPID", "--property=ActiveState")

        def is_another() -> bool:
            says = dict(line.split("=") for line in self.systemctl(*asks).split())
            return int(says["MainPID"]) not in (0, pid) and says["ActiveState"] == "active"

        self.wait_for(is_another, lambda: f"{pid} is still or nobody is the agent: {self.status()}")

    def last_words(self) -> str:
        """The end of what the machine said."""
        return self.guest.last_words()

    def status(self) -> str:
        """What a person asks first."""
        return self.guest.call("systemctl", "status", "--no-pager", UNIT).stdout.decode()

    @contextmanager
    def drop_in(self, settings: str, *, restart_after: bool = True) -> Iterator[None]:
        """Further settings of the unit's [Service] for as long as the block; restarts it twice.

        But not after the block if they are nothing to an agent that runs.
        """
        self.guest.write(DROP_IN, f"[Service]\n{settings}\n")
        try:
            self.systemctl("daemon-reload")
            self.systemctl("restart", UNIT)
            yield
        finally:
            self.guest.run("rm", DROP_IN)
            self.systemctl("daemon-reload")
            if restart_after:
                self.systemctl("restart", UNIT)

    @contextmanager
    def configured(self, **fields: object) -> Iterator[None]:
        """Further fields of the configuration for as long as the block; restarts it twice."""
        before = self.guest.read(CONFIGURATION)
        self.guest.write(CONFIGURATION, json.dumps(yaml.safe_load(before) | fields))
        try:
            self.systemctl("restart", UNIT)
            yield
        finally:
            self.guest.write(CONFIGURATION, before)
            self.systemctl("restart", UNIT)

    @contextmanager
    def driver(self, driver: CgroupDriver, **fields: object) -> Iterator[None]:
        """That cgroup driver for agent and runtime for as long as the block; no pod may run.

        `fields` are as for `configured`.
        """
        before = self.guest.read(RUNTIME_CONFIGURATION)
        is_systemd = str(driver is CgroupDriver.SYSTEMD).lower().encode()
        wanted = re.sub(rb"SystemdCgroup = \w+", b"SystemdCgroup = " + is_systemd, before)
        try:
            self._configure_runtime(before, wanted)
            with self.configured(cgroupDriver=str(driver), **fields):
                yield
        finally:
            self._configure_runtime(wanted, before)

    def _configure_runtime(self, before: bytes, wanted: bytes) -> None:
        if wanted != before:
            self.guest.write(RUNTIME_CONFIGURATION, wanted)
            self.systemctl("restart", "containerd")

    def log(self, since: str = "") -> str:
        """What the service wrote in this boot, and what systemd said of it."""
        return self.guest.journal("-b", "-u", UNIT, *(("--since", since) if since else ()))

    def now(self) -> str:
        """The moment, as `log` takes it."""
        return self.guest.run("date +%F\\ %T.%N").strip()

    def add(self, manifest: Json) -> None:
        """Write a manifest."""
        self.guest.write(f"{MANIFESTS}/{manifest['metadata']['name']}.json", json.dumps(manifest))

    def remove(self, *names: str) -> None:
        """Take manifests away, and wait until nothing of their pods is left."""
        self.guest.run("rm", "-f", *(f"{MANIFESTS}/{name}.json" for name in names))
        gone = {self.full_name(name) for name in names}

        def are_gone() -> bool:
            pods = self._answer()
            if pods is None or gone & pods.keys():
                return False
            # What is kept of a pod goes last, when it has no container or volume any more.
            kept = self.guest.run("ls", POD_LOGS).split()
            return not any(folder.split("_")[1] in gone for folder in kept)

        self.wait_for(are_gone, lambda: f"pods are {summary(self.pods())}")

    def full_name(self, name: str) -> str:
        """What the agent calls the pod of a manifest."""
        return f"{name}-{self.guest.name}"

    def pods(self) -> dict[str, Json]:
        """The agent's pods by name, with their statuses; none while it does not answer."""
        return self._answer() or {}

    def _answer(self) -> dict[str, Json] | None:
        """The agent's pods by name; None if it does not answer."""
        asks = ("nc", "-U", "-N", "-w", "10", f"{ROOT}/agent.sock")
        answer = self.guest.call(*asks, stdin="GET /pods HTTP/1.0\r\n\r\n")
        _, _, body = answer.stdout.partition(b"\r\n\r\n")
        try:
            items = json.loads(body)["items"]
        except ValueError:
            return None
        return {pod["metadata"]["name"]: pod for pod in items}

    def wait_for_pod(
        self,
        name: str,
        holds: Callable[[Json], object] = is_running,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> Json:
        """Wait until a pod looks as wanted, by default runs; returns it as it looks then."""
        seen: dict[str, Json] = {}

        def looks_so() -> bool:
            nonlocal seen
            seen = self.pods()
            pod = seen.get(self.full_name(name))
            return pod is not None and bool(holds(pod))

        self.wait_for(
            looks_so, lambda: f"pods are {summary(seen)}", deadline_seconds=deadline_seconds
        )
        return seen[self.full_name(name)]

    def containers(self) -> Containers:
        """The containers of all pods, as their statuses tell."""
        return {
            f"{name}/{status['name']}": (status.get("containerID", ""), status["restartCount"])
            for name, pod in self.pods().items()
            for status in pod.get("status", {}).get("containerStatuses", ())
        }

    def wait_for(
        self,
        holds: Callable[[], bool],
        else_say: Callable[[], str],
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """Wait until it holds; LabError, with the end of the service's log, if it does not."""

        def say() -> str:
            return f"{else_say()}\n{self.log()[-5000:]}"

        wait_until(holds, deadline_seconds=deadline_seconds, else_say=say)

    def process_file(self, name: str) -> str:
        """A file of the agent's process below /proc."""
        return self.guest.read(f"/proc/{self.pid}/{name}").decode()

    def ctr(self, *words: str) -> str:
        """Ask containerd of the CRI's containers."""
        return self.guest.run("ctr", "--namespace", "k8s.io", *words)

    def processes(self) -> dict[str, int]:
        """The first process of each container that runs, sandboxes' pauses too, by its id."""
        rows = (line.split() for line in self.ctr("tasks", "ls").splitlines()[1:])
        return {container: int(pid) for container, pid, state in rows if state == "RUNNING"}
