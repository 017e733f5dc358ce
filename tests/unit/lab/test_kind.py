"""What of a cluster of kind can be decided without Docker."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import LabError
from lab.kind import node_image, oci_runtime
from lab.kind.cluster import (
    GIVE_BACK,
    INSTALL,
    NAME,
    REPOSITORY,
    Docker,
    KindCluster,
    configured,
    options_of_private,
)

ALL = frozenset(f"CAP_{name}" for name in oci_runtime.CAPABILITIES)


def test_the_bounding_set_has_its_capabilities_by_their_number() -> None:
    status = "CapEff:\t0000000000000000\nCapBnd:\t000001fffeffffff\nCapAmb:\t0000000000000000\n"
    assert oci_runtime.bounding_set(status) == ALL - {"CAP_SYS_RESOURCE"}
    assert oci_runtime.bounding_set("CapBnd:\t0000000000000003") == {
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--root /r create --bundle /b --pid-file /p c", (("/b/config.json", True),)),
        ("--root /r exec --process /tmp/spec --detach c", (("/tmp/spec", False),)),
        ("--root /r delete c", ()),
        ("--root /r exec c true", ()),
        ("--version", ()),
    ],
)
def test_what_a_command_line_describes(words: str, expected: tuple[tuple[str, bool], ...]) -> None:
    found = oci_runtime.described(words.split())
    assert found == tuple((Path(path), is_bundle) for path, is_bundle in expected)


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        ({}, {"capabilities": {}}),
        (
            {"capabilities": {"bounding": ["CAP_KILL", "CAP_BPF"], "ambient": None}},
            {"capabilities": {"bounding": ["CAP_KILL"], "ambient": []}},
        ),
        ({"oomScoreAdj": -1}, {"capabilities": {}}),
        ({"oomScoreAdj": 0}, {"capabilities": {}, "oomScoreAdj": 0}),
        ({"oomScoreAdj": 7, "cwd": "/"}, {"capabilities": {}, "oomScoreAdj": 7, "cwd": "/"}),
    ],
)
def test_a_process_gets_what_can_be_had(process: dict[str, Any], expected: dict[str, Any]) -> None:
    oci_runtime.reduce_process(process, frozenset({"CAP_KILL"}), 0)
    assert process == expected


def test_the_runtime_rewrites_the_bundle_and_becomes_runc(tmp_path: Path) -> None:
    bundle = tmp_path / "config.json"
    bundle.write_text(json.dumps({"process": {"oomScoreAdj": -1001}, "hostname": "a"}))
    words = ["/bin/echo", "create", "--bundle", str(tmp_path), "c"]
    done = subprocess.run(
        [sys.executable, str(oci_runtime.__file__), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == words[1:]
    assert json.loads(bundle.read_text()) == {"process": {"capabilities": {}}, "hostname": "a"}


def test_containers_of_a_node_are_told_that_their_hardware_is_kinds() -> None:
    specification = {"process": {"rlimits": [1], "cwd": "/"}, "ociVersion": "1"}
    made = node_image.base_specification(specification)
    assert made["process"] == {"cwd": "/"}
    assert made["ociVersion"] == "1"
    hooks = {"createContainer": [{"path": "/kind/bin/mount-product-files.sh"}]}
    assert made["hooks"] == hooks


def test_files_of_kind_that_are_programs_can_be_run(tmp_path: Path) -> None:
    source, root = tmp_path / "files", tmp_path / "root"
    for name in ("usr/local/bin/entrypoint", "kind/bin/a.sh", "etc/default/kubelet"):
        (source / name).parent.mkdir(parents=True)
        (source / name).write_text(name)
        (source / name).chmod(0o444)
    node_image.copy_files(source, root)
    modes = {
        str(path.relative_to(root)): path.stat().st_mode & 0o777
        for path in root.rglob("*")
        if path.is_file()
    }
    assert modes == {
        "usr/local/bin/entrypoint": 0o755,
        "kind/bin/a.sh": 0o755,
        "etc/default/kubelet": 0o644,
    }


def test_images_of_the_control_plane_have_the_names_that_kubeadm_wants(tmp_path: Path) -> None:
    for name in ("kube-apiserver", "etcd", "kubectl"):
        (tmp_path / name).write_text(name)
    wanted = ["registry/kube-apiserver:v1", "registry/coredns/coredns:v2", "registry/etcd:3-0"]
    made = list(node_image.control_plane_images(wanted, tmp_path))
    assert [image.name for image in made] == ["registry/kube-apiserver:v1", "registry/etcd:3-0"]
    (layer,) = made[1].layers
    assert layer["usr/local/bin/etcd"].content == b"etcd"
    assert layer["usr/local/bin/etcd"].mode == 0o755


def test_a_cluster_has_a_worker_of_the_image_that_docker_is_given() -> None:
    assert configured(Docker({}))["nodes"] == [{"role": "control-plane"}, {"role": "worker"}]
    options = options_of_private("10.0.0.2")
    content = configured(Docker({}, image="i", options=options, node={"labels": {}}))
    of_all = {"image": "i", "labels": {}}
    nodes = [{"role": "control-plane", **of_all}, {"role": "worker", **of_all}]
    assert content["nodes"] == nodes
    assert content["networking"] == options["networking"]


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        (f"other {NAME}", ["get"]),
        ("other", ["get", "create", "delete"]),
    ],
)
def test_only_a_cluster_of_ours_is_deleted_when_the_start_fails(
    clusters: str, expected: list[str], tmp_path: Path
) -> None:
    kind, called = tmp_path / "kind", tmp_path / "called"
    kind.write_text(
        f'#!/bin/sh\necho "$1" >>{called}\n[ "$1" != create ] || exit 1\necho {clusters}\n'
    )
    kind.chmod(0o755)
    cluster = KindCluster(tmp_path, Docker({"PATH": f"{tmp_path}:{os.environ['PATH']}"}))
    with pytest.raises(LabError, match="kind"):
        cluster.start()
    assert called.read_text().split() == expected


def test_the_page_has_the_steps_for_who_types_them() -> None:
    page = (REPOSITORY / "docs" / "e2e.md").read_text()
    typed = page[page.index("kind create cluster") : page.index("kind delete cluster")]
    lines = (line.strip() for line in (INSTALL + GIVE_BACK).splitlines())
    steps = [line for line in lines if line and not line.startswith(("if ", "fi"))]
    for step in steps:
        _, found, typed = typed.partition(step)
        assert found, step
