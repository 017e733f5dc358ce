"""kill -9 of the agent, again and again, while twenty pods with a hundred volumes come and go.

Each pod has a folder of the host, a local volume, one of a CSI driver that it shares with another
pod, and two of its own, which for half of the pods the driver makes, too: thirty volumes of the
driver in all. A pod looks at all of them when it starts and when it is ended, and says so in the
host's folder. The driver's log says how often each volume was mounted and taken away. The API
server is the one in memory, on a socket.

TRIO_KUBELET_VOLUME_KILLS is how often the agent is killed.
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from lab.agent import LabAgent, summary
from lab.cluster_api import ClusterApi, Json
from lab.containerd import Containerd
from lab.csi_driver import NAME, CallLog
from lab.host import mounts_below
from lab.images import BUSYBOX
from lab.processes import wait_until
from tests.apiserver.served import HOST, ServedApi
from tests.containerds import VERSIONS
from trio_kubelet.volumes.csi_records import VolumeKey, stage_place

NODE = "volumes-node"
PATH_OF_PODS = "/api/v1/namespaces/default/pods"
PODS = 20
PODS_OF_A_CLAIM = 2
OWN_VOLUMES_OF_DRIVER = 10
MOST_PODS = 30
"""There may be so many while some are ended."""
DELETED_EARLY = 0.1
"""The part of pods that are deleted whether they run or not, each time that they are looked at."""
MOST_CALLS = 20
"""The log of the driver has fewer lines than that from one kill to the next."""
SETTLE_SECONDS = 600
KILLS = int(os.environ.get("TRIO_KUBELET_VOLUME_KILLS", "6"))
SEED = int(os.environ.get("TRIO_KUBELET_SEED", "0")) or random.SystemRandom().randrange(2**32)
VOLUMES = ("host", "disk", "claim", "memory", "own")
DRIVERS_VOLUMES = "plugins/kubernetes.io/csi"
SCRIPT = """
intact() {
  test "$(cat /host/data /disk/data /claim/data /memory/data /own/data)" = "host
disk
claim
$NAME_OF_POD
$1"
}
trap '[ "$begun" ] && intact "$own" && echo "ended $NAME_OF_POD" >>/host/ends; exit 0' TERM
echo "$NAME_OF_POD" >/memory/data
[ -e /own/data ] || echo "$NAME_OF_POD" >/own/data
own=$(cat /own/data)
intact "$own" || exit 9
begun=1
echo "begun $NAME_OF_POD" >>/host/ends
sleep 1000000 & wait
"""


class Storage:
    """The data that pods use, in folders of the host and of the driver.

    Slots number the twenty places in which pods follow one another; each has data of its own, but
    of the claims, which two share.
    """

    def __init__(self, api: ClusterApi, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._create("configmaps", "settings", {"data": {"data": "of the config map\n"}})
        for slot in range(PODS):
            for kind in ("host", "disk"):
                self._write(self.folder(kind, slot), kind)
            self._bind(disk(slot), {"local": {"path": str(self.folder("disk", slot))}})
        for handle in sorted({claim(slot) for slot in range(PODS)}):
            self._write(self._data(handle), "claim")
            self._bind(handle, {"csi": {"driver": NAME, "volumeHandle": handle}})

    @property
    def driver(self) -> Path:
        """The folder of the driver."""
        return self._folder / "driver"

    def folder(self, kind: str, slot: int) -> Path:
        """The folder of the host behind a volume."""
        return self._folder / kind / str(slot)

    def volumes(self, slot: int) -> list[Json]:
        """The volumes of a pod."""
        own: Json = {"configMap": {"name": "settings"}}
        if slot < OWN_VOLUMES_OF_DRIVER:
            own = {"csi": {"driver": NAME, "volumeAttributes": {"size": "1"}}}
        return [
            {"name": "host", "hostPath": {"path": str(self.folder("host", slot))}},
            {"name": "disk", "persistentVolumeClaim": {"claimName": disk(slot)}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": claim(slot)}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "own", **own},
        ]

    def missing(self) -> list[Path]:
        """The folders whose data is not as it was."""
        files = {self.folder(kind, slot): kind for slot in range(PODS) for kind in ("host", "disk")}
        files |= {self._data(claim(slot)): "claim" for slot in range(PODS)}
        return [
            folder for folder, text in files.items() if (folder / "data").read_text() != f"{text}\n"
        ]

    def ends(self) -> Counter[str]:
        """The lines that pods wrote when they began and when they ended."""
        files = [self.folder("host", slot) / "ends" for slot in range(PODS)]
        return Counter(
            line for file in files if file.exists() for line in file.read_text().splitlines()
        )

    def _data(self, handle: str) -> Path:
        return self.driver / "volumes" / handle

    def _write(self, folder: Path, text: str) -> None:
        folder.mkdir(parents=True)
        (folder / "data").write_text(f"{text}\n")

    def _bind(self, name: str, source: Json) -> None:
        """Make a volume, and a claim of the same name that is bound to it."""
        common = {"accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem"}
        claim = {"spec": {**common, "volumeName": name}, "status": {"phase": "Bound"}}
        bound = self._create("persistentvolumeclaims", name, claim)
        reference = {"namespace": "default", "name": name, "uid": bound["metadata"]["uid"]}
        volume = {"metadata": {"name": name}, "spec": {**common, **source, "claimRef": reference}}
        self._api.create("/api/v1/persistentvolumes", volume)

    def _create(self, resource: str, name: str, body: Json) -> Json:
        path = f"/api/v1/namespaces/default/{resource}"
        return self._api.create(path, {"metadata": {"name": name}, **body})


def claim(slot: int) -> str:
    """The name of a slot's volume of the driver, which is its handle, too."""
    return f"claim-{slot // PODS_OF_A_CLAIM}"


