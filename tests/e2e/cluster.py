"""A cluster in the words of the end-to-end tests, whoever provides it.

Tests use kubectl and the API as a user would. What a user does at a machine (put a static pod
there, kill the agent) or cannot do (take the API server away) is what a provider implements.
Everything blocks with a deadline and raises LabError past it.
"""

import base64
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from lab.cluster_api import ClusterApi, Json, RefusedError
from lab.images import BUSYBOX
from lab.processes import wait_until
from lab.registry import NAME as REGISTRY
from lab.registry import PASSWORD, USER

DEADLINE_SECONDS = 60.0
CONTROLLERS_DEADLINE_SECONDS = 120.0
# Where the API has what tests make, by kind.
COLLECTIONS: Mapping[str, str] = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
}

_numbers = itertools.count(1)


class AdministeredCluster(ABC):
    """A cluster as its administrator sees it, whatever nodes it has."""

    @property
    @abstractmethod
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes that pods are scheduled to."""

    @property
    @abstractmethod
    def api(self) -> ClusterApi:
        """The API as an administrator sees it."""

    @abstractmethod
    def kubectl(self, *words: str, stdin: str | Mapping[str, Any] = "") -> str:
        """Run kubectl as administrator and return what it says; LabError if it fails."""

    @abstractmethod
    def kubectl_command(self, *words: str) -> list[str]:
        """The command line of kubectl as administrator, for who runs it himself."""

    @abstractmethod
    def last_words(self) -> str:
        """The ends of all logs."""

    def make_namespace(self, prefix: str) -> "Namespace":
        """Make a namespace with a name of its own, ready for pods."""
        name = f"{prefix}-{next(_numbers)}"
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        # After an outage of the API server the controllers begin anew, or come back late.
        self.api.wait_for(
            f"/api/v1/namespaces/{name}/serviceaccounts/default",
            bool,
            deadline_seconds=CONTROLLERS_DEADLINE_SECONDS,
        )
        return Namespace(cluster=self, name=name)

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace and do not wait; it may be on its way already, or gone."""
        try:
            self.api.delete(f"/api/v1/namespaces/{name}")
        except RefusedError as error:
            if error.reason not in ("NotFound", "Conflict"):
                raise


class Cluster(AdministeredCluster):
    """A cluster with one node that is the agent: `node` is its name."""

    node: str

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node,)

    @abstractmethod
    def start_agent(self) -> None:
        """Start the agent and do not wait."""

    @abstractmethod
    def stop_agent(self) -> None:
        """End the agent in an orderly way."""

    @abstractmethod
    def kill_agent(self) -> None:
        """SIGKILL for the agent."""

    @abstractmethod
    def stop_api_server(self) -> None:
        """Take the API server away."""

    @abstractmethod
    def start_api_server(self) -> None:
        """Bring the API server back; it is ready when this returns."""

    @abstractmethod
    def add_static_pod(self, manifest: Json) -> None:
        """Put a manifest into the node's folder, named after its pod; or replace it."""

    @abstractmethod
    def remove_static_pod(self, name: str) -> None:
        """Take that manifest away."""

    def wait_node_ready(self, *, deadline_seconds: float = DEADLINE_SECONDS) -> Json:
        """Wait until the node is Ready and nothing keeps pods away from it."""
        return self.api.wait_for(
            f"/api/v1/nodes/{self.node}", is_usable, deadline_seconds=deadline_seconds
        )


