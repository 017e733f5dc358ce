import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lab.containerd_config import ContainerdSettings, render

SETTINGS = ContainerdSettings(
    version=(1, 6),
    root=Path("/lab/root"),
    state=Path("/lab/run"),
    socket=Path("/lab/containerd.sock"),
    oci_runtime=Path("/programs/runc"),
    cni_plugins=Path("/programs/cni"),
    cni_configurations=Path("/lab/network"),
    registries=Path("/lab/registries"),
    cdi_specifications=Path("/lab/cdi"),
    sandbox_image="localhost/lab/pause:1",
    snapshotter="overlayfs",
    platform="linux/amd64",
    restrict_oom_score_adj=True,
)
VERSIONS = [(1, 6), (1, 7), (2, 0), (2, 1)]


def rendered(version: tuple[int, int], **changes: Any) -> dict[str, Any]:
    return tomllib.loads(render(dataclasses.replace(SETTINGS, version=version, **changes)))


def values(tree: dict[str, Any], key: str) -> list[Any]:
    found = [tree[key]] if key in tree else []
    branches = [branch for branch in tree.values() if isinstance(branch, dict)]
    return [*found, *(value for branch in branches for value in values(branch, key))]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_given_its_own_places_and_what_the_host_allows(
    version: tuple[int, int],
) -> None:
    tree = rendered(version)
    assert tree["root"] == "/lab/root"
    assert tree["grpc"]["address"] == "/lab/containerd.sock"
    assert values(tree, "Root") == ["/lab/run/runc"]
    assert values(tree, "BinaryName") == ["/programs/runc"]
    assert values(tree, "restrict_oom_score_adj") == [True]
    assert values(tree, "netns_mounts_under_state_dir") == [True]
    assert values(tree, "snapshotter") == ["overlayfs"]
    assert values(tree, "config_path") == ["/lab/registries"]
    assert values(tree, "conf_dir") == ["/lab/network"]
    assert values(tree, "SystemdCgroup") == [False]


@pytest.mark.parametrize("version", VERSIONS)
def test_another_oci_runtime_is_the_only_handler(version: tuple[int, int]) -> None:
    tree = rendered(version, oci_runtime=Path("/programs/crun"))
    assert values(tree, "default_runtime_name") == ["crun"]
    (handlers,) = values(tree, "runtimes")
    assert list(handlers) == ["crun"]
    assert values(tree, "BinaryName") == ["/programs/crun"]


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_shared_with_another_containerd(version: tuple[int, int]) -> None:
    plugins = rendered(version)["plugins"]
    assert plugins["io.containerd.nri.v1.nri"]["disable"] is True
    assert plugins["io.containerd.internal.v1.opt"]["path"] == "/lab/root/opt"


@pytest.mark.parametrize(
    ("version", "schema", "sandbox_image_at", "plugins_at"),
    [
        ((1, 6), 2, "sandbox_image", {"bin_dir": "/programs/cni"}),
        ((1, 7), 2, "sandbox_image", {"bin_dir": "/programs/cni"}),
        ((2, 0), 3, "sandbox", {"bin_dir": "/programs/cni"}),
        ((2, 1), 3, "sandbox", {"bin_dirs": ["/programs/cni"]}),
    ],
)
def test_keys_are_where_the_version_looks_for_them(
    version: tuple[int, int], schema: int, sandbox_image_at: str, plugins_at: dict[str, object]
) -> None:
    tree = rendered(version)
    assert tree["version"] == schema
    assert values(tree, sandbox_image_at) == ["localhost/lab/pause:1"]
    (cni,) = values(tree, "cni")
    assert cni == {**plugins_at, "conf_dir": "/lab/network"}


@pytest.mark.parametrize("version", [(1, 7), (2, 1)])
def test_the_transfer_service_is_told_of_another_snapshotter(version: tuple[int, int]) -> None:
    tree = tomllib.loads(
        render(dataclasses.replace(SETTINGS, version=version, snapshotter="native"))
    )
    (unpacking,) = tree["plugins"]["io.containerd.transfer.v1.local"]["unpack_config"]
    assert unpacking == {"platform": "linux/amd64", "snapshotter": "native"}
