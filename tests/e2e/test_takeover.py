"""A node changes hands between the Go kubelet and the agent, in both directions.

Root folder, manifests, credentials and containerd stay as they are; one is stopped, the other is
started. Nobody who uses the pods notices: the same processes go on, and every version of every
pod in the API is one that a user of an undisturbed node could have seen.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from attrs import frozen

from lab.agent import LabAgent, is_running
from lab.cluster_api import Json
from lab.go_kubelet import GoKubelet, remove_log_links
from lab.host import cgroups_named, mounts_below
from lab.images import SLEEPER
from lab.processes import wait_until
from lab.registry import NAME as REGISTRY
from lab.registry import Registry
from tests.e2e.cluster import (
    Namespace,
    conditions,
    container,
    container_ids,
    is_over,
    is_ready,
    is_usable,
    shell,
    template,
    until_term,
    waiting,
)
from tests.e2e.local import AGENT, LocalCluster
from trio_kubelet.config.records import ImagePulledRecord
from trio_kubelet.runtime.images.pull_record_files import file_name, parsed, printed

MIRRORS = "/api/v1/namespaces/default/pods"
STATIC = ("static-one", "static-two")
REPLICAS = 3
PULL_FAILURES = ("ErrImagePull", "ImagePullBackOff")
SYNC_DEADLINE_SECONDS = 90
CONFIGURED = ("config", "login", "memory", "disk", "host")


@pytest.fixture
def node(local_cluster: LocalCluster, go_kubelet: type[GoKubelet]) -> Iterator[LocalCluster]:
    """The node in the hands of the Go kubelet; in the end the agent has it, whoever had it."""
    try:
        local_cluster.hand_over(go_kubelet)
        local_cluster.wait_node_ready()
        yield local_cluster
    finally:
        if type(local_cluster.agent) is not AGENT:
            local_cluster.hand_over(AGENT)
            local_cluster.wait_node_ready()
        remove_log_links(local_cluster.containerd.folder)


@pytest.fixture
def static_pods(node: LocalCluster) -> Iterator[None]:
    """Static pods that are taken away in the end, and waited for."""
    for name in STATIC:
        node.add_static_pod(static_manifest(name))
    yield
    for name in STATIC:
        (node.agent.manifests / f"{name}.json").unlink(missing_ok=True)
    for name in STATIC:
        node.api.wait_gone(mirror_path(node, name))


def static_manifest(name: str, **labels: str) -> Json:
    """A static pod of two containers that keeps something on the node."""
    mounts = [{"name": "disk", "mountPath": "/disk"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "static", **labels}},
        "spec": {
            "containers": [until_term("c", volumeMounts=mounts), until_term("second")],
            "volumes": [{"name": "disk", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 1,
        },
    }


def mirror_path(node: LocalCluster, name: str) -> str:
    return f"{MIRRORS}/{name}-{node.node}"


def configured(folder: Path) -> Json:
    """Fields of a pod's spec: an init container, and a container with every kind of volume."""
    mounts: list[Json] = [{"name": name, "mountPath": f"/{name}"} for name in CONFIGURED]
    mounts.append({"name": "disk", "mountPath": "/part", "subPath": "part"})
    more: Json = {
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "resources": {"requests": {"cpu": "10m"}},
    }
    return {
        "initContainers": [shell("first", "echo begun >/disk/begun", volumeMounts=mounts[3:4])],
        "containers": [until_term("c", volumeMounts=mounts, **more)],
        "volumes": [
            {"name": "config", "configMap": {"name": "settings"}},
            {"name": "login", "secret": {"secretName": "login"}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "disk", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}},
        ],
    }