def disk(slot: int) -> str:
    """The name of a slot's local volume."""
    return f"disk-{slot}"


class Churn:
    """Adds and deletes pods in a thread of its own until it is stopped."""

    def __init__(self, api: ClusterApi, storage: Storage, chance: random.Random) -> None:
        self._api = api
        self._storage = storage
        self._chance = chance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._numbers = 0
        self.present: dict[int, str] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def add(self, slot: int) -> None:
        """Have a pod in a slot."""
        self._numbers += 1
        name = f"pod-{slot}-{self._numbers}"
        field = {"fieldRef": {"fieldPath": "metadata.name"}}
        mounts = [{"name": each, "mountPath": f"/{each}"} for each in VOLUMES]
        mounts.append({"name": "claim", "mountPath": "/part", "subPath": "part"})
        container = {"name": "c", "image": BUSYBOX, "command": ["sh", "-c", SCRIPT]}
        spec = {
            "containers": [
                {
                    **container,
                    "env": [{"name": "NAME_OF_POD", "valueFrom": field}],
                    "volumeMounts": mounts,
                }
            ],
            "volumes": self._storage.volumes(slot),
            "nodeName": NODE,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 60,
            # The first process of a namespace would not get a signal before it has its trap.
            "shareProcessNamespace": True,
        }
        self._api.create(PATH_OF_PODS, {"metadata": {"name": name}, "spec": spec})
        self.present[slot] = name

    def remove(self, slot: int) -> None:
        """Delete the pod in a slot, if there is one, and do not wait."""
        name = self.present.pop(slot, "")
        if name:
            self._api.delete(f"{PATH_OF_PODS}/{name}")

    def fill(self) -> None:
        """Have a pod in each slot."""
        for slot in range(PODS):
            if slot not in self.present:
                self.add(slot)

    def _run(self) -> None:
        """Go on until it is over; most pods may run before they are deleted."""
        while not self._over.wait(self._chance.uniform(0.05, 0.4)):
            pods = self._api.get(PATH_OF_PODS)["items"]
            ready = {each["metadata"]["name"] for each in pods if is_ready(each)}
            slot = self._chance.randrange(PODS)
            if slot not in self.present and len(pods) < MOST_PODS:
                self.add(slot)
            elif self.present.get(slot) in ready or self._chance.random() < DELETED_EARLY:
                self.remove(slot)


@pytest.fixture
def served() -> Iterator[ServedApi]:
    with ServedApi() as served:
        yield served


@pytest.fixture
def api(served: ServedApi) -> Iterator[ClusterApi]:
    """The API server, with the driver's object."""
    api = ClusterApi(f"http://{HOST}:{served.port}", b"")
    spec = {"attachRequired": False, "volumeLifecycleModes": ["Persistent", "Ephemeral"]}
    api.create("/apis/storage.k8s.io/v1/csidrivers", {"metadata": {"name": NAME}, "spec": spec})
    yield api
    api.close()


