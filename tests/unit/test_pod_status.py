"""docs/pod-status.md against the API, the code and statuses as they are made."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from attrs import evolve

from tests.unit.field_tables import (
    CODE,
    PYTHON_NAMES,
    ROOT,
    Page,
    Row,
    read_facts,
    short,
)
from tests.unit.status.pods import EXITED, RUNNING, a_pod, instance, sandbox, seen, status_of
from trio_kubelet.k8s import (
    Container,
    ContainerExtendedResourceRequest,
    ContainerRestartRule,
    NodeAllocatableResourceClaimStatus,
    Pod,
    PodCondition,
    PodConditionType,
    PodExtendedResourceClaimStatus,
    PodResourceClaimStatus,
    PodStatus,
    Quantity,
    ResourceClaim,
    ResourceHealth,
    ResourceRequirements,
    ResourceStatus,
    VolumeMount,
)
from trio_kubelet.k8s.codec import encode
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeCondition, ResizeStatus
from trio_kubelet.runtime.observed import ObservedUser
from trio_kubelet.status import Failure, NodeIdentity
from trio_kubelet.status.merge import merged_status

FILLED, PASSED_ON, LEFT_OUT = TREATMENTS = ("filled", "passed on", "left out")
FACTS = read_facts("core.v1.PodStatus")
PAGE = Page.read("pod-status.md", FACTS)

AMOUNTS = {"cpu": Quantity("1"), "memory": Quantity("1Gi")}
RULE = ContainerRestartRule(action="RestartAllContainers")
MOUNT = VolumeMount(name="v", mount_path="/v", read_only=True, recursive_read_only="Enabled")
WEB = Container(
    name="web",
    image="web:1",
    resources=ResourceRequirements(requests=AMOUNTS, limits=AMOUNTS),
    volume_mounts=(MOUNT,),
)
NODE = NodeIdentity(
    host_ips=("10.0.0.1",), recursive_read_only=frozenset({""}), tells_image_digests=True
)


def full_pod(status: PodStatus | None = None, container: Container = WEB) -> Pod:
    return a_pod(
        init=(Container(name="init"),),
        containers=(container,),
        ephemeral=("debug",),
        generation=7,
        status=status,
    )


def full_status(pod: Pod) -> PodStatus:
    """The status of a pod that runs, after one restart; a resize fails, another is refused."""
    observed = seen(
        instance("init", EXITED, exit_code=1, message="no"),
        instance("init", EXITED, 1),
        instance("web", EXITED, exit_code=1),
        instance(
            "web",
            RUNNING,
            1,
            image="web:1",
            image_ref="web@sha256:1",
            user=ObservedUser(uid=7, gid=8, supplemental_groups=(9,)),
            stop_signal="SIGUSR1",
            recursively_read_only=frozenset({"/v"}),
            image_mounts={"/v": "tools@sha256:2"},
        ),
        instance("debug", RUNNING),
        sandboxes=(sandbox(),),
    )
    resize = ResizeStatus(
        pending=ResizeCondition(reason="Infeasible", message="never", generation=7),
        in_progress=ResizeCondition(reason="Error", message="no", generation=6),
    )
    health = ResourceHealth(resource_id="dev-0", health="Unhealthy", message="too hot")
    devices = {"web": (ResourceStatus(name="example.com/gpu", resources=(health,)),)}
    return status_of(pod, observed, node=NODE, resize=resize, devices=devices)


def made_statuses() -> Iterator[PodStatus]:
    """Statuses of pods of which the API has told nothing yet."""
    yield full_status(full_pod())
    yield full_status(full_pod(container=evolve(WEB, restart_policy_rules=(RULE,))))
    yield status_of(full_pod(), reasons={"web": Reason(reason="ErrImagePull", message="why")})
    yield status_of(
        full_pod(),
        stopped=True,
        failure=Failure(reason="Preempting", message="why", disruption="for a critical pod"),
    )


def fields_with_values(type_name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Type and field of all in an encoded object that say something."""
    if isinstance(value, list):
        for item in value:
            yield from fields_with_values(type_name, item)
        return
    kinds = FACTS.get(type_name)
    if kinds is None or not isinstance(value, dict):
        return
    for name, item in value.items():
        if item:
            yield type_name, name
        yield from fields_with_values(short(kinds[name]), item)


def shown(*statuses: PodStatus) -> set[tuple[str, str]]:
    return {each for status in statuses for each in fields_with_values("PodStatus", encode(status))}


def test_every_field_of_the_pod_status_has_one_row() -> None:
    PAGE.assert_complete(TREATMENTS)


def test_the_statuses_that_are_made_have_the_fields_that_the_page_says_and_no_others() -> None:
    assert shown(*made_statuses()) == PAGE.treated(FILLED)


def test_what_others_write_is_left_as_the_api_has_it() -> None:
    theirs = PodStatus(
        nominated_node_name="elsewhere",
        resource_claim_statuses=(PodResourceClaimStatus(name="gpu", resource_claim_name="gpu-1"),),
        extended_resource_claim_status=PodExtendedResourceClaimStatus(
            resource_claim_name="gpu-2",
            request_mappings=(
                ContainerExtendedResourceRequest(
                    container_name="web", resource_name="example.com/gpu", request_name="r"
                ),
            ),
        ),
        node_allocatable_resource_claim_statuses=(
            NodeAllocatableResourceClaimStatus(
                containers=("web",), resource_claim_name="cpus", resources=AMOUNTS
            ),
        ),
    )
    claiming = ResourceRequirements(
        requests=AMOUNTS, claims=(ResourceClaim(name="gpu", request="one"),)
    )
    pod = full_pod(theirs, Container(name="web", resources=claiming))
    merged = merged_status(theirs, full_status(pod))
    assert shown(merged) >= PAGE.treated(PASSED_ON)
    names = {PYTHON_NAMES[each] for each in PAGE.treated(PASSED_ON) if each[0] == "PodStatus"}
    assert [name for name in names if getattr(merged, name) != getattr(theirs, name)] == []


def test_a_resize_that_an_older_kubelet_told_of_is_forgotten() -> None:
    assert full_status(full_pod(PodStatus(resize="InProgress"))).resize == ""


@pytest.mark.parametrize(
    "row", [row for row in PAGE.rows if row.treatment == FILLED], ids=lambda row: row.name
)
def test_a_field_that_is_filled_is_written_where_the_page_says(row: Row) -> None:
    modules = [CODE / name for name in re.findall(r"`([\w/]+\.py)`", row.why)]
    assert modules
    written = {
        node.arg
        for module in modules
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.keyword)
    }
    assert {PYTHON_NAMES[each] for each in PAGE.covered(row)} - written == set()


def conditions_of_page() -> Mapping[str, tuple[str, str]]:
    """Treatment and reason by type."""
    text = (ROOT / "docs" / "pod-status.md").read_text().partition("\n## Conditions\n")[2]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {name.strip(): (here.strip(), why.strip()) for name, here, why in lines[1:]}


def test_every_condition_has_one_row() -> None:
    conditions = conditions_of_page()
    assert conditions.keys() - {"others"} == set(PodConditionType)
    made = {each.type for status in made_statuses() for each in status.conditions}
    assert made == {name for name, (here, _) in conditions.items() if here == FILLED}
    theirs = PodCondition(type="example.com/checked", status="True")
    known = PodStatus(conditions=(theirs,))
    assert theirs in merged_status(known, full_status(full_pod(known))).conditions
    assert conditions["others"][0] == PASSED_ON
