"""What scrapers are told of nodes, pods and containers."""

from attrs import evolve
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.stats.kernel import CONTAINER, POD_CGROUP, SANDBOX
from trio_kubelet.metrics.cadvisor import cadvisor_metrics
from trio_kubelet.metrics.resource import resource_metrics
from trio_kubelet.node.machine import MachineInfo, MachineSize
from trio_kubelet.resource_managers.machine_topology import flat_topology
from trio_kubelet.stats.values import (
    CgroupDetails,
    CgroupIo,
    ContainerStats,
    CpuUsage,
    DiskIo,
    Interface,
    MemoryUsage,
    NetworkStats,
    NodeStats,
    PodStats,
    SandboxStats,
    Stats,
    SwapUsage,
    Usage,
)

NOW_NS = 1_700_000_000_500_000_000
MACHINE = MachineInfo(
    machine_id="m",
    system_uuid="u",
    boot_id="b",
    kernel_version="6.1",
    os_image='Debian "13"',
    size=MachineSize(cpu_milli=4000, memory_bytes=8 << 30),
    topology=flat_topology(2),
)


def usage(seconds: int, **details: int) -> Usage:
    return Usage(
        time_ns=NOW_NS,
        cpu=CpuUsage(total_ns=seconds * 1_000_000_000, user_ns=1, system_ns=2),
        memory=MemoryUsage(usage=900, working_set=800, rss=700, page_faults=3),
        swap=SwapUsage(usage=5, limit=50),
        tasks=2,
        details=CgroupDetails(io=(), **details),
    )


NETWORK = NetworkStats(
    time_ns=NOW_NS,
    interfaces=(
        Interface(name="eth0", rx_bytes=1, tx_bytes=2, rx_errors=3, tx_errors=4, rx_packets=5),
    ),
    default="eth0",
)
STATS = Stats(
    node=NodeStats(
        usage=usage(100),
        memory_bytes=8000,
        swap_bytes=0,
        booted_at_ns=NOW_NS,
        network=NETWORK,
    ),
    pods=(
        PodStats(
            uid="uid",
            namespace="default",
            name="web",
            started_at_ns=NOW_NS,
            usage=usage(10),
            cgroup=POD_CGROUP,
            network=NETWORK,
            sandbox=SandboxStats(
                id=SANDBOX, cgroup=f"{POD_CGROUP}/{SANDBOX}", usage=usage(1), started_at_ns=NOW_NS
            ),
            containers=(
                ContainerStats(
                    name="main",
                    id=CONTAINER,
                    image="busybox",
                    started_at_ns=NOW_NS,
                    cgroup=f"{POD_CGROUP}/{CONTAINER}",
                    usage=usage(9, periods=7, cpu_quota_us=20000),
                ),
            ),
        ),
    ),
    cgroups={"/kubepods.slice": usage(50)},
)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_resources_of_node_pods_and_containers_with_their_time() -> None:
    text = resource_metrics(STATS)
    found = samples(text)
    pod = (("namespace", "default"), ("pod", "web"))
    container = (("container", "main"), *pod)
    assert found["node_cpu_usage_seconds_total", ()] == 100
    assert found["pod_memory_working_set_bytes", pod] == 800
    assert found["container_cpu_usage_seconds_total", container] == 9
    assert found["container_swap_limit_bytes", container] == 50
    assert found["resource_scrape_error", ()] == 0
    assert b"node_memory_working_set_bytes 800 1700000000500\n" in text


def test_figures_that_are_missing_are_told_as_an_error() -> None:
    problematic = Stats(node=STATS.node, pods=(), problems={"runtime": "away"})
    assert samples(resource_metrics(problematic))["resource_scrape_error", ()] == 1
    assert samples(cadvisor_metrics(problematic, MACHINE))["container_scrape_error", ()] == 1


def labels(**names: str) -> tuple[tuple[str, str], ...]:
    every = dict.fromkeys(("container", "id", "image", "name", "namespace", "pod"), "")
    return tuple(sorted((every | names).items()))


def test_each_cgroup_has_a_row_with_the_labels_of_cadvisor() -> None:
    found = samples(cadvisor_metrics(STATS, MACHINE))
    name = "container_cpu_usage_seconds_total"
    of_pod = {"namespace": "default", "pod": "web"}
    assert {key[1]: value for key, value in found.items() if key[0] == name} == {
        labels(id="/", cpu="total"): 100,
        labels(id="/kubepods.slice", cpu="total"): 50,
        labels(id=POD_CGROUP, cpu="total", **of_pod): 10,
        labels(id=f"{POD_CGROUP}/{SANDBOX}", cpu="total", name=SANDBOX, **of_pod): 1,
        labels(
            id=f"{POD_CGROUP}/{CONTAINER}",
            cpu="total",
            name=CONTAINER,
            container="main",
            image="busybox",
            **of_pod,
        ): 9,
    }


def test_the_network_of_a_pod_is_that_of_its_sandbox() -> None:
    found = samples(cadvisor_metrics(STATS, MACHINE))
    name = "container_network_receive_bytes_total"
    assert {dict(key[1])["id"] for key in found if key[0] == name} == {
        "/",
        f"{POD_CGROUP}/{SANDBOX}",
    }


def test_what_was_not_measured_has_no_sample() -> None:
    found = samples(cadvisor_metrics(STATS, MACHINE))
    names = {name for name, _ in found}
    assert "container_memory_cache" not in names
    assert "container_network_transmit_packets_total" not in names
    assert [key for key in found if key[0] == "container_cpu_cfs_periods_total"] == [
        (
            "container_cpu_cfs_periods_total",
            labels(
                id=f"{POD_CGROUP}/{CONTAINER}",
                name=CONTAINER,
                container="main",
                image="busybox",
                namespace="default",
                pod="web",
            ),
        )
    ]


def test_the_machine_is_told_of() -> None:
    found = samples(cadvisor_metrics(STATS, MACHINE))
    machine = (("boot_id", "b"), ("machine_id", "m"), ("system_uuid", "u"))
    assert found["machine_cpu_cores", machine] == 4
    assert found["machine_cpu_physical_cores", machine] == 2
    assert found["machine_memory_bytes", machine] == 8000


WAYS = ("reads", "writes", "reads_bytes", "writes_bytes")


def test_disks_of_the_machine_are_the_root_s_and_cgroups_have_their_own() -> None:
    disk = DiskIo("8:0", "sda", *range(1, 12))
    io = (CgroupIo("8:0", 10, 20, 1, 2), CgroupIo("7:1", 0, 5, 0, 1))
    written = evolve(usage(50), details=CgroupDetails(io=io))
    stats = evolve(
        STATS,
        node=evolve(STATS.node, disks=(disk,), usage=written),
        cgroups={"/kubepods.slice": written},
    )
    found = {
        (name, dict(labels)["id"], dict(labels)["device"]): value
        for (name, labels), value in samples(cadvisor_metrics(stats, MACHINE)).items()
        if name.startswith("container_fs_")
    }
    assert found["container_fs_reads_bytes_total", "/", "/dev/sda"] == 3 * 512
    assert found["container_fs_write_seconds_total", "/", "/dev/sda"] == 0.008
    assert found["container_fs_io_current", "/", "/dev/sda"] == 9
    below = {key: value for key, value in found.items() if key[1] != "/"}
    assert below == {
        (f"container_fs_{name}_total", "/kubepods.slice", device): value
        for device, counts in (("/dev/sda", (1, 2, 10, 20)), ("7:1", (0, 1, 0, 5)))
        for name, value in zip(WAYS, counts, strict=True)
    }
