"""Values counted when somebody asks: pods, containers, the process. Pure, but for files."""

import resource
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

from attrs import field, frozen
from prometheus_client import ProcessCollector

from trio_kubelet.csi import MeasuredVolume
from trio_kubelet.metrics.definitions import static_label
from trio_kubelet.metrics.text import Family, families_of, label_text
from trio_kubelet.runtime.images.pull_record_files import intents, pulled_records
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.stats.disk_usage import PodDisk

_UNLIMITED = float(2**64 - 1)
RUNTIME_ONLY = "runtime_only"
"""Pods that no source has had: nobody knows whether they are static."""

CLIENT_RENEW_ERRORS = "kubelet_certificate_manager_client_expiration_renew_errors"
SERVER_RENEW_ERRORS = "kubelet_server_expiration_renew_errors"

_CONFIGS = ("desired", "orphan", RUNTIME_ONLY)
_LIFECYCLES = ("sync", "terminating", "terminated")

_VOLUME_FIGURES = (
    ("capacity_bytes", "Capacity of the volume.", "capacity"),
    ("available_bytes", "Bytes that are free in the volume.", "available"),
    ("used_bytes", "Bytes that are used in the volume.", "used"),
    ("inodes", "The most inodes that the volume can have.", "inodes"),
    ("inodes_free", "Inodes that are free in the volume.", "inodes_free"),
    ("inodes_used", "Inodes that are used in the volume.", "inodes_used"),
)
"""Names of metrics, what they are, and the fields of VolumeUsage."""


@frozen(kw_only=True)
class AgentState:
    """The agent at a moment."""

    node_name: str
    cgroup_version: int | None
    desired: Mapping[bool, int]
    """Pods of the sources, by whether they are static."""
    active: Mapping[bool, int]
    """Pods that hold resources, by whether they are static."""
    working: Mapping[tuple[str, str, bool], int]
    """Tasks of pods by `config`, `lifecycle` and `static`."""
    mirrors: int
    """Static pods that are to have a mirror: all of them, if there is an API server."""
    running_pods: int
    containers: Mapping[str, int]
    """Containers by their states."""
    ephemeral_containers: int
    relisted_at: float
    """Seconds since the epoch, 0 before the first relist."""
    pending_resizes: Mapping[str, int]
    """Resizes that wait, by reason."""
    resizes_in_progress: int
    dropped_changes: int
    journal_dropped: int
    features: Mapping[tuple[str, str], bool] = field(factory=dict)
    """Feature gates by name and stage."""
    versions: Mapping[str, str] = field(factory=dict)
    """Labels of the agent's own versions."""
    volumes: Mapping[tuple[str, str], int] = field(factory=dict)
    """Volumes of pods by plugin and state."""
    exclusive_cpus: int = 0
    exclusive_by_node: Mapping[int, int] = field(factory=dict)
    """CPUs that containers have for themselves."""
    shared_pool_millicores: int = 0
    """CPUs that can still become so."""
    protected_bytes: tuple[int, int] | None = None
    """Memory of pods that the kernel does not take back (`memory.min`, `memory.low`).

    None without the gate MemoryQoS.
    """
    certificates: tuple["CertificateMetrics", ...] = ()
    shutdown_seconds: tuple[float, float] = (0.0, 0.0)


@frozen(kw_only=True)
class CertificateMetrics:
    """A certificate that is rotated: how long it is good, and how many requests came to nothing.

    `errors_name` is the Go kubelet's name of that count, which differs between the two.
    """

    side: str
    errors_name: str
    seconds_left: float
    errors: int


