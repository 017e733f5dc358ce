"""Every reason of an event, and all words that users see, against the tables of the Go kubelet.

Each row is either said by the agent, and then its words stand in the module that is named here, and
its reason is used there, not only defined; or it waits for a capability that is not there, and then
the reason stands nowhere. A row that is placed nowhere fails.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from attrs import field, frozen

ROOT = Path(__file__).parents[3]
FACTS = ROOT / "tests" / "facts"
AGENT = ROOT / "trio_kubelet"


@frozen
class Said:
    """By the agent: in these modules, with other constant parts than those of the row if given."""

    modules: str
    parts: tuple[str, ...] | None = field(default=None, kw_only=True)


@frozen
class Left:
    """Not said yet; `why` names what it waits for."""

    why: str


@frozen
class PassedOn:
    """A word of the runtime that goes from its status into the pod's.

    `compared_in` are the modules that know the word, to say a more exact one in its place, or for
    something else.
    """

    compared_in: str = ""


Place = Said | Left | PassedOn

PROBES = "probes/runner.py"
IMAGE_COLLECTOR = "runtime/images/collector.py"

OOM_REASONS = "runtime/inspection.py"
STARTER = "runtime/lifecycle/container_starter.py"
STOPPER = "runtime/lifecycle/container_stopper.py"
IMAGES = "runtime/images/manager.py"
POD_RUNTIME = "runtime/lifecycle/pod_runtime.py"
SANDBOX = "runtime/lifecycle/sandbox_creator.py"
SYNCER = "sync/pod_syncer.py"
RESIZING = "sync/resize_decisions.py"
STORAGE = "volumes/pod_storage.py"
POD_MACHINE = "../state_machines/pod.py"
CONDITIONS = "status/conditions.py"
STATUSES = "status/container_statuses.py"

REASONS: Mapping[str, Said | Left] = {
    "AlreadyMountedVolume": Said("volumes/local.py"),
    "BackOff": Said(f"{IMAGES} {POD_RUNTIME}"),
    "CgroupV1": Said("node/host.py"),
    "CheckLimitsForResolvConf": Said("node/host.py"),
    "ContainerGCFailed": Said("runtime/garbage/collector.py"),
    "Created": Said(STARTER),
    "DNSConfigForming": Said("runtime/config/dns.py"),
    "ErrImageNeverPull": Said(IMAGES),
    "ExceededGracePeriod": Said("sync/loop.py"),
    "Failed": Said(f"{STARTER} {IMAGES} {STORAGE}"),
    # The controller manager says it, which attaches volumes to nodes; the agent attaches none.
    "FailedAttachVolume": Left("nothing: it is another's"),
    "FailedCreatePodContainer": Said("resources/pod_cgroups.py"),
    "FailedCreatePodSandBox": Said(SANDBOX),
    "FailedKillPod": Said(f"{SYNCER} {STORAGE} resources/pod_cgroups.py"),
    "FailedMapVolume": Said("volumes/plugin.py"),
    "FailedMount": Said("volumes/plugin.py"),
    "FailedMountOnFilesystemMismatch": Said("volumes/disk_stages.py"),
    "FailedNodeAllocatableEnforcement": Said("node/enforcement.py"),
    # Of pods whose spec changes to one that needs what the node does not declare: by a resize.
    "FailedNodeDeclaredFeaturesCheck": Left("an occasion: such a resize is Infeasible"),
    "FailedPodSandBoxStatus": Said(SANDBOX),
    "FailedPostStartHook": Said(STARTER),
    "FailedPreStopHook": Said(STOPPER),
    "FailedPrepareDynamicResources": Said(SYNCER),
    "FailedSync": Said("sync/pod_task.py"),
    "FailedValidation": Said("sources/merge.py"),
    "FileSystemResizeFailed": Said("volumes/csi_expansion.py"),
    "FileSystemResizeSuccessful": Said("volumes/csi_expansion.py"),
    "FreeDiskSpaceFailed": Said(IMAGE_COLLECTOR),
    "ImageGCFailed": Said(IMAGE_COLLECTOR),
    "InspectFailed": Said(IMAGES),
    "InvalidDiskCapacity": Said(IMAGE_COLLECTOR),
    "InvalidImageID": Left("an occasion: none is known, the Go kubelet only has the name"),
    "Killing": Said(STOPPER),
    "KubeletSetupFailed": Said("agent/node_parts.py"),
    "MissingClusterDNS": Said("runtime/config/dns.py"),
    "NetworkNotReady": Said(SYNCER),
    "NodeAllocatableEnforced": Said("node/enforcement.py"),
    "NodeNotReady": Said("node/conditions.py"),
    "NodeNotSchedulable": Said("node/reporter.py"),
    "NodeReady": Said("node/conditions.py"),
    "NodeSchedulable": Said("node/reporter.py"),
    "PossibleMemoryBackedVolumesOnDisk": Said("node/host.py"),
    "Preempting": Said("sync/loop.py"),
    "ProbeWarning": Said(PROBES),
    "Pulled": Said(IMAGES),
    "Pulling": Said(IMAGES),
    "Rebooted": Said("node/reporter.py"),
    "ResizeCompleted": Said(SYNCER),
    "ResizeDeferred": Said(RESIZING),
    "ResizeError": Said(SYNCER),
    "ResizeInfeasible": Said(RESIZING),
    "ResizeStarted": Said(RESIZING),
    "SandboxChanged": Said(POD_RUNTIME),
    "Shutdown": Said("node/shutdown.py"),
    "Started": Said(STARTER),
    "Starting": Said("agent/start.py"),
    "SuccessfulAttachVolume": Left("nothing: it is another's, as FailedAttachVolume"),
    "SuccessfulMountVolume": Said("volumes/devices.py"),
    "Unhealthy": Said(PROBES),
    "VolumePermissionChangeInProgress": Said("volumes/ownership.py"),
    "VolumeResizeFailed": Said("volumes/csi_expansion.py"),
    "VolumeResizeSuccessful": Left("an occasion: FileSystemResizeSuccessful tells of nodes"),
}

MESSAGES: Mapping[tuple[str, str, str], Place] = {
    ("event", "Pulling", "Pulling image"): Said(IMAGES),
    ("event*", "Pulled", "Successfully pulled image"): Said(IMAGES),
    ("event", "Pulled", "Container image"): Said(
        IMAGES,
        parts=(
            'Container image "',
            '" already present on machine',
            " and can be accessed by the pod",
        ),
    ),
    ("event", "Created", "Container created"): Said(STARTER),
    ("event", "Started", "Container started"): Said(STARTER),
    ("event", "Killing", "Stopping container"): Said(STOPPER),
    ("event", "Killing", "Container <name> failed liveness probe"): Said(
        f"{STOPPER} runtime/lifecycle/planning.py",
        parts=("Container ", " failed ", " probe", ", will be restarted"),
    ),
    ("event", "Killing", "FailedPostStartHook"): Said(f"{STOPPER} {STARTER}"),
    ("event", "FailedPostStartHook", "PostStartHook failed"): Said(STARTER),
    ("event", "FailedPreStopHook", "PreStopHook failed"): Said(STOPPER),
    ("event", "BackOff", "Back-off pulling image"): Said(IMAGES),
    ("event", "BackOff", "Back-off restarting failed container"): Said(POD_RUNTIME),
    ("event", "Failed", "Failed to pull image"): Said(IMAGES),
    ("event", "Failed", "Error: ErrImagePull"): Said(IMAGES, parts=("Error: ", "ErrImagePull")),
    ("event", "Failed", "Error: ImagePullBackOff"): Said(
        IMAGES, parts=("Error: ", "ImagePullBackOff")
    ),
    ("event", "Failed", "Error: InvalidImageName"): Said(
        IMAGES, parts=("Error: ", "InvalidImageName")
    ),
    ("event", "InspectFailed", "Failed to apply default image tag"): Said(IMAGES),
    ("event", "ErrImageNeverPull", "Container image"): Said(IMAGES),
    ("event", "Failed", "Error: ErrImageNeverPull"): Said(
        IMAGES, parts=("Error: ", "ErrImageNeverPull")
    ),
    ("event", "Failed", "Error: configmap"): Said(
        f"{STORAGE} references/object_references.py", parts=("Error: ", '" not found')
    ),
    ("event", "Failed", "Error: couldn't find key"): Said(
        f"{STARTER} runtime/config/environment.py", parts=("Error: ", "couldn't find key ", " in ")
    ),
    ("event", "Failed", "Error: container has runAsNonRoot"): Said(
        f"{STARTER} runtime/config/security.py",
        parts=("Error: ", "container has runAsNonRoot and image will run as root"),
    ),
    ("event", "Failed", "Error: <the runtime's words"): Said(STARTER),
    ("event", "FailedMount", "MountVolume.SetUp failed"): Said(
        f"{STORAGE} volumes/plugin.py", parts=("MountVolume.SetUp", " failed", ' for volume "')
    ),
    ("event", "Unhealthy", "Liveness probe failed"): Said(PROBES, parts=(" probe failed: ",)),
    ("event", "Unhealthy", "Readiness probe failed: Get"): Said(
        f"{PROBES} pod_clients/http.py pod_clients/dial.py",
        parts=(" probe failed: ", 'Get "', "dial tcp ", ": connect: "),
    ),
    ("event", "Unhealthy", "Readiness probe failed: dial"): Said(
        f"{PROBES} pod_clients/dial.py", parts=(" probe failed: ", "dial tcp ", ": connect: ")
    ),
    ("event", "DeadlineExceeded", "Pod was active"): Said(f"{SYNCER} {POD_MACHINE}"),
    ("event", "Evicted", "Pod ephemeral local storage"): Said(
        "eviction/limits.py eviction/messages.py"
    ),
    ("event", "OutOfcpu", "Node didn't have enough"): Said(
        "sync/admission/admission_result.py",
        parts=(
            "OutOf",
            "Node didn't have enough resource: ",
            ", requested: ",
            ", used: ",
            ", capacity: ",
        ),
    ),
    ("event", "NodeAffinity", "Predicate NodeAffinity failed"): Said(
        "sync/admission/admission.py sync/admission/admission_result.py",
        parts=("Predicate ", " failed: ", "node(s) didn't match Pod's node affinity/selector"),
    ),
    ("event", "NodePorts", "Predicate NodePorts failed"): Said(
        "sync/admission/resource_fit.py sync/admission/admission_result.py",
        parts=("Predicate ", " failed: ", "node(s) didn't have free ports for the requested pod"),
    ),
    ("event", "SysctlForbidden", "forbidden sysctl"): Said(
        "sync/admission/sysctls.py", parts=("forbidden sysctl: ", '" not allowlisted')
    ),
    ("event", "AppArmor", "Cannot enforce AppArmor"): Said(
        "sync/admission/node_features.py",
        parts=("Cannot enforce AppArmor: ", "AppArmor is not enabled on the host"),
    ),
    ("event", "Starting", "Starting kubelet."): Said("agent/start.py"),
    ("event", "NodeHasSufficientMemory", "Node <node> status"): Said(
        "node/reporter.py node/conditions.py", parts=("Node ", " status is now: ")
    ),
    ("event", "NodeAllocatableEnforced", "Updated Node"): Said("node/enforcement.py"),
    ("event", "CgroupV1", "cgroup v1 detected"): Said("node/host.py"),
    ("pod", "<admission reason>", "Pod was rejected"): Said("status/context.py"),
    ("pod", "DeadlineExceeded", "Pod was active"): Said(f"{SYNCER} {POD_MACHINE}"),
    ("waiting", "ContainerCreating", ""): Said(STATUSES),
    ("waiting", "PodInitializing", ""): Said(STATUSES),
    ("waiting", "CrashLoopBackOff", "back-off"): Said(
        "runtime/lifecycle/container_table.py runtime/lifecycle/planning.py",
        parts=("back-off ", " restarting failed container="),
    ),
    ("waiting", "ImagePullBackOff", "Back-off pulling image"): Said(
        IMAGES, parts=('Back-off pulling image "', '": ')
    ),
    ("waiting", "ErrImageNeverPull", "Container image"): Said(IMAGES),
    ("waiting", "InvalidImageName", "Failed to apply"): Said(IMAGES),
    ("waiting", "CreateContainerConfigError", "as the Failed event"): Said("errors.py", parts=()),
    ("waiting", "RunContainerError", "the runtime's words"): Said(STARTER, parts=()),
    ("waiting", "PostStartHookError", "Exec lifecycle hook"): Said(
        f"{STARTER} runtime/lifecycle/hooks.py",
        parts=("Exec lifecycle hook ([", "]) for Container ", '" in Pod "', " - error: "),
    ),
    ("terminated", "Completed", ""): Said(STATUSES),
    ("terminated", "Error", "the termination message"): PassedOn(
        compared_in=f"{OOM_REASONS} runtime/lifecycle/resize_progress.py"
    ),
    ("terminated", "OOMKilled", ""): Said(OOM_REASONS),
    ("terminated", "StartError", "the runtime's words"): PassedOn(),
    ("terminated", "ContainerStatusUnknown", "The container could not"): Said(STATUSES),
    ("condition", "ContainersNotReady", "containers with unready"): Said(
        CONDITIONS, parts=("containers with unready status: ",)
    ),
    ("condition", "PodCompleted", ""): Said(CONDITIONS),
    ("condition", "PodFailed", ""): Said(CONDITIONS),
    ("condition", "ContainersNotInitialized", "containers with incomplete"): Said(
        CONDITIONS, parts=("containers with incomplete status: ",)
    ),
    ("condition", "ReadinessGatesNotReady", "corresponding condition"): Said(CONDITIONS),
    ("condition", "", ""): Said("k8s/status.py", parts=("PodReadyToStartContainers",)),
}
"""By where it is seen, the reason, and how the message begins."""


def reasons() -> list[str]:
    return (FACTS / "event-reasons.tsv").read_text().split()


def messages() -> list[tuple[str, str, str]]:
    """Where, reason and message of each row."""
    lines = (FACTS / "messages.tsv").read_text().splitlines()[1:]
    rows = [(*line.split("\t"), "", "")[:4] for line in lines]
    return [(where, reason, message) for where, _, reason, message in rows]


def place_of(row: tuple[str, str, str]) -> Place:
    where, reason, message = row
    found = [
        place
        for (seen, why, words), place in MESSAGES.items()
        if (seen, why) == (where, reason) and message.startswith(words)
    ]
    assert len(found) == 1, f"{row} is placed {len(found)} times"
    return found[0]


@cache
def texts(module: str) -> tuple[str, ...]:
    """The constant texts of a module, docstrings aside; those between braces one by one."""
    tree = ast.parse((AGENT / module).read_text())
    documents = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return tuple(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documents
    )


@cache
def named_texts(module: str) -> Mapping[str, str]:
    """The constants of a module that are texts, by name."""
    return {
        target.id: node.value.value
        for node in ast.parse((AGENT / module).read_text()).body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


@cache
def all_named_texts() -> Mapping[str, str]:
    """Those of all modules: an event's reason is often sent where it is not defined."""
    paths = (str(path.relative_to(AGENT)) for path in sorted(AGENT.rglob("*.py")))
    return {name: text for path in paths for name, text in named_texts(path).items()}


