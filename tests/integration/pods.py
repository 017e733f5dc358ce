"""A node for tests of pods: the agent on a private containerd, in the words of those tests.

Manifests are written under the pod's own name; `<name>-<node>`, which the agent makes of it, is
looked up here. Everything blocks with a deadline. Pods of one test are left to the next: they are
told to go and nobody waits, because the node as a whole must be empty at its end.
"""

import json
import os
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from attrs import field, frozen

from lab import LabError
from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.images import BUSYBOX
from lab.processes import wait_until

NODE_NAME = os.uname().nodename.lower()
DEADLINE_SECONDS = 120.0
CGROUPS = Path("/sys/fs/cgroup")
SLEEP = "while :; do sleep 1; done"


@frozen(kw_only=True)
class Node:
    """An agent and its runtime. `added` are the names of the manifests in its folder."""

    agent: LabAgent
    containerd: Containerd
    added: set[str] = field(factory=set)

    def add(self, *manifests: Json) -> None:
        """Write manifests, or write them anew, side by side."""
        for manifest in manifests:
            name = manifest["metadata"]["name"]
            self.added.add(name)
            self.agent.write(f"{name}.json", manifest)

    def remove(self, *names: str) -> None:
        """Take manifests away and do not wait."""
        for name in names:
            self.added.discard(name)
            self.agent.remove(f"{name}.json")

    def remove_all(self) -> None:
        """Take all manifests away and do not wait."""
        self.remove(*self.added)

    def pod(self, name: str) -> Json:
        """A pod as the agent shows it; KeyError if it has none of that name."""
        return self.agent.pods()[full_name(name)]

    def wait(
        self,
        name: str,
        holds: Callable[[Json], object],
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> Json:
        """Wait until a pod looks as wanted; returns it as it looks then."""
        wanted = full_name(name)
        pods = self.agent.wait_for(
            lambda pods: wanted in pods and bool(holds(pods[wanted])),
            deadline_seconds=deadline_seconds,
        )
        return pods[wanted]

    def run(self, manifest: Json) -> Json:
        """Write a manifest and wait until all its containers run."""
        self.add(manifest)
        return self.wait(manifest["metadata"]["name"], is_running)

    def wait_for_incarnation(self, manifest: Json, before: Json) -> Json:
        """Write a manifest and wait until it runs in other containers than before."""
        self.add(manifest)
        return self.wait(
            manifest["metadata"]["name"],
            lambda pod: is_running(pod) and container_ids(pod) != container_ids(before),
        )

    def finish(self, manifest: Json) -> Json:
        """Write a manifest and wait until the pod is over."""
        self.add(manifest)
        return self.wait(manifest["metadata"]["name"], is_over)

    def wait_gone(self, name: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until the agent knows no pod of that name, and nothing of it is left on disk."""
        wanted = full_name(name)
        logs = f"default_{wanted}_"

        def is_gone() -> bool:
            left = any(each.name.startswith(logs) for each in self.agent.pod_logs.iterdir())
            return wanted not in self.agent.pods() and not left

        wait_until(
            is_gone,
            deadline_seconds=deadline_seconds,
            else_say=lambda: f"{wanted} is not gone; {self.agent.last_words()}",
        )

    def log_file(self, pod: Json, container: str, restart: int = 0) -> Path:
        """The log of one incarnation of a container."""
        meta = pod["metadata"]
        folder = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        return self.agent.pod_logs / folder / container / f"{restart}.log"

    def output(self, pod: Json, container: str, restart: int = 0) -> list[str]:
        """The lines that a container wrote, without the runtime's prefixes."""
        lines = self.log_file(pod, container, restart).read_text().splitlines()
        return [line.split(" ", 3)[3] for line in lines]

    def wait_for_output(self, pod: Json, container: str, line: str, restart: int = 0) -> list[str]:
        """Wait until a container has written a line; returns all that it wrote."""
        file = self.log_file(pod, container, restart)
        wait_until(
            lambda: file.exists() and line in self.output(pod, container, restart),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"{line!r} is not in {file}",
        )
        return self.output(pod, container, restart)

    def journal(self, name: str, kind: str = "event") -> list[Json]:
        """The journal's entries of one kind about a pod and its containers, oldest first."""
        entries: list[Json] = self.agent.ask(f"/debug/journal?pod=default/{full_name(name)}")[
            "entries"
        ]
        return [entry for entry in entries if entry["kind"] == kind]

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of each event about a pod and its containers, oldest first."""
        return [(entry["event"], entry["cause"]) for entry in self.journal(name)]

    def sandboxes(self, uid: str) -> list[str]:
        """The ids of what containerd has of a pod, sandbox and containers alike."""
        found = self.containerd.ctr(
            "containers", "list", "-q", f"labels.io.kubernetes.pod.uid=={uid}"
        )
        return found.split()


def full_name(name: str) -> str:
    """The name that the agent gives to a static pod."""
    return f"{name}-{NODE_NAME}"


def shell(name: str, script: str, **fields: object) -> Json:
    """A container that runs a script in busybox; `fields` are further fields of it."""
    return {"name": name, "image": BUSYBOX, "command": ["sh", "-c", script], **fields}


def until_term(name: str, script: str = "", **fields: object) -> Json:
    """A container that runs a script, then stays and obeys SIGTERM at once."""
    return shell(name, f"trap 'exit 0' TERM; {script or ':'}; sleep 1000000 & wait", **fields)


def one_shot(name: str, *containers: Json, **spec: object) -> Json:
    """A pod whose containers run once."""
    return pod_manifest(name, *containers, restartPolicy="Never", **spec)


def status_of(pod: Json, container: str) -> Json:
    """The status of a container, of whatever kind; empty if there is none yet."""
    status = pod.get("status", {})
    for kind in ("containerStatuses", "initContainerStatuses"):
        for each in status.get(kind, ()):
            if each["name"] == container:
                found: Json = each
                return found
    return {"state": {}, "restartCount": 0}


def waiting_reason(pod: Json, container: str) -> str:
    """Why a container waits; empty if it does not."""
    reason: str = status_of(pod, container)["state"].get("waiting", {}).get("reason", "")
    return reason


def phase(pod: Json) -> str:
    """The phase of a pod."""
    value: str = pod.get("status", {}).get("phase", "")
    return value


def is_over(pod: Json) -> bool:
    """Whether the pod has come to its end by itself."""
    return phase(pod) in ("Succeeded", "Failed")


def conditions(pod: Json) -> dict[str, str]:
    """Type → status of the pod's conditions."""
    return {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}


def container_ids(pod: Json) -> dict[str, str]:
    """Name → id of the pod's containers, init containers included."""
    status = pod["status"]
    every = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return {each["name"]: each.get("containerID", "").partition("://")[2] for each in every}


def seconds_between(earlier: str, later: str) -> float:
    """Seconds from one of the API's times to another."""
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def fetch(url: str, *, deadline_seconds: float = 20) -> bytes:
    """Get a page, past any proxy of the environment; waits for the server to be there."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    body = b""
    problem = ""

    def answers() -> bool:
        nonlocal body, problem
        try:
            with opener.open(url, timeout=5) as answer:
                body = answer.read()
        except OSError as error:
            problem = str(error)
            return False
        return True

    wait_until(answers, deadline_seconds=deadline_seconds, else_say=lambda: f"{url}: {problem}")
    return body


def host_folder(path: Path, name: str = "shared") -> Mapping[str, Any]:
    """The fields `volumes` of a pod that shares a folder with the host."""
    return {"volumes": [{"name": name, "hostPath": {"path": str(path)}}]}


def mount(path: str, name: str = "shared", **fields: object) -> Json:
    """A volume mount."""
    return {"name": name, "mountPath": path, **fields}


def mounts_below(folder: Path) -> Iterable[str]:
    """The mount points below a folder."""
    prefix = f"{folder}/"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [point for line in lines if (point := line.split()[4]).startswith(prefix)]


def containers_in(containerd: Containerd) -> dict[str, Json]:
    """Id → record of all that containerd has in the CRI's namespace."""
    found = {}
    for each in containerd.ctr("containers", "list", "-q").split():
        with suppress(LabError):  # It has gone since it was listed.
            found[each] = json.loads(containerd.ctr("containers", "info", each))
    return found