def populate(node: LocalCluster, namespace: Namespace) -> None:
    """Pods of every kind, as many as ten with the static ones; returns when they are as wanted."""
    namespace.create("ConfigMap", "settings", {"data": {"colour": "red"}})
    namespace.create("Secret", "login", {"stringData": {"password": "open sesame"}})
    web = template("web", **configured(node.containerd.folder / "of-the-host"))
    own = template("own", until_term("c"), hostNetwork=True)
    for kind, name, pod, more in (
        ("Deployment", "web", web, {"replicas": REPLICAS}),
        ("DaemonSet", "own", own, {}),
    ):
        spec = {"selector": {"matchLabels": {"app": name}}, "template": pod, **more}
        namespace.create(kind, name, {"spec": spec})
    once = {"containers": [shell("c", "exit 0")], "restartPolicy": "Never"}
    namespace.create("Job", "done", {"spec": {"template": {"spec": once}}})
    volume = {"volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}
    namespace.add(
        "restarted",
        until_term("c", "[ -e /disk/been ] || { touch /disk/been; exit 3; }", **volume),
        volumes=[{"name": "disk", "emptyDir": {}}],
    )
    limits = {"cpu": "50m", "memory": "32Mi"}
    policy = {"resourceName": "memory", "restartPolicy": "RestartContainer"}
    namespace.add(
        "guaranteed", until_term("c", resources={"limits": limits}, resizePolicy=[policy])
    )
    namespace.add("failed", shell("c", "exit 4"), restartPolicy="Never")
    namespace.wait_all(lambda pods: len(pods) == REPLICAS + 5 and sum(map(is_over, pods)) == 2)
    # It may look ready for a moment before its first end.
    namespace.wait("restarted", lambda pod: container(pod)["restartCount"] == 1)
    namespace.wait_all(lambda pods: all(is_ready(pod) or has_settled(pod) for pod in pods))
    for name in STATIC:
        node.api.wait_for(mirror_path(node, name), is_ready)


def has_settled(pod: Json) -> bool:
    """Whether the last has been said of a pod that is over: its sandbox has stopped, too."""
    return is_over(pod) and conditions(pod)["PodReadyToStartContainers"]["status"] == "False"


@frozen(kw_only=True)
class Seen:
    """Some pods at one moment: as the API has them, and the processes of their containers.

    `version` is the API's: what comes later is newer.
    """

    version: str
    pods: Mapping[str, Json]
    processes: Mapping[str, str]

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(pod["metadata"]["uid"] for pod in self.pods.values())


def look(node: LocalCluster, *namespaces: str) -> Seen:
    """All pods of these namespaces; static pods have their mirrors in `default`."""
    listed = node.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node.node}")
    pods = [pod for pod in listed["items"] if pod["metadata"]["namespace"] in namespaces]
    tasks = (line.split() for line in node.containerd.ctr("tasks", "list").splitlines()[1:])
    processes = {words[0]: words[1] for words in tasks if words[2] == "RUNNING"}
    theirs = {each for pod in pods for each in node.sandboxes(uid_on_node(pod))}
    return Seen(
        version=listed["metadata"]["resourceVersion"],
        pods={pod["metadata"]["name"]: pod for pod in pods},
        processes={each: pid for each, pid in processes.items() if each in theirs},
    )


def uid_on_node(pod: Json) -> str:
    """The UID by which a pod is known on its node: a mirror has the static pod's as its hash."""
    meta = pod["metadata"]
    uid: str = meta.get("annotations", {}).get("kubernetes.io/config.mirror", meta["uid"])
    return uid


def lasting(pod: Json) -> Json:
    """What of a pod in the API stays the same as long as nobody touches it."""
    status = pod["status"]
    return {
        "uid": pod["metadata"]["uid"],
        "phase": status["phase"],
        "ips": status.get("podIPs"),
        "started": status.get("startTime"),
        "quality": status["qosClass"],
        "conditions": {
            name: (each["status"], each.get("reason"), each.get("lastTransitionTime"))
            for name, each in conditions(pod).items()
        },
        "containers": [
            {key: each.get(key) for key in CONTAINER_FACTS}
            for kind in ("initContainerStatuses", "containerStatuses")
            for each in status.get(kind) or ()
        ],
    }