def state_families(state: AgentState) -> Iterable[Family]:
    """The state as metrics."""
    yield _one("kubelet_node_name", "The node.", 1, {"node": state.node_name})
    if state.cgroup_version is not None:
        yield _one("kubelet_cgroup_version", "The version of cgroups.", state.cgroup_version)
    yield _by_static("kubelet_desired_pods", "Pods of the sources.", state.desired)
    yield _by_static("kubelet_active_pods", "Pods that hold resources.", state.active)
    yield _one("kubelet_mirror_pods", "Static pods that the API is to show.", state.mirrors)
    working = Family("kubelet_working_pods", "gauge", "Pods that have a task.")
    counts = {**_no_work(), **state.working}
    for (config, lifecycle, static), count in sorted(counts.items()):
        labels = {"config": config, "lifecycle": lifecycle, "static": _unknown_or(config, static)}
        working.add(label_text(labels), count)
    yield working
    yield _one("kubelet_running_pods", "Pods with a sandbox that is ready.", state.running_pods)
    running = Family("kubelet_running_containers", "gauge", "Containers by their states.")
    for name, count in sorted(state.containers.items()):
        running.add(label_text({"container_state": name}), count)
    yield running
    yield _one(
        "kubelet_managed_ephemeral_containers",
        "Ephemeral containers in specs.",
        state.ephemeral_containers,
    )
    pending = Family("kubelet_pod_pending_resizes", "gauge", "Resizes that wait, or are refused.")
    for reason, count in sorted(state.pending_resizes.items()):
        pending.add(label_text({"reason": reason.lower()}), count)
    yield pending
    yield _one(
        "kubelet_pod_in_progress_resizes", "Resizes that are being made.", state.resizes_in_progress
    )
    yield _one(
        "kubelet_cpu_manager_exclusive_cpu_allocation_count",
        "CPUs that containers have for themselves.",
        state.exclusive_cpus,
    )
    if state.exclusive_by_node:
        by_node = Family("kubelet_cpu_manager_allocation_per_numa", "gauge", "The same by node.")
        for node, count in sorted(state.exclusive_by_node.items()):
            by_node.add(label_text({"numa_node": str(node)}), count)
        yield by_node
    yield _one(
        "kubelet_cpu_manager_shared_pool_size_millicores",
        "CPUs that are shared and not reserved.",
        state.shared_pool_millicores,
    )
    volumes = Family("volume_manager_total_volumes", "gauge", "Volumes of pods.")
    for (plugin, kind), count in sorted(state.volumes.items()):
        volumes.add(label_text({"plugin_name": plugin, "state": kind}), count)
    yield volumes
    yield _one("kubelet_pleg_last_seen_seconds", "When all was looked at.", state.relisted_at)
    dropped = Family("kubelet_pleg_discard_events", "counter", "Changes of pods that were dropped.")
    dropped.add("", state.dropped_changes)
    yield dropped
    enabled = Family("kubernetes_feature_enabled", "gauge", "1 if a feature gate is on.")
    for (name, stage), is_on in sorted(state.features.items()):
        enabled.add(label_text({"name": name, "stage": stage}), int(is_on))
    yield enabled
    if state.protected_bytes is not None:
        hard, soft = state.protected_bytes
        what = "Memory of {} pods that is protected."
        yield _one("kubelet_memory_qos_node_memory_min_bytes", what.format("guaranteed"), hard)
        yield _one("kubelet_memory_qos_node_memory_low_bytes", what.format("burstable"), soft)
    for certificate in state.certificates:
        yield _one(
            f"kubelet_certificate_manager_{certificate.side}_ttl_seconds",
            f"Seconds until the {certificate.side} certificate expires; +Inf if there is none.",
            certificate.seconds_left,
        )
        errors = Family(certificate.errors_name, "counter", "Requests that came to nothing.")
        errors.add("", certificate.errors)
        yield errors
    began, ended = state.shutdown_seconds
    yield _one("kubelet_graceful_shutdown_start_time_seconds", "When the last began.", began)
    yield _one("kubelet_graceful_shutdown_end_time_seconds", "When its pods had ended.", ended)
    yield _one("trio_kubelet_build_info", "The agent.", 1, state.versions)
    lost = Family(
        "trio_kubelet_journal_overwritten_total", "counter", "Entries that the journal has lost."
    )
    lost.add("", state.journal_dropped)
    yield lost


def _one(name: str, what: str, value: float, labels: Mapping[str, str] | None = None) -> Family:
    family = Family(name, "gauge", what)
    family.add(label_text(labels or {}), value)
    return family


def _by_static(name: str, what: str, counts: Mapping[bool, int]) -> Family:
    family = Family(name, "gauge", what)
    for is_static in (False, True):
        labels = label_text({"static": static_label(static=is_static)})
        family.add(labels, counts.get(is_static, 0))
    return family


def _no_work() -> Mapping[tuple[str, str, bool], int]:
    """The values where there is no such pod."""
    return {
        (config, lifecycle, static): 0
        for config, lifecycle, static in product(_CONFIGS, _LIFECYCLES, (False, True))
        if not (config == RUNTIME_ONLY and static)
    }


def _unknown_or(config: str, static: bool) -> str:
    if config == RUNTIME_ONLY:
        return "unknown"
    return static_label(static=static)


def log_families(pods: Iterable[tuple[ObservedPod, PodDisk]]) -> Iterable[Family]:
    """The bytes that the logs of containers take."""
    used = Family("kubelet_container_log_filesystem_used_bytes", "gauge", "Logs on the disk.")
    for pod, disk in pods:
        for name, found in disk.logs.items():
            labels = {
                "container": name,
                "namespace": pod.namespace,
                "pod": pod.name,
                "uid": pod.uid,
            }
            used.add(label_text(labels), found.used or 0)
    yield used


def volume_families(measured: Iterable[MeasuredVolume]) -> Iterable[Family]:
    """The space of the volumes that claims are bound to; each claim once."""
    claims = {(each.volume.namespace, each.volume.claim): each.usage for each in measured}
    for name, what, figure in _VOLUME_FIGURES:
        family = Family(f"kubelet_volume_stats_{name}", "gauge", what)
        for (namespace, claim), usage in sorted(claims.items(), key=lambda each: each[0]):
            value: int | None = getattr(usage, figure)
            if claim and value is not None:
                labels = {"namespace": namespace, "persistentvolumeclaim": claim}
                family.add(label_text(labels), value)
        yield family


def process_families() -> Iterable[Family]:
    """The agent's own process, as the client library reads it. Blocks."""
    yield from families_of(ProcessCollector(registry=None).collect(), {})
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    limit = _UNLIMITED if soft == resource.RLIM_INFINITY else soft
    yield _one("process_virtual_memory_max_bytes", "The most virtual memory there may be.", limit)


def pull_record_families(root: Path) -> Iterable[Family]:
    """The records of pulled images below --root-dir, and of pulls under way. Blocks."""
    for name, what, folder in (
        ("pulledrecords", "Records of images that were pulled.", pulled_records(root)),
        ("pullintents", "Records of pulls under way.", intents(root)),
    ):
        yield _one(f"kubelet_imagemanager_ondisk_{name}", what, folder.count())


def process_start_family() -> Family:
    """The start of this process. Blocks."""
    found = {family.name: family for family in process_families()}
    return found["process_start_time_seconds"]