@pytest.fixture
def storage(api: ClusterApi, tmp_path: Path) -> Iterator[Storage]:
    """The data of all volumes, and the driver as a process of its own."""
    storage = Storage(api, tmp_path)
    registry = tmp_path / "node/root/plugins_registry"
    registry.mkdir(parents=True)
    command = [sys.executable, "-m", "lab.csi_driver", "--folder", str(storage.driver)]
    command += ["--registry-socket", str(registry / "d.sock"), "--mounts", "--stages"]
    with subprocess.Popen(command) as process:
        yield storage
        process.kill()


@pytest.fixture
def agent(
    served: ServedApi, api: ClusterApi, storage: Storage, containerd: Containerd, tmp_path: Path
) -> Iterator[LabAgent]:
    """The agent as a node; all pods of the API go with it."""
    flags = ("--kubeconfig", str(served.kubeconfig(tmp_path)), "--hostname-override", NODE)
    with LabAgent(tmp_path / "node", endpoint=containerd.endpoint, flags=flags) as agent:
        yield agent
        for pod in api.get(PATH_OF_PODS)["items"]:
            api.delete(f"{PATH_OF_PODS}/{pod['metadata']['name']}", grace_seconds=0)


def wait_until_all_run(api: ClusterApi, present: dict[int, str]) -> dict[int, Json]:
    """Wait until these pods are Ready, and there are no others; returns them by their slots."""
    by_name: dict[str, Json] = {}

    def all_run() -> bool:
        by_name.clear()
        by_name.update({each["metadata"]["name"]: each for each in api.get(PATH_OF_PODS)["items"]})
        return by_name.keys() == set(present.values()) and all(map(is_ready, by_name.values()))

    wait_until(
        all_run,
        deadline_seconds=SETTLE_SECONDS,
        else_say=lambda: f"seed {SEED}: wanted {sorted(present.values())}: {summary(by_name)}",
    )
    return {slot: by_name[name] for slot, name in present.items()}


