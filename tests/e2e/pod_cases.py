"""Pods with something to see, and what users see of them on a Go kubelet.

Each ran on the Go kubelet first; words that contain what varies are regular expressions with
`{uid}` and `{namespace}` filled in. `status` and `ready` are the columns of `kubectl get pods`.
"""

from collections.abc import Mapping

from attrs import field, frozen

from lab.cluster_api import Json
from lab.images import BUSYBOX
from tests.e2e.cluster import shell, until_term

ABSENT = "registry.invalid/nobody/nothing:1"


@frozen(kw_only=True)
class Case:
    """One pod: its spec, and what is to be seen once it is as far as it gets.

    `state` is (`waiting` or `terminated`, reason, message) of `container`; `conditions` are
    (status, reason, message) by type; `events` are (reason, message); `why` are reason and
    message of the pod's status.
    """

    spec: Json
    status: str
    ready: str = "0/1"
    container: str = "c"
    state: tuple[str, str, str] | None = None
    conditions: Mapping[str, tuple[str, str, str]] = field(factory=dict)
    events: tuple[tuple[str, str], ...] = ()
    why: tuple[str, str] | None = None
    is_bound: bool = False


def of(*containers: Json, **spec: object) -> Json:
    """A pod's spec."""
    return {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec}


def once(*containers: Json, **spec: object) -> Json:
    """A pod's spec whose containers run once."""
    return of(*containers, restartPolicy="Never", **spec)


def from_config_map(name: str, key: str) -> Json:
    """A container that needs a key for its environment."""
    reference = {"configMapKeyRef": {"name": name, "key": key}}
    return until_term("c", env=[{"name": "K", "valueFrom": reference}])


def from_secret(name: str, key: str) -> Json:
    """A container that needs a key for its environment."""
    reference = {"secretKeyRef": {"name": name, "key": key}}
    return until_term("c", env=[{"name": "K", "valueFrom": reference}])


def with_volume(**source: object) -> Json:
    """A pod with a volume that is mounted."""
    mounts = [{"name": "v", "mountPath": "/v"}]
    return of(until_term("c", volumeMounts=mounts), volumes=[{"name": "v", **source}])


NOT_READY = ("False", "ContainersNotReady", r"containers with unready status: \[c\]")
FAILED = ("False", "PodFailed", "")
COMPLETED = ("False", "PodCompleted", "")
MISSING_COMMAND = '(?s).*exec: "/no/such": stat /no/such: no such file or directory.*'

