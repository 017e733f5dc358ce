"""Records of what containers were given, as the Go kubelet writes and wants them."""

import json
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.runtime.actuated import (
    FILE_NAME,
    ActuatedRecords,
    needs_record,
    parsed,
    printed,
)

RESOURCES = {"limits": {"cpu": "50m", "memory": "32Mi"}, "requests": {"cpu": "50m"}}
# As the Go kubelet v1.36.3 wrote it.
BY_GO = (
    r'{"data":"{\"entries\":{\"u-1\":{\"ContainerResources\":{\"c\":{\"limits\":{\"cpu\":\"50m\",'
    r"\"memory\":\"32Mi\"},\"requests\":{\"cpu\":\"50m\",\"memory\":\"32Mi\"}}},"
    r'\"PodLevelResources\":null}}}","checksum":3938757040}'
)


def pod(uid: str = "u-2", restart_policy: str = "RestartContainer") -> Pod:
    policy = {"resourceName": "memory", "restartPolicy": restart_policy}
    container = {"name": "c", "image": "i", "resources": RESOURCES, "resizePolicy": [policy]}
    return decode(
        Pod,
        {
            "metadata": {"uid": uid},
            "spec": {"containers": [container, {"name": "d", "image": "i"}]},
        },
    )


@pytest.fixture
def records(tmp_path: Path) -> ActuatedRecords:
    return ActuatedRecords(tmp_path, trio.CapacityLimiter(1))


def kept(root: Path) -> object:
    return parsed((root / FILE_NAME).read_text())


def test_a_file_of_the_go_kubelet_is_read_and_written_byte_for_byte() -> None:
    assert printed(parsed(BY_GO)) == BY_GO


@given(st.dictionaries(st.text(), st.fixed_dictionaries({"ContainerResources": st.just({})})))
def test_what_is_printed_is_read_back(entries: dict[str, dict[str, object]]) -> None:
    assert parsed(printed(entries)) == entries


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"data": 3, "checksum": 3}', BY_GO.replace("50m", "60m")],
)
def test_a_file_that_is_not_whole_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parsed(text)


def test_only_containers_that_a_resize_restarts_need_a_record() -> None:
    assert needs_record(pod())
    assert not needs_record(pod(restart_policy="NotRequired"))


async def test_a_pod_is_recorded_beside_those_of_the_go_kubelet_until_it_is_gone(
    records: ActuatedRecords, tmp_path: Path
) -> None:
    (tmp_path / FILE_NAME).write_text(BY_GO)
    await records.note(pod())
    own = {"u-2": {"ContainerResources": {"c": RESOURCES, "d": {}}}}
    assert kept(tmp_path) == {**parsed(BY_GO), **own}
    await records.forget("u-2")
    assert (tmp_path / FILE_NAME).read_text() == BY_GO


async def test_what_was_recorded_once_stays(records: ActuatedRecords, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(BY_GO)
    await records.note(pod("u-1"))
    assert (tmp_path / FILE_NAME).read_text() == BY_GO


async def test_pods_without_need_leave_no_file(records: ActuatedRecords, tmp_path: Path) -> None:
    await records.note(pod(restart_policy="NotRequired"))
    await records.forget("u-2")
    assert not (tmp_path / FILE_NAME).exists()


async def test_a_file_that_cannot_be_read_is_left_alone(
    records: ActuatedRecords, tmp_path: Path
) -> None:
    torn = json.dumps({"data": "{}", "checksum": 1})
    (tmp_path / FILE_NAME).write_text(torn)
    await records.note(pod())
    assert (tmp_path / FILE_NAME).read_text() == torn