def is_ready(pod: Json) -> bool:
    """True if a pod is Ready."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def mounts(agent: LabAgent) -> Counter[Path]:
    """The mounts of volumes, of pods and of the node."""
    root = agent.root
    places = (root / "pods", root / DRIVERS_VOLUMES)
    return Counter(Path(each) for place in places for each in mounts_below(place))


def expected_mounts(agent: LabAgent, pods: dict[int, Json]) -> Counter[Path]:
    """The mounts that there are when nothing but these pods is there."""
    found: Counter[Path] = Counter()
    for slot, pod in pods.items():
        volumes = agent.root / "pods" / pod["metadata"]["uid"] / "volumes"
        found[volumes / "kubernetes.io~local-volume" / disk(slot)] += 1
        found[volumes / "kubernetes.io~csi" / claim(slot) / "mount"] += 1
        found[volumes / "kubernetes.io~empty-dir" / "memory"] += 1
        found[volumes.parent / "volume-subpaths/claim/c" / str(len(VOLUMES))] += 1
        if slot < OWN_VOLUMES_OF_DRIVER:
            found[volumes / "kubernetes.io~csi" / "own" / "mount"] += 1
    for handle in {claim(slot) for slot in pods}:
        key = VolumeKey(NAME, handle)
        found[stage_place(agent.root, key).path] += 1
    return found


def wait_for_calls(storage: Storage, number: int) -> None:
    """Wait until the log of the driver has so many lines more."""
    log = CallLog(storage.driver / "calls.jsonl")
    before = len(log.read())
    wait_until(
        lambda: len(log.read()) >= before + number,
        deadline_seconds=SETTLE_SECONDS,
        else_say=lambda: f"seed {SEED}: the driver is not asked for anything",
    )


def driver_faults(folder: Path) -> list[str]:
    """Why what the driver was asked for is not right; empty if each mount was undone once.

    The driver may be asked again for what an agent that was killed has asked for. What counts is
    when something was mounted, and when it was taken away.
    """
    mounted: dict[str, Json] = {}
    faults = []
    for line in CallLog(folder / "calls.jsonl").read():
        target, method = line.get("target", ""), line["method"]
        if line.get("step") != "done":
            continue
        if method == "NodePublishVolume" and line["staged"] and line["staged"] not in mounted:
            faults.append(f"published while it is not staged: {target}")
        if method in ("NodeStageVolume", "NodePublishVolume"):
            mounted.setdefault(target, line)
        undoes = method in ("NodeUnstageVolume", "NodeUnpublishVolume")
        if undoes and line["was_mounted"] != (mounted.pop(target, None) is not None):
            faults.append(f"{method}: mounted is {line['was_mounted']}: {target}")
        if method == "NodeUnstageVolume":
            users = [each for each, of in mounted.items() if of.get("staged") == target]
            faults += [f"unstaged while it is published: {each}" for each in users]
    return faults + [f"not undone: {target}" for target in mounted]


@pytest.mark.parametrize(
    "containerd", [v for v in VERSIONS if v == "2.1"], indirect=True, ids="containerd-{}".format
)
def test_no_volume_is_lost_or_left_however_often_the_agent_is_killed(
    agent: LabAgent, api: ClusterApi, storage: Storage
) -> None:
    chance = random.Random(SEED)
    churn = Churn(api, storage, chance)
    churn.fill()
    wait_until_all_run(api, churn.present)
    with churn:
        for _ in range(KILLS):
            wait_for_calls(storage, chance.randrange(MOST_CALLS))
            time.sleep(chance.uniform(0, 0.5))
            agent.kill()
            agent.start()
    churn.fill()
    pods = wait_until_all_run(api, churn.present)
    wait_until(
        lambda: mounts(agent) == expected_mounts(agent, pods),
        deadline_seconds=SETTLE_SECONDS,
        else_say=lambda: f"seed {SEED}: {mounts_amiss(agent, pods)}",
    )
    for slot in list(churn.present):
        churn.remove(slot)
    wait_until_all_run(api, {})
    wait_until(
        lambda: not leftovers(agent),
        deadline_seconds=SETTLE_SECONDS,
        else_say=lambda: f"seed {SEED}: left are {leftovers(agent)}",
    )
    assert storage.missing() == [], f"seed {SEED}"
    assert driver_faults(storage.driver) == [], f"seed {SEED}"
    ends = storage.ends()
    begun, ended = (
        {line.split()[1] for line in ends if line.startswith(what)} for what in ("begun", "ended")
    )
    assert begun >= {pod["metadata"]["name"] for pod in pods.values()}, f"seed {SEED}"
    # One that is ended as it begins may say the second thing alone.
    amiss = [
        pod
        for pod in begun | ended
        if ends[f"ended {pod}"] > 1
        or ends[f"begun {pod}"] - ends[f"ended {pod}"] > cut_off_starts(agent, pod)
    ]
    assert not amiss, f"seed {SEED}: {amiss} began or ended too often: {said_of(agent, amiss)}"


def cut_off_starts(agent: LabAgent, pod: str) -> int:
    """The number of starts of a pod's container in which an agent was killed.

    With the agent's call containerd gives the start up, and kills a process that has just begun.
    """
    said = [line for line in said_of(agent, [pod]).splitlines() if f"/{pod}/c " in line]
    created, started = (
        sum(f"reason={reason} " in line for line in said) for reason in ("Created", "Started")
    )
    return created - started


def said_of(agent: LabAgent, pods: list[str]) -> str:
    """The lines of the agent's log about some pods."""
    log = agent.log.read_text(errors="replace").splitlines()
    return "\n".join(line for line in log if any(pod in line for pod in pods))


def mounts_amiss(agent: LabAgent, pods: dict[int, Json]) -> str:
    """What is mounted and should not be, and the other way round."""
    present, expected = mounts(agent), expected_mounts(agent, pods)
    return f"too many {dict(present - expected)}, missing {dict(expected - present)}"


def leftovers(agent: LabAgent) -> list[str]:
    """What there is of volumes and pods on the node."""
    root = agent.root
    return [
        *map(str, mounts(agent)),
        *map(str, (root / DRIVERS_VOLUMES / NAME).glob("*")),
        *map(str, (root / "csi_calls").glob("**/*~*")),
        *map(str, (root / "pods").glob("*")),
    ]
