"""All that can be told, beside the table of what a Go kubelet tells."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from attrs import evolve, fields
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.metrics.table import BEYOND, LEFT_OUT, Metric, page, table
from tests.unit.metrics.test_statistics import MACHINE, STATS, usage
from trio_kubelet.config.records import ImagePulledRecord
from trio_kubelet.csi import MeasuredVolume, VolumeOfPod
from trio_kubelet.csi.driver import VolumeUsage
from trio_kubelet.metrics.cadvisor import cadvisor_metrics
from trio_kubelet.metrics.definitions import (
    SHOWN_AS,
    Counts,
    CredentialProviderCounts,
    ProbeCounts,
    SpanCounts,
)
from trio_kubelet.metrics.resource import resource_metrics
from trio_kubelet.metrics.state import (
    AgentState,
    log_families,
    process_families,
    process_start_family,
    pull_record_families,
    state_families,
    volume_families,
)
from trio_kubelet.metrics.text import Family, exposition
from trio_kubelet.runtime.images.pull_record_files import pulled_records
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.stats.cgroup_values import usage_v2
from trio_kubelet.stats.disk_usage import PodDisk
from trio_kubelet.stats.values import DiskIo, Filesystem, Interface, NetworkStats, Stats

STATE = AgentState(
    node_name="n",
    cgroup_version=2,
    desired={True: 1},
    active={True: 1},
    working={("desired", "sync", True): 1},
    mirrors=1,
    running_pods=1,
    containers={"running": 1},
    ephemeral_containers=0,
    relisted_at=1.0,
    pending_resizes={"Deferred": 1},
    resizes_in_progress=0,
    exclusive_by_node={0: 2},
    dropped_changes=0,
    journal_dropped=0,
    features={("A", "ALPHA"): True},
    versions={"version": "1"},
    protected_bytes=(1, 2),
    volumes={("kubernetes.io/csi", "actual_state_of_world"): 1},
)


def read(endpoint: str, text: bytes) -> set[Metric]:
    """What a scraper sees, by the names that the table has."""
    found: dict[str, tuple[str, set[str]]] = {}
    names: dict[str, str] = {}
    for line in text.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            names[name] = kind
    for family in text_string_to_metric_families(text.decode()):
        name = family.name if family.name in names else f"{family.name}_total"
        labels = found.setdefault(name, (names[name], set()))[1]
        labels.update(chain.from_iterable(sample.labels for sample in family.samples))
    return {
        Metric(endpoint, name, kind, frozenset(labels - {"le"}))
        for name, (kind, labels) in found.items()
    }


def defined(endpoint: str, registry: CollectorRegistry) -> Iterator[Metric]:
    """What can be counted, whether there is a sample or not."""
    for collector in registry._collector_to_names:
        for metric in collector.collect():
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            kind = SHOWN_AS.get(name, metric.type)
            labels: Iterable[str] = getattr(collector, "_labelnames", ())
            yield Metric(endpoint, name, kind, frozenset(labels))


def all_there_is() -> set[Metric]:
    pod = ObservedPod(uid="u", name="p", namespace="n", observed_at=0)
    disk = PodDisk(logs={"c": Filesystem(time_ns=0, used=1)})
    volume = VolumeOfPod(
        driver="d",
        volume_id="h",
        path="/v",
        pod_uid="u",
        namespace="n",
        name="v",
        claim="c",
    )
    usage = VolumeUsage(**dict.fromkeys((each.name for each in fields(VolumeUsage)), 1))
    agent: list[Family] = [
        *volume_families([MeasuredVolume(volume=volume, usage=usage, time_ns=1)]),
        *state_families(STATE),
        *process_families(),
        *pull_record_families(Path("/nowhere")),
        *log_families([(pod, disk)]),
    ]
    return {
        *defined("/metrics", Counts().registry),
        *metrics_of_some_nodes(),
        *read("/metrics", exposition(agent)),
        *defined("/metrics/probes", ProbeCounts().registry),
        *read("/metrics/probes", exposition([process_start_family()])),
        *read("/metrics/resource", resource_metrics(STATS)),
        *read("/metrics/cadvisor", cadvisor_metrics(full_stats(), MACHINE)),
    }


def metrics_of_some_nodes() -> Iterator[Metric]:
    """Those of nodes with credential providers, and with a collector of traces."""
    registry = CollectorRegistry()
    CredentialProviderCounts(registry)
    SpanCounts(registry)
    yield from defined("/metrics", registry)


def full_stats() -> Stats:
    """Statistics in which nothing is missing."""
    counts = (
        *("usage_usec", "user_usec", "system_usec", "nr_periods", "nr_throttled", "anon", "file"),
        *("throttled_usec", "inactive_file", "active_file", "file_mapped", "pgfault", "kernel"),
        *("pgmajfault", "max", "oom_kill"),
    )
    pressure = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"

    def files(_controller: str, name: str) -> bytes:
        if name.endswith(".pressure"):
            return pressure
        if name in ("cpu.stat", "memory.stat", "memory.events"):
            return "".join(f"{each} 1\n" for each in counts).encode()
        return b"1 1" if name == "cpu.max" else b"1"

    found = usage_v2(files, usage(1).time_ns, detailed=True)
    assert found is not None
    interface = Interface(
        name="eth0",
        **dict.fromkeys(("rx_bytes", "tx_bytes", "rx_errors", "tx_errors"), 1),
        **dict.fromkeys(("rx_packets", "tx_packets", "rx_dropped", "tx_dropped"), 1),
    )
    network = NetworkStats(time_ns=1, interfaces=(interface,))
    disk = DiskIo("8:0", "sda", *range(1, 12))
    node = evolve(STATS.node, usage=found, network=network, disks=(disk,))
    return evolve(STATS, node=node)


def test_each_metric_of_the_table_is_there_or_left_out_for_a_reason() -> None:
    left_out = frozenset[str]().union(*LEFT_OUT.values())
    expected = {metric for metric in table() if metric.name not in left_out}
    missing = {(metric.endpoint, metric.name) for metric in expected - all_there_is()}
    assert missing == set()


def test_what_is_there_has_the_names_types_and_labels_of_the_table() -> None:
    beyond = frozenset[str]().union(*BEYOND.values())
    strange = {metric for metric in all_there_is() if metric.name not in beyond} - set(table())
    assert strange == set()


@pytest.mark.parametrize("groups", [LEFT_OUT, BEYOND], ids=["left out", "beyond"])
def test_nothing_is_listed_twice(groups: dict[str, frozenset[str]]) -> None:
    names = list(chain.from_iterable(groups.values()))
    assert len(names) == len(set(names))


def test_what_is_left_out_is_in_the_table_and_what_is_beyond_is_not() -> None:
    names = {metric.name for metric in table()}
    assert frozenset[str]().union(*LEFT_OUT.values()) <= names
    assert not frozenset[str]().union(*BEYOND.values()) & names


def test_the_page_says_what_the_tables_say() -> None:
    written = Path(__file__).parents[3] / "docs/metrics.md"
    assert written.read_text() == page(), "python -m tests.unit.metrics.table >docs/metrics.md"


def test_records_of_pulls_are_counted(tmp_path: Path) -> None:
    folder = pulled_records(tmp_path)
    for image in ("sha256:a", "sha256:b"):
        folder.write(ImagePulledRecord(image_ref=image))
    lines = [line for family in pull_record_families(tmp_path) for line in family.lines]
    assert lines == [
        "kubelet_imagemanager_ondisk_pulledrecords 2",
        "kubelet_imagemanager_ondisk_pullintents 0",
    ]