@frozen(kw_only=True)
class Namespace:
    """One namespace of a cluster."""

    cluster: AdministeredCluster
    name: str

    @property
    def node(self) -> str:
        """The name of the cluster's first node, which in most clusters is the only one."""
        return self.cluster.nodes[0]

    @property
    def api(self) -> ClusterApi:
        """The API as an administrator sees it."""
        return self.cluster.api

    def path(self, kind: str, name: str = "") -> str:
        """Where the API has the objects of a kind, or one of them."""
        return COLLECTIONS[kind].format(self.name) + (f"/{name}" if name else "")

    def kubectl(self, *words: str, stdin: str | Mapping[str, Any] = "") -> str:
        """Run kubectl in this namespace."""
        return self.cluster.kubectl("--namespace", self.name, *words, stdin=stdin)

    def kubectl_command(self, *words: str) -> list[str]:
        """The command line of kubectl in this namespace."""
        return self.cluster.kubectl_command("--namespace", self.name, *words)

    def create(self, kind: str, name: str, body: Mapping[str, Any]) -> Json:
        """Create an object; `body` is what it has beside its name (its spec, its data)."""
        metadata = {"name": name, **body.get("metadata", {})}
        return self.api.create(self.path(kind), {**body, "metadata": metadata})

    def create_pull_secret(self, name: str) -> str:
        """Make a pull secret for the lab's registry; returns the login in it, as it is encoded."""
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        content = json.dumps({"auths": {REGISTRY: {"auth": login}}})
        kind = "kubernetes.io/dockerconfigjson"
        self.create("Secret", name, {"type": kind, "stringData": {".dockerconfigjson": content}})
        return login

    def pod(self, name: str) -> Json:
        """A pod as the API has it; RefusedError if it has none of that name."""
        return self.api.get(self.path("Pod", name))

    def pods(self, app: str = "") -> list[Json]:
        """All pods, or those with the label `app`."""
        asked = {"labelSelector": f"app={app}"} if app else {}
        found: list[Json] = self.api.get(self.path("Pod"), **asked)["items"]
        return found

    def run(self, name: str, *containers: Json, **spec: object) -> Json:
        """Create a pod and wait until it is Ready."""
        self.add(name, *containers, **spec)
        return self.wait(name, is_ready)

    def add(self, name: str, *containers: Json, **spec: object) -> Json:
        """Create a pod for the scheduler; a grace period of a second, unless `spec` has another."""
        body = {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec}
        return self.create("Pod", name, {"spec": body})

    def wait(
        self,
        name: str,
        holds: Callable[[Json], object],
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> Json:
        """Wait until a pod looks as wanted; returns it as it looks then."""
        path = self.path("Pod", name)
        return self.api.wait_for(path, holds, deadline_seconds=deadline_seconds)

    def wait_all(
        self,
        holds: Callable[[list[Json]], object],
        app: str = "",
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> list[Json]:
        """Wait until the pods together look as wanted; returns them as they look then."""
        seen: list[Json] = []

        def look() -> bool:
            nonlocal seen
            seen = self.pods(app)
            return bool(holds(seen))

        wait_until(
            look, deadline_seconds=deadline_seconds, else_say=lambda: f"pods are {summary(seen)}"
        )
        return seen

    def wait_gone(self, name: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until the API has no pod of that name."""
        self.api.wait_gone(self.path("Pod", name), deadline_seconds=deadline_seconds)

    def wait_event(self, name: str, reason: str, words: str = "") -> Json:
        """Wait for an event about an object with this reason and with these words in it."""
        found: list[Json] = []

        def look() -> bool:
            found[:] = [
                each
                for each in self.events(name)
                if each["reason"] == reason and words in each["message"]
            ]
            return bool(found)

        wait_until(
            look,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"no {reason} with {words!r} of {name} in {self._said(name)}",
        )
        return found[0]

    def events(self, name: str) -> list[Json]:
        """The events about an object, as the API lists them."""
        path = f"/api/v1/namespaces/{self.name}/events"
        found: list[Json] = self.api.get(path, fieldSelector=f"involvedObject.name={name}")["items"]
        return found

    def versions(self, pod: Json) -> list[Json]:
        """The pod in all its versions since this one, the last one as it was when it went."""
        meta = pod["metadata"]
        asked = {"resourceVersion": meta["resourceVersion"], "timeoutSeconds": "1"}
        asked["fieldSelector"] = f"metadata.name={meta['name']}"
        with self.api.watch(self.path("Pod"), deadline_seconds=30, **asked) as events:
            seen = [event["object"] for event in events]
        return [each for each in seen if each["metadata"]["uid"] == meta["uid"]]

    def delete(self) -> None:
        """Delete the namespace and do not wait."""
        self.cluster.delete_namespace(self.name)

    def _said(self, name: str) -> list[str]:
        return [f"{each['reason']}: {each['message']}" for each in self.events(name)]


def shell(name: str, script: str, **fields: object) -> Json:
    """A container that runs a script in busybox; `fields` are further fields of it."""
    return {"name": name, "image": BUSYBOX, "command": ["sh", "-c", script], **fields}


def until_term(name: str, script: str = ":", **fields: object) -> Json:
    """A container that runs a script, then stays and obeys SIGTERM at once."""
    return shell(name, f"trap 'exit 0' TERM; {script}; sleep 1000000 & wait", **fields)


def template(app: str, *containers: Json, **spec: object) -> Json:
    """A pod template with the label `app`."""
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec},
    }


def workload(app: str, *containers: Json, **fields: object) -> Json:
    """What Deployments, StatefulSets and DaemonSets have in common; `fields` are of their spec."""
    selector = {"matchLabels": {"app": app}}
    return {"spec": {"selector": selector, "template": template(app, *containers), **fields}}


def conditions(thing: Json) -> dict[str, Json]:
    """The conditions of a pod or node by type."""
    found: list[Json] = thing.get("status", {}).get("conditions") or []
    return {each["type"]: each for each in found}


def is_ready(thing: Json) -> bool:
    """Whether a pod or a node is Ready."""
    return bool(conditions(thing).get("Ready", {}).get("status") == "True")


def is_usable(node: Json) -> bool:
    """Whether a node is Ready and has no taint."""
    return is_ready(node) and not node["spec"].get("taints")


def phase(pod: Json) -> str:
    """The phase of a pod."""
    value: str = pod.get("status", {}).get("phase", "")
    return value


def is_over(pod: Json) -> bool:
    """Whether a pod has come to its end by itself."""
    return phase(pod) in ("Succeeded", "Failed")


def container(pod: Json, name: str = "c") -> Json:
    """The status of a container of whatever kind; without a state if there is none yet."""
    status = pod.get("status", {})
    for kind in ("containerStatuses", "initContainerStatuses"):
        for each in status.get(kind) or ():
            if each["name"] == name:
                found: Json = each
                return found
    return {"name": name, "state": {}, "restartCount": 0}


def waiting(pod: Json, name: str = "c") -> Json:
    """Why a container waits (`reason`, `message`); empty if it does not."""
    found: Json = container(pod, name)["state"].get("waiting", {})
    return found


def container_ids(pods: list[Json]) -> dict[str, str]:
    """Pod and container → id, of all containers that were made."""
    return {
        f"{pod['metadata']['name']}/{each['name']}": each.get("containerID", "")
        for pod in pods
        for each in pod.get("status", {}).get("containerStatuses") or ()
    }


def summary(pods: list[Json]) -> str:
    """Pods in a few words, for the message of a failed wait."""
    return "; ".join(
        f"{pod['metadata']['name']} {phase(pod)} {json.dumps(container(pod)['state'])[:80]}"
        for pod in pods
    )