CASES: Mapping[str, Case] = {
    "runs": Case(
        spec=of(until_term("c")),
        status="Running",
        ready="1/1",
        conditions={
            "Initialized": ("True", "", ""),
            "Ready": ("True", "", ""),
            "ContainersReady": ("True", "", ""),
            "PodReadyToStartContainers": ("True", "", ""),
        },
        events=(
            (
                "Pulled",
                f'Container image "{BUSYBOX}" already present on machine'
                " and can be accessed by the pod",
            ),
            ("Created", "Container created"),
            ("Started", "Container started"),
        ),
    ),
    "runs-beside-a-sidecar": Case(
        spec=of(until_term("c"), initContainers=[until_term("sidecar", restartPolicy="Always")]),
        status="Running",
        ready="2/2",
    ),
    "runs-on-the-host": Case(
        spec=of(until_term("c"), hostNetwork=True), status="Running", ready="1/1"
    ),
    "completes": Case(
        spec=once(shell("c", "exit 0")),
        status="Completed",
        state=("terminated", "Completed", ""),
        conditions={
            "Initialized": ("True", "PodCompleted", ""),
            "Ready": COMPLETED,
            "ContainersReady": COMPLETED,
        },
    ),
    "completes-on-failure-policy": Case(
        spec=of(shell("c", "exit 0"), restartPolicy="OnFailure"), status="Completed"
    ),
    "fails": Case(
        spec=once(shell("c", "exit 3")),
        status="Error",
        state=("terminated", "Error", ""),
        conditions={"Ready": FAILED, "ContainersReady": FAILED},
    ),
    "fails-with-a-message": Case(
        spec=once(shell("c", "echo sorry >/dev/termination-log; exit 3")),
        status="Error",
        state=("terminated", "Error", "sorry\n"),
    ),
    "fails-with-its-log": Case(
        spec=once(
            shell(
                "c",
                "echo last words; exit 3",
                terminationMessagePolicy="FallbackToLogsOnError",
            )
        ),
        status="Error",
        state=("terminated", "Error", "last words\n"),
    ),
    "fails-beside-one-that-runs": Case(
        spec=once(shell("c", "exit 1"), until_term("other")), status="Error", ready="1/2"
    ),
    "kills-itself": Case(
        spec=once(shell("c", "sleep 1000 & kill -9 $!; wait $!")),
        status="Error",
        state=("terminated", "Error", ""),
    ),
    "needs-too-much-memory": Case(
        spec=once(
            # The runtime begins to watch for it when the process runs already.
            shell("c", "sleep 1; exec tail /dev/zero", resources={"limits": {"memory": "24Mi"}}),
        ),
        status="OOMKilled",
        state=("terminated", "OOMKilled", ""),
    ),
    "crash-loops": Case(
        spec=of(shell("c", "exit 1")),
        status="CrashLoopBackOff",
        state=(
            "waiting",
            "CrashLoopBackOff",
            r"back-off [\dms]+ restarting failed container=c"
            r" pod=crash-loops_{namespace}\({uid}\)",
        ),
        conditions={"Ready": NOT_READY, "ContainersReady": NOT_READY},
        events=(
            (
                "BackOff",
                r"Back-off restarting failed container c in pod"
                r" crash-loops_{namespace}\({uid}\)",
            ),
        ),
    ),
    "exceeds-its-deadline": Case(
        spec=once(until_term("c"), activeDeadlineSeconds=8),
        # kubectl prefers the word of the container, which obeys and exits with 0.
        status="Completed",
        why=(
            "DeadlineExceeded",
            "Pod was active on the node longer than the specified deadline",
        ),
        events=(
            (
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
            ),
        ),
    ),
    "init-fails": Case(
        spec=once(until_term("c"), initContainers=[shell("first", "exit 2")]),
        status="Init:Error",
        state=("waiting", "PodInitializing", ""),
        conditions={"Initialized": ("False", "ContainersNotInitialized", ".*first.*")},
    ),
    "init-crash-loops": Case(
        spec=of(until_term("c"), initContainers=[shell("first", "exit 2")]),
        status="Init:CrashLoopBackOff",
        container="first",
        state=("waiting", "CrashLoopBackOff", "back-off .* restarting failed container=first .*"),
    ),
    "init-takes-long": Case(
        spec=of(until_term("c"), initContainers=[until_term("first")]),
        status="Init:0/1",
        state=("waiting", "PodInitializing", ""),
        conditions={
            "Initialized": (
                "False",
                "ContainersNotInitialized",
                r"containers with incomplete status: \[first\]",
            ),
            "Ready": NOT_READY,
        },
    ),
    "has-no-config-map": Case(
        spec=of(from_config_map("absent", "k")),
        status="CreateContainerConfigError",
        state=("waiting", "CreateContainerConfigError", 'configmap "absent" not found'),
        events=(("Failed", 'Error: configmap "absent" not found'),),
    ),
    "has-no-secret": Case(
        spec=of(from_secret("absent", "k")),
        status="CreateContainerConfigError",
        state=("waiting", "CreateContainerConfigError", 'secret "absent" not found'),
        events=(("Failed", 'Error: secret "absent" not found'),),
    ),
    "has-no-key": Case(
        spec=of(from_config_map("present", "absent")),
        status="CreateContainerConfigError",
        state=(
            "waiting",
            "CreateContainerConfigError",
            "couldn't find key absent in ConfigMap {namespace}/present",
        ),
    ),
    "has-no-key-in-a-secret": Case(
        spec=of(from_secret("present", "absent")),
        status="CreateContainerConfigError",
        events=(("Failed", "Error: couldn't find key absent in Secret {namespace}/present"),),
    ),
    "mounts-no-config-map": Case(
        spec=with_volume(configMap={"name": "absent"}),
        status="ContainerCreating",
        state=("waiting", "ContainerCreating", ""),
        events=(
            (
                "FailedMount",
                'MountVolume.SetUp failed for volume "v" : configmap "absent" not found',
            ),
        ),
        conditions={"PodReadyToStartContainers": ("False", "", "")},
    ),
    "mounts-no-secret": Case(
        spec=with_volume(secret={"secretName": "absent"}),
        status="ContainerCreating",
        events=(
            ("FailedMount", 'MountVolume.SetUp failed for volume "v" : secret "absent" not found'),
        ),
    ),
    "mounts-no-key": Case(
        spec=with_volume(configMap={"name": "present", "items": [{"key": "absent", "path": "p"}]}),
        status="ContainerCreating",
        events=(
            (
                "FailedMount",
                'MountVolume.SetUp failed for volume "v" : '
                "configmap references non-existent config key: absent",
            ),
        ),
    ),
    "mounts-no-folder": Case(
        spec=with_volume(hostPath={"path": "/no/such", "type": "Directory"}),
        status="ContainerCreating",
        events=(
            (
                "FailedMount",
                'MountVolume.SetUp failed for volume "v" : '
                "hostPath type check failed: /no/such is not a directory",
            ),
        ),
    ),
    "has-no-image": Case(
        spec=of({"name": "c", "image": ABSENT}),
        status="ImagePullBackOff",
        state=(
            "waiting",
            "ImagePullBackOff",
            f'(?s)Back-off pulling image "{ABSENT}": ErrImagePull: .*',
        ),
        events=(
            ("Pulling", f'Pulling image "{ABSENT}"'),
            ("Failed", f'(?s)Failed to pull image "{ABSENT}": .*'),
            ("Failed", "Error: ErrImagePull"),
            ("BackOff", f'Back-off pulling image "{ABSENT}"'),
            ("Failed", "Error: ImagePullBackOff"),
        ),
    ),
    "may-not-pull": Case(
        spec=of({"name": "c", "image": ABSENT, "imagePullPolicy": "Never"}),
        status="ErrImageNeverPull",
        state=(
            "waiting",
            "ErrImageNeverPull",
            f'Container image "{ABSENT}" is not present with pull policy of Never',
        ),
        events=(("Failed", "Error: ErrImageNeverPull"),),
    ),
    "has-a-bad-image-name": Case(
        spec=of({"name": "c", "image": "no/NAME:1"}),
        status="InvalidImageName",
        state=(
            "waiting",
            "InvalidImageName",
            'Failed to apply default image tag "no/NAME:1": couldn\'t parse image name '
            '"no/NAME:1": .*',
        ),
        events=(("Failed", "Error: InvalidImageName"), ("InspectFailed", "Failed to apply .*")),
    ),
    "has-no-command": Case(
        spec=once({"name": "c", "image": BUSYBOX, "command": ["/no/such"]}),
        status="StartError",
        state=("terminated", "StartError", MISSING_COMMAND),
        events=(("Failed", f"Error: {MISSING_COMMAND}".replace("Error: (?s)", "(?s)Error: ")),),
    ),
    "loops-without-a-command": Case(
        spec=of({"name": "c", "image": BUSYBOX, "command": ["/no/such"]}),
        status="(RunContainerError|CrashLoopBackOff)",
    ),
    "may-not-be-root": Case(
        spec=of(until_term("c", securityContext={"runAsNonRoot": True})),
        status="CreateContainerConfigError",
        state=(
            "waiting",
            "CreateContainerConfigError",
            r"container has runAsNonRoot and image will run as root "
            r'\(pod: "may-not-be-root_{namespace}\({uid}\)", container: c\)',
        ),
    ),
    "has-a-bad-hook": Case(
        spec=of(
            until_term(
                "c",
                lifecycle={"postStart": {"exec": {"command": ["sh", "-c", "echo no; exit 4"]}}},
            )
        ),
        status="(PostStartHookError|CrashLoopBackOff)",
        events=(
            ("FailedPostStartHook", "PostStartHook failed"),
            ("Killing", "FailedPostStartHook"),
        ),
    ),
    "waits-for-its-gate": Case(
        spec=of(until_term("c"), readinessGates=[{"conditionType": "lab/gate"}]),
        status="Running",
        ready="1/1",
        conditions={
            "Ready": (
                "False",
                "ReadinessGatesNotReady",
                'corresponding condition of pod readiness gate "lab/gate" does not exist.',
            ),
            "ContainersReady": ("True", "", ""),
        },
    ),
    "does-not-fit-the-scheduler": Case(
        spec=of(until_term("c", resources={"requests": {"cpu": "1000"}})), status="Pending"
    ),
    "selects-another-node": Case(
        spec=of(until_term("c"), nodeSelector={"no": "such"}),
        is_bound=True,
        status="NodeAffinity",
        why=(
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed: "
            r"node\(s\) didn't match Pod's node affinity/selector",
        ),
        events=(
            (
                "NodeAffinity",
                r"Predicate NodeAffinity failed: node\(s\) didn't match Pod's node "
                "affinity/selector",
            ),
        ),
    ),
    "needs-too-many-processors": Case(
        spec=of(until_term("c", resources={"requests": {"cpu": "1000"}})),
        is_bound=True,
        status="OutOfcpu",
        why=(
            "OutOfcpu",
            "Pod was rejected: Node didn't have enough resource: cpu, "
            r"requested: 1000000, used: \d+, capacity: \d+",
        ),
    ),
    "wants-a-forbidden-sysctl": Case(
        spec=of(
            until_term("c"),
            securityContext={"sysctls": [{"name": "net.core.somaxconn", "value": "128"}]},
        ),
        is_bound=True,
        status="SysctlForbidden",
        why=(
            "SysctlForbidden",
            'Pod was rejected: forbidden sysctl: "net.core.somaxconn" not allowlisted',
        ),
    ),
}
