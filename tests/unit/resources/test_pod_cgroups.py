"""The cgroups of pods as their tasks want them, where the kernel refuses something once."""

from pathlib import Path

import pytest

from tests.unit.resources.fake_cgroups import FakeV2
from tests.unit.resources.pods import container, pod
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.errors import PreparationError
from trio_kubelet.resources import CgroupDriver, Cgroups
from trio_kubelet.resources.pod_cgroups import PodCgroups

POD = pod(container("cpu=100m"), uid="u")


async def test_a_class_whose_weight_could_not_be_written_gets_it_with_the_pods_next_try(
    tmp_path: Path,
) -> None:
    fake = FakeV2(tmp_path, "cpu memory")
    cgroups = PodCgroups(
        Cgroups(fake.tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS), lambda: [POD]
    )
    weight = tmp_path / "kubepods/burstable/cpu.weight"
    weight.mkdir()
    with pytest.raises(PreparationError, match="unable to ensure pod container exists"):
        await cgroups.ensure(POD)
    weight.rmdir()
    await cgroups.ensure(POD)
    assert weight.read_text() == "17"


async def test_an_agent_that_is_started_leaves_the_weight_of_pods_that_it_does_not_know_yet(
    tmp_path: Path,
) -> None:
    classes = {"burstable": "59", "besteffort": "100"}
    fake = FakeV2(tmp_path, "cpu memory", ("kubepods", *(f"kubepods/{name}" for name in classes)))
    weights = {name: tmp_path / "kubepods" / name / "cpu.weight" for name in classes}
    for name, weight in weights.items():
        weight.write_text(classes[name])
    cgroups = Cgroups(fake.tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS)
    await cgroups.start()
    assert {name: file.read_text() for name, file in weights.items()} == {
        "burstable": "59",
        "besteffort": "1",
    }
    await PodCgroups(cgroups, lambda: [POD]).ensure(POD)
    assert weights["burstable"].read_text() == "17"


async def test_what_is_done_with_cgroups_is_told_whatever_becomes_of_it(tmp_path: Path) -> None:
    fake = FakeV2(tmp_path, "cpu memory", ("kubepods", "kubepods/burstable"))
    told: list[str] = []
    cgroups = Cgroups(fake.tree, KubeletConfiguration(), driver=CgroupDriver.CGROUPFS)
    cgroups.on_operation.add(lambda operation, seconds: told.append(operation))
    pods = PodCgroups(cgroups, lambda: [POD])
    weight = tmp_path / "kubepods/burstable/cpu.weight"
    weight.mkdir()
    with pytest.raises(PreparationError):
        await pods.ensure(POD)
    weight.rmdir()
    await pods.ensure(POD)
    assert told == ["create", "update", "update", "update"]
    told.clear()
    for file in (tmp_path / "kubepods/burstable/podu").iterdir():
        file.unlink()
    await pods.remove("u")
    assert told == ["destroy"]