def lasting_for_go(pod: Json) -> Json:
    """The same, as the Go kubelet tells it when it starts.

    It forgets the addresses of ended pods.
    """
    facts = lasting(pod)
    return {**facts, "ips": None} if is_over(pod) else facts


CONTAINER_FACTS = (
    "name",
    "containerID",
    "restartCount",
    "state",
    "lastState",
    "ready",
    "started",
    "image",
    "imageID",
)


def hand_over(node: LocalCluster, kind: type[LabAgent]) -> None:
    """Let another one have the node, and wait until it has looked at every pod of it."""
    node.hand_over(kind)
    node.wait_node_ready()
    node.agent.wait_for(
        lambda pods: bool(pods) and all(map(is_running_or_over, pods.values())),
        deadline_seconds=SYNC_DEADLINE_SECONDS,
    )


def is_running_or_over(pod: Json) -> bool:
    """Whether the new one has seen how the pod is."""
    return is_running(pod) or is_over(pod)


def versions_since(
    node: LocalCluster, path: str, version: str, uids: frozenset[str] = frozenset()
) -> list[Json]:
    """What a watcher was told since: of the objects with these UIDs, or of all."""
    asked = {"resourceVersion": version, "timeoutSeconds": "1"}
    with node.api.watch(path, deadline_seconds=30, **asked) as events:
        return [event for event in events if not uids or event["object"]["metadata"]["uid"] in uids]


def assert_undisturbed(
    node: LocalCluster, before: Seen, after: Seen, told: Callable[[Json], Json] = lasting
) -> None:
    """What ran runs, in the same processes; the API has said nothing else at any moment."""
    facts = {name: told(pod) for name, pod in before.pods.items()}
    assert changes(facts, {name: told(pod) for name, pod in after.pods.items()}) == []
    assert after.processes == before.processes
    for event in versions_since(node, "/api/v1/nodes", before.version):
        assert is_usable(event["object"]), conditions(event["object"])["Ready"]
    for event in versions_since(node, "/api/v1/pods", before.version, before.uids):
        name = event["object"]["metadata"]["name"]
        assert event["type"] == "MODIFIED", name
        assert changes(facts[name], told(event["object"]), name) == []


def changes(before: object, after: object, path: str = "") -> list[str]:
    """What differs between two documents, in words that pytest does not cut short."""
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            change
            for key in {**before, **after}
            for change in changes(before.get(key), after.get(key), f"{path}.{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            change
            for position, pair in enumerate(zip(before, after, strict=True))
            for change in changes(*pair, f"{path}[{position}]")
        ]
    return [f"{path}: {before} → {after}"]


def wait_nothing_left(node: LocalCluster, uid: str) -> None:
    """Wait until nothing on the node has this UID any more."""
    wait_until(
        lambda: not leftovers(node, uid),
        deadline_seconds=30,
        else_say=lambda: f"{uid} has left {leftovers(node, uid)}",
    )


def cgroups(node: LocalCluster, uid: str) -> list[str]:
    """The cgroups of a pod, in all hierarchies."""
    kubepods = cgroups_named(f"{node.agent.cgroup_root}/kubepods")
    return [str(path) for each in kubepods for path in each.glob(f"**/pod{uid}")]


def leftovers(node: LocalCluster, uid: str) -> list[str]:
    """What there is of a pod: containers, mounts, folders, logs, cgroups."""
    folder = node.agent.root / "pods" / uid
    return [
        *node.sandboxes(uid),
        *mounts_below(folder),
        *(str(path) for path in (folder,) if path.exists()),
        *(str(path) for path in node.agent.pod_logs.glob(f"*_{uid}")),
        *cgroups(node, uid),
    ]