@cache
def sent_texts(module: str) -> frozenset[str]:
    """The texts that a module uses, by themselves or by name; not what it only defines."""
    tree = ast.parse((AGENT / module).read_text())
    used = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    own = named_texts(module)
    named = {**all_named_texts(), **own}
    by_name = {named[name] for name in used & named.keys()}
    return frozenset(texts(module)) - set(own.values()) | by_name


def constant_parts(message: str) -> Iterator[str]:
    """The parts of a message that never vary."""
    return (part for part in re.split(r"<[^>]*>", message) if part.strip(' ".,:()_'))


def modules() -> list[str]:
    """The modules of the agent that may say something to users."""
    paths = (path.relative_to(AGENT) for path in AGENT.rglob("*.py"))
    others = ("hollow", "rpc", "cli", "k8s")
    return [str(path) for path in paths if path.parts[0] not in others]


def all_texts() -> set[str]:
    return {text for path in modules() for text in texts(path)}


@pytest.mark.parametrize("reason", reasons())
def test_an_event_is_sent_or_left_for_a_capability(reason: str) -> None:
    place = REASONS[reason]
    if isinstance(place, Said):
        for module in place.modules.split():
            assert reason in sent_texts(module), module
    else:
        assert place.why
        assert reason not in all_texts(), "it is sent: say where"


def test_the_places_are_those_of_the_tables() -> None:
    assert REASONS.keys() == set(reasons())
    seen = [key for key in MESSAGES for row in messages() if matches(key, row)]
    assert set(seen) == MESSAGES.keys()


def matches(key: tuple[str, str, str], row: tuple[str, str, str]) -> bool:
    return key[:2] == row[:2] and row[2].startswith(key[2])


@pytest.mark.parametrize("row", messages(), ids=lambda row: f"{row[0]} {row[1]} {row[2][:30]}")
def test_words_that_users_see_are_said_or_left_for_a_capability(row: tuple[str, str, str]) -> None:
    place, (_, reason, message) = place_of(row), row
    if isinstance(place, Said):
        said = [text for module in place.modules.split() for text in texts(module)]
        parts = constant_parts(message) if place.parts is None else place.parts
        for part in parts:
            assert any(part in text for text in said), part
        if reason.isalpha() and not reason.startswith("OutOf"):
            assert reason in said
    elif isinstance(place, PassedOn):
        assert [path for path in modules() if reason in texts(path)] == place.compared_in.split()
    else:
        assert place.why
        whole = max(constant_parts(message), key=len)
        assert not any(whole in text for text in all_texts()), "it is said: say where"
