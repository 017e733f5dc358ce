"""A tree of cgroups that files play."""

from pathlib import Path

from trio_kubelet.resources import CgroupTree


class FakeV2:
    """Folders that behave as much like cgroup v2 as writing to them needs."""

    def __init__(
        self,
        root: Path,
        controllers: str,
        paths: tuple[str, ...] = ("kubepods", "kubepods/burstable", "kubepods/burstable/podu"),
    ) -> None:
        self.root = root
        self.tree = CgroupTree(version=2, hierarchies=dict.fromkeys(controllers.split(), root))
        for path in ("", *paths):
            folder = root / path
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.controllers").write_text(controllers)
            (folder / "cgroup.subtree_control").write_text("")