def test_nothing_restarts_when_the_agent_takes_a_node_over(
    node: LocalCluster, namespace: Namespace, static_pods: None
) -> None:
    populate(node, namespace)
    before = look(node, namespace.name, "default")
    assert len(before.pods) == 10
    hand_over(node, LabAgent)
    run_and_delete_another(namespace)
    assert_undisturbed(node, before, look(node, namespace.name, "default"))
    # The Go kubelet finds static pods under the UIDs that it gave them.
    hand_over(node, GoKubelet)
    run_and_delete_another(namespace)
    assert look(node, namespace.name, "default").processes == before.processes


def test_pods_of_the_go_kubelet_follow_their_config_maps_under_the_agent(
    node: LocalCluster, namespace: Namespace
) -> None:
    namespace.create("ConfigMap", "settings", {"data": {"colour": "red"}})
    wait = "until grep -q blue /config/colour; do sleep 0.1; done"
    script = f"{{ ({wait}; echo seen >/dev/termination-log; kill 1) & }}"
    mount = {"name": "config", "mountPath": "/config"}
    namespace.run(
        "follows",
        until_term("c", script, volumeMounts=[mount]),
        restartPolicy="Never",
        volumes=[{"name": "config", "configMap": {"name": "settings"}}],
    )
    hand_over(node, LabAgent)
    assert is_ready(namespace.pod("follows"))
    namespace.api.patch(namespace.path("ConfigMap", "settings"), {"data": {"colour": "blue"}})
    pod = namespace.wait("follows", is_over, deadline_seconds=10)
    assert container(pod)["state"]["terminated"]["message"].strip() == "seen"


def test_pods_of_the_go_kubelet_are_rolled_and_leave_nothing_under_the_agent(
    node: LocalCluster, namespace: Namespace, static_pods: None
) -> None:
    populate(node, namespace)
    before = look(node, namespace.name, "default")
    hand_over(node, LabAgent)
    roll(namespace)
    for name in ("restarted", "guaranteed", "failed"):
        namespace.kubectl("delete", "pod", name)
    namespace.kubectl("delete", "job", "done")
    changed, removed = STATIC
    node.add_static_pod(static_manifest(changed, release="2"))
    node.remove_static_pod(removed)
    node.api.wait_for(
        mirror_path(node, changed),
        lambda mirror: is_ready(mirror) and "release" in mirror["metadata"]["labels"],
    )
    node.api.wait_gone(mirror_path(node, removed))
    for pod in before.pods.values():
        wait_nothing_left(node, uid_on_node(pod))


def test_what_was_under_way_goes_on_under_the_agent(
    node: LocalCluster, namespace: Namespace
) -> None:
    """A pod that ends ends, one that crashes counts on, one that has no image yet waits for it."""
    stubborn = shell("c", "trap : TERM; while true; do sleep 1; done")
    namespace.run("ends", stubborn, terminationGracePeriodSeconds=10)
    namespace.add("crashes", shell("c", "sleep 1; exit 3"))
    namespace.add("waits", {"name": "c", "image": "127.0.0.1:1/nowhere:1"})
    namespace.wait("waits", lambda pod: waiting(pod).get("reason") in PULL_FAILURES)
    before = namespace.wait("crashes", lambda pod: container(pod)["restartCount"] == 1)
    namespace.api.delete(namespace.path("Pod", "ends"))
    node.hand_over(LabAgent)
    node.wait_node_ready()
    namespace.wait_gone("ends")
    assert waiting(namespace.pod("waits"))["reason"] in PULL_FAILURES
    namespace.wait("crashes", lambda pod: container(pod)["restartCount"] == 2)
    version, uid = (before["metadata"][key] for key in ("resourceVersion", "uid"))
    events = versions_since(node, "/api/v1/pods", version, frozenset({uid}))
    counts = [container(event["object"])["restartCount"] for event in events]
    assert counts == sorted(counts)


