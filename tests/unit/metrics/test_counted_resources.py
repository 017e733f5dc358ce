"""What is counted of resizes, and of parts of the machine that are given away."""

from attrs import evolve

from tests.unit.metrics.counting import POD, counter, value
from trio_kubelet.k8s import Container, Pod, PodSpec, Quantity, ResourceRequirements
from trio_kubelet.resource_managers.placement import AssignmentKind, Boundary


def asking(requests: dict[str, str], limits: dict[str, str]) -> Pod:
    amounts = [{name: Quantity(text) for name, text in each.items()} for each in (requests, limits)]
    resources = ResourceRequirements(requests=amounts[0], limits=amounts[1])
    containers = (Container(name="c", resources=resources), Container(name="d"))
    return evolve(POD, spec=PodSpec(containers=containers))


def test_a_resize_is_counted_by_what_it_does_to_each_request_and_limit() -> None:
    at, name = counter(), "kubelet_container_requested_resizes_total"
    before = asking({"cpu": "1", "memory": "1Gi"}, {"memory": "2Gi"})
    at.resize_asked(before, asking({"cpu": "1500m"}, {"memory": "1Gi", "cpu": "2"}))
    at.resize_asked(before, before)
    for operation, requirement, resource in (
        ("increase", "requests", "cpu"),
        ("remove", "requests", "memory"),
        ("add", "limits", "cpu"),
        ("decrease", "limits", "memory"),
    ):
        labels = {"operation": operation, "requirement": requirement, "resource": resource}
        assert value(at, name, **labels) == 1
    assert value(at, name, operation="add", requirement="requests", resource="cpu") is None


def test_containers_that_were_to_have_cpus_alone_are_counted() -> None:
    at = counter()
    at.cpus_asked(has_got=True)
    at.cpus_asked(has_got=False)
    assert value(at, "kubelet_cpu_manager_pinning_requests_total") == 2
    assert value(at, "kubelet_cpu_manager_pinning_errors_total") == 1


def test_parts_of_the_machine_are_counted_by_who_gave_them() -> None:
    at = counter()
    for kind in AssignmentKind:
        at.part_assigned("cpu", kind)
    at.part_refused("memory", "pod")
    name = "resource_manager_allocations_total"
    assert value(at, name, resource_name="cpu", source="node") == 1
    assert value(at, name, resource_name="cpu", source="pod") == 2
    name = "resource_manager_container_assignments"
    assert value(at, name, assignment_type="pod_shared", resource_name="cpu") == 1
    name = "resource_manager_allocation_errors_total"
    assert value(at, name, resource_name="memory", source="pod") == 1


def test_cpus_inside_of_a_boundary_are_counted() -> None:
    at = counter()
    at.boundary_looked_at(Boundary.NUMA_NODE, "pod", is_inside=True)
    at.boundary_looked_at(Boundary.NUMA_NODE, "pod", is_inside=False)
    for outcome in ("count", "failure_count"):
        name = f"kubelet_container_aligned_compute_resources_{outcome}"
        assert value(at, name, boundary="numa_node", scope="pod") == 1


def test_containers_that_were_to_have_memory_of_certain_nodes_are_counted() -> None:
    at = counter()
    at.memory_asked(has_got=True)
    at.memory_asked(has_got=False)
    assert value(at, "kubelet_memory_manager_pinning_requests_total") == 2
    assert value(at, "kubelet_memory_manager_pinning_errors_total") == 1


def test_admissions_by_topology_are_counted_with_their_time() -> None:
    at = counter()
    at.topology_looked_at(0.0015, is_aligned=True)
    at.topology_looked_at(0.0005, is_aligned=False)
    assert value(at, "kubelet_topology_manager_admission_requests_total") == 2
    assert value(at, "kubelet_topology_manager_admission_errors_total") == 1
    assert value(at, "kubelet_topology_manager_admission_duration_ms_sum") == 2


def test_decisions_on_resizes_and_tries_to_make_them_are_counted() -> None:
    at = counter()
    at.resize_refused("static_pod")
    at.deferred_resize_granted("pods_removed")
    at.resize_tried(0.042, worked=True)
    at.resize_tried(1.0, worked=False)
    infeasible, accepted = "infeasible_resizes", "deferred_accepted_resizes"
    assert value(at, f"kubelet_pod_{infeasible}_total", reason_detail="static_pod") == 1
    assert value(at, f"kubelet_pod_{accepted}_total", retry_trigger="pods_removed") == 1
    duration = "kubelet_pod_resize_duration_milliseconds_sum"
    assert value(at, duration, success="true") == 42
    assert value(at, duration, success="false") == 1000
