"""Huge pages of cgroup v2, on machines whose kernel has them there."""

import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from lab.orphans import cgroup_of_ours
from tests import huge_pages
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupConfig, CgroupTree

pytestmark = pytest.mark.usefixtures("real_containers")


@pytest.fixture
def root() -> str:
    """A cgroup that nobody else uses."""
    return f"/{cgroup_of_ours(uuid.uuid4().hex[:8])}"


@pytest.fixture
def unified() -> Iterator[CgroupTree]:
    """Cgroup v2 with huge pages alone, which a hybrid machine leaves to it, and a few of them."""
    root = next((each.path for each in mount_points() if each.fs_type == "cgroup2"), None)
    with huge_pages.set_aside(8):
        if root is None or "hugetlb" not in (root / "cgroup.controllers").read_text().split():
            pytest.skip("cgroup v2 has no huge pages here")
        handed_down = root / "cgroup.subtree_control"
        was_handed_down = "hugetlb" in handed_down.read_text().split()
        yield CgroupTree(version=2, hierarchies={"hugetlb": root})
        if not was_handed_down:
            handed_down.write_text("-hugetlb")


def test_huge_pages_of_a_cgroup_of_v2_are_limited_when_they_are_mapped(
    unified: CgroupTree, root: str
) -> None:
    limit = {huge_pages.PAGE_BYTES: 4 * huge_pages.PAGE_BYTES}
    unified.create(f"{root}/pod", CgroupConfig(hugepage_limits=limit))

    def use(pages: int) -> str:
        (folder,) = unified.folders(f"{root}/pod")
        script = f'echo $$ >{folder}/cgroup.procs; exec {sys.executable} -c "$0" {pages}'
        command = ["sh", "-c", script, huge_pages.USE_PAGES]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    try:
        assert use(4) == ""
        assert use(5).endswith("OSError: [Errno 12] Cannot allocate memory\n")
        unified.write(f"{root}/pod", CgroupConfig(hugepage_limits={huge_pages.PAGE_BYTES: 0}))
        assert use(1).endswith("OSError: [Errno 12] Cannot allocate memory\n")
    finally:
        assert [*unified.removal(root)][-1]
