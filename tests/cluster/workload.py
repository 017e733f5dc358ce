"""What the stories of a cluster run on its nodes, and what is seen of it.

Each container serves a page, and notes on its machine when it begins and ends: so a story can tell
that nothing ran twice, whatever the statuses say.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from lab import LabError
from lab.cluster_api import Json
from lab.processes import wait_until
from tests.cluster.machines import DEADLINE_SECONDS, NAMES, MachineCluster
from tests.e2e.cluster import Namespace, is_ready, template, until_term

APP = "web"
PORT = 8080
RUNS = "/var/runs"
# How long these pods stay bound to a node that is away, after the 40 s in which nobody notices.
TOLERATION_SECONDS = 5
# They end at once; this is for the note of it, on a slow machine.
GRACE_SECONDS = 30
SCRIPT = f"""
note() {{ echo "$POD_UID $1 $(date +%s)" >>/runs/$NAMESPACE; }}
trap 'note end; exit 0' TERM
note begin
echo "I am $POD"
mkdir -p /www; echo "$POD" >/www/index.html; touch /www/alive; httpd -p {PORT} -h /www
sleep 1000000 & wait
"""
ENVIRONMENT = [
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, path in (
        ("POD", "metadata.name"),
        ("POD_UID", "metadata.uid"),
        ("NAMESPACE", "metadata.namespace"),
    )
]
TOLERATIONS: list[Json] = [
    {
        "key": f"node.kubernetes.io/{trouble}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": TOLERATION_SECONDS,
    }
    for trouble in ("not-ready", "unreachable")
]


class Note(NamedTuple):
    """A container of a pod began or ended, in seconds since the epoch."""

    uid: str
    what: str
    second: int


def web() -> Json:
    """A container with a page, whose probes ask for it over the network and look within."""
    return until_term("c") | {
        "command": ["sh", "-c", SCRIPT],
        "env": ENVIRONMENT,
        "readinessProbe": {
            "httpGet": {"path": "/", "port": PORT},
            "periodSeconds": 2,
            "timeoutSeconds": 20,
            "failureThreshold": 1,
        },
        "livenessProbe": {
            "exec": {"command": ["test", "-e", "/www/alive"]},
            "initialDelaySeconds": 10,
            "periodSeconds": 10,
            "timeoutSeconds": 60,
        },
        "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
    }


def create(
    namespace: Namespace,
    kind: str,
    replicas: int,
    *,
    tolerations: list[Json] | None = None,
    **fields: object,
) -> list[Json]:
    """Create a workload whose pods are spread over the nodes, and wait until they are Ready.

    Unless there are `tolerations`, pods stay for five minutes on a node that is away.
    """
    labels = {"matchLabels": {"app": APP}}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": labels,
    }
    volume = {"name": "runs", "hostPath": {"path": RUNS, "type": "DirectoryOrCreate"}}
    pod = template(
        *(APP, web()),
        volumes=[volume],
        topologySpreadConstraints=[spread],
        tolerations=tolerations or [],
        terminationGracePeriodSeconds=GRACE_SECONDS,
    )
    spec = {"selector": labels, "template": pod, "replicas": replicas, **fields}
    namespace.create(kind, APP, {"spec": spec})
    return wait_ready(namespace, replicas)


def scale(namespace: Namespace, replicas: int) -> list[Json]:
    """Change how many pods the Deployment has, and wait until they are Ready on both nodes."""
    namespace.kubectl("scale", f"deployment/{APP}", f"--replicas={replicas}")
    return wait_ready(namespace, replicas)


def wait_ready(namespace: Namespace, count: int, on: Iterable[str] = NAMES) -> list[Json]:
    """Wait until there are that many pods that stay, all Ready and on these nodes."""
    nodes = set(on)

    def holds(pods: list[Json]) -> bool:
        staying = stay(pods)
        return (
            len(staying) == count
            and all(map(is_ready, staying))
            and {pod["spec"]["nodeName"] for pod in staying} == nodes
        )

    return stay(namespace.wait_all(holds, APP, deadline_seconds=DEADLINE_SECONDS))


def wait_gone(namespace: Namespace, pods: Iterable[Json]) -> None:
    """Wait until the API has none of these pods any longer."""
    gone = uids(pods)
    namespace.wait_all(lambda pods: not gone & uids(pods), APP, deadline_seconds=DEADLINE_SECONDS)


def stay(pods: Iterable[Json]) -> list[Json]:
    """Those that nobody deletes."""
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def uids(pods: Iterable[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def on(node: str, pods: Iterable[Json]) -> list[Json]:
    return [pod for pod in pods if pod["spec"].get("nodeName") == node]


def notes(cluster: MachineCluster, namespace: Namespace) -> list[Note]:
    """When containers of the namespace began and ended, as both machines have it."""
    path = f"{RUNS}/{namespace.name}"
    lines = "".join(machine.file(path) for machine in cluster.machines.values()).splitlines()
    return [Note(uid, what, int(second)) for uid, what, second in map(str.split, lines)]


def begun(cluster: MachineCluster, namespace: Namespace) -> Counter[str]:
    """How often a container of each pod, by its UID, has begun on either machine."""
    return Counter(note.uid for note in notes(cluster, namespace) if note.what == "begin")


def drain(namespace: Namespace, node: str) -> None:
    """Drain a node; again where a machine is too slow for the time that kubectl has."""
    words = ("drain", node, "--ignore-daemonsets", "--timeout=100s")
    wait_until(
        partial(_succeeds, namespace, *words),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=partial("{} is not drained".format, node),
    )


def wait_reached(namespace: Namespace, pods: Iterable[Json]) -> None:
    """Wait until `kubectl logs` reaches each of these pods: an agent that begins knows none yet."""
    for pod in pods:
        name = pod["metadata"]["name"]
        wait_until(
            partial(_succeeds, namespace, "logs", name),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=partial("no kubectl logs of {}".format, name),
        )


def _succeeds(namespace: Namespace, *words: str) -> bool:
    try:
        namespace.kubectl(*words)
    except LabError:
        return False
    return True


def check_use(namespace: Namespace, pods: Iterable[Json]) -> None:
    """`kubectl logs` and `exec` reach each of these pods."""
    for pod in pods:
        name = pod["metadata"]["name"]
        assert f"I am {name}\n" in namespace.kubectl("logs", name)
        assert page(namespace, pod, "127.0.0.1") == f"{name}\n"


def page(namespace: Namespace, pod: Json, address: str) -> str:
    """The page that one pod has from an address."""
    name = pod["metadata"]["name"]
    return namespace.kubectl("exec", name, "--", "wget", "-qO-", f"http://{address}:{PORT}/")