def test_pods_of_the_agent_do_not_restart_when_a_node_goes_back(
    node: LocalCluster, namespace: Namespace, static_pods: None
) -> None:
    """Static pods do, the Go kubelet knows them by other UIDs; the agent then takes those over."""
    hand_over(node, LabAgent)
    populate(node, namespace)
    before = look(node, namespace.name)
    static = look(node, "default")
    hand_over(node, GoKubelet)
    run_and_delete_another(namespace)
    assert_undisturbed(node, before, look(node, namespace.name), told=lasting_for_go)
    for name, old in static.pods.items():
        is_new = partial(is_ready_with_others, container_ids([old]))
        node.api.wait_for(f"{MIRRORS}/{name}", is_new, deadline_seconds=SYNC_DEADLINE_SECONDS)
    roll(namespace)
    before = look(node, namespace.name, "default")
    hand_over(node, LabAgent)
    run_and_delete_another(namespace)
    assert_undisturbed(node, before, look(node, namespace.name, "default"))


def test_who_may_use_an_image_is_known_to_whoever_has_the_node(
    node: LocalCluster, namespace: Namespace, closed_registry: Registry
) -> None:
    """Each pulls an image with one secret; the other one knows another secret of the same login."""
    gates = {"KubeletEnsureSecretPulledImages": True}  # Off by default before 1.35.
    for secret in ("key", "copy"):
        namespace.create_pull_secret(secret)
    for puller, other in ((GoKubelet, LabAgent), (LabAgent, GoKubelet)):
        who = puller.__name__.lower()
        node.hand_over(puller, featureGates=gates)
        node.wait_node_ready()
        image = node.containerd.images[SLEEPER].marked(f"pulled by {who}")
        name = closed_registry.push(image, f"lab/{who}:1")
        container = {"name": "c", "image": name, "imagePullPolicy": "IfNotPresent"}
        namespace.run(f"{who}-owner", container, imagePullSecrets=[{"name": "key"}])
        node.hand_over(other, featureGates=gates)
        node.wait_node_ready()
        namespace.run(f"{who}-friend", container, imagePullSecrets=[{"name": "copy"}])
        words = f'Container image "{name}" already present on machine'
        namespace.wait_event(f"{who}-friend", "Pulled", words)
        namespace.add(f"{who}-stranger", container)
        namespace.wait(f"{who}-stranger", lambda pod: waiting(pod).get("reason") in PULL_FAILURES)
    assert_records_are_of_one_form(node)


def assert_records_are_of_one_form(node: LocalCluster) -> None:
    """Whatever either has written, the agent would have written to the byte."""
    secrets: dict[str, list[str]] = {}
    for path in (node.agent.root / "image_manager/pulled").iterdir():
        data = path.read_bytes()
        record, is_current = parsed(ImagePulledRecord, data)
        assert path.name == file_name(record.image_ref)
        assert not is_current or printed(record).encode() == data
        for name, known in record.credential_mapping.items():
            secrets[name] = [secret.name for secret in known.kubernetes_secrets]
    for puller in (GoKubelet, LabAgent):
        assert secrets[f"{REGISTRY}/lab/{puller.__name__.lower()}"] == ["copy", "key"]


def run_and_delete_another(namespace: Namespace) -> None:
    """Show that the node works; whoever has it has looked at its other pods before."""
    namespace.run("another", until_term("c"))
    namespace.kubectl("delete", "pod", "another")


def roll(namespace: Namespace) -> None:
    """Exchange all pods of the Deployment and the DaemonSet."""
    for workload in ("deployment/web", "daemonset/own"):
        namespace.kubectl("rollout", "restart", workload)
        namespace.kubectl("rollout", "status", workload, "--timeout=60s")
    namespace.wait_all(lambda pods: not any(map(is_leaving, pods)))


def is_leaving(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_ready_with_others(containers: Mapping[str, str], pod: Json) -> bool:
    """Whether a pod is Ready, with none of these containers."""
    return is_ready(pod) and not set(containers.values()) & set(container_ids([pod]).values())
