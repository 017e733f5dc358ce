"""The image of kind's nodes, made here: what kind's two recipes make, out of what the lab has.

kind's base image is Debian with systemd, containerd, and files of kind's own that make a machine
of a container; those are taken from its Go module. Its node image adds kubeadm, kubectl, the
kubelet and, in containerd's store, the images of the control plane. Here containerd and the
programs of Kubernetes are the lab's, and pods have a network of plain plugins in place of
kindnet. Besides there is Python with what the agent requires, but not the agent.

Debian 12's systemd runs with both versions of cgroups; that of Debian 13 ends at once with the
first.
"""

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from lab import control_plane_programs, debian_root, host, images, root_folder, tools
from lab.kind import programs
from lab.kind.programs import Kind
from lab.packages import Packages
from lab.processes import run

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SUITE = "bookworm"
# Those of kind's recipe but for network storage, and what it builds from source; then Python.
PACKAGES = (
    *("systemd", "conntrack", "iptables", "nftables", "iproute2", "ethtool", "util-linux"),
    *("mount", "kmod", "libseccomp2", "pigz", "e2fsprogs", "bash", "ca-certificates", "curl"),
    *("jq", "procps", "runc", "containernetworking-plugins", "python3", "python3-venv"),
)
CONTAINERD = "2.1"
CONTAINERD_PROGRAMS = ("containerd", "ctr", "containerd-shim-runc-v2")
# What of systemd's own a container does not need, as patterns below the root.
REMOVED_UNITS = (
    "usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "usr/lib/systemd/system/multi-user.target.wants/*",
    "usr/lib/systemd/system/local-fs.target.wants/*",
    "usr/lib/systemd/system/sockets.target.wants/*udev*",
    "usr/lib/systemd/system/sockets.target.wants/*initctl*",
    "usr/lib/systemd/system/basic.target.wants/*",
    "etc/systemd/system/*.wants/*",
)
ENABLED_UNITS = ("kubelet.service", "containerd.service", "undo-mount-hacks.service")
MASKED_UNITS = ("systemd-binfmt.service",)
POD_SUBNET = "10.244.0.0/16"
CNI = {
    "cniVersion": "1.0.0",
    "name": "lab",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": POD_SUBNET}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
    ],
}
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What the recipe says of the image itself, in the words of `docker import --change`; the signal to
# stop nodes with is none of them, and kind kills them.
CHANGES = (
    'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]',
    "ENV container=docker",
    f"ENV {PATH}",
)
# Where the archives of images are until containerd has imported them.
ARCHIVES = "kind/archives"
IMPORT = f"""
containerd >/{ARCHIVES}/log 2>&1 &
until ctr version >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done
for archive in /{ARCHIVES}/*.tar; do
    ctr --namespace k8s.io images import --label io.cri-containerd.pinned=pinned --no-unpack \
        --digests "$archive"
done
kill $!
wait $! || true
"""


def requirements() -> tuple[str, ...]:
    """What the agent of this checkout requires, for pip."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return tuple(project["project"]["dependencies"])


def build(root: Path, minor: str, packages: Packages) -> None:
    """Fill `root`, which is not there, with the files of a node; blocks for minutes.

    LabError if anything fails, UnavailableError where it cannot work; then `root` is to be removed.
    """
    print("lab: building the image of kind's nodes: minutes", file=sys.stderr)
    debian_root.make(root, SUITE, PACKAGES, packages)
    root_folder.install_requirements(requirements(), root)
    kind = programs.find(packages.cache)
    _put_base(root, kind, packages)
    _put_kubernetes(root, minor, packages)


def _put_base(root: Path, kind: Kind, packages: Packages) -> None:
    """What kind's base image is made of."""
    containerd = tools.find(CONTAINERD, packages)
    for name in CONTAINERD_PROGRAMS:
        shutil.copy(containerd.containerd.with_name(name), root / "usr/local/bin")
    copy_files(kind.base_files, root)
    for pattern in REMOVED_UNITS:
        for path in root.glob(pattern):
            path.unlink()
    with (root / "etc/systemd/journald.conf").open("a") as journald:
        journald.write("ReadKMsg=no\n")
    _link(root / "sbin/init", "/usr/lib/systemd/systemd")
    units = root / "etc/systemd/system"
    for name in ENABLED_UNITS:
        _link(units / "multi-user.target.wants" / name, f"/etc/systemd/system/{name}")
    for name in MASKED_UNITS:
        _link(units / name, "/dev/null")
    (root / "etc/kubernetes/manifests").mkdir(parents=True)
    specification = json.loads(run([containerd.ctr, "oci", "spec"]))
    containerd_folder = root / "etc/containerd"
    (containerd_folder / "cri-base.json").write_text(json.dumps(base_specification(specification)))
    if not host.can_lower_oom_score_adj():
        configuration = containerd_folder / "config.toml"
        text = configuration.read_text()
        configuration.write_text(
            text.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true")
        )
    plugins = root / "opt/cni/bin"
    plugins.mkdir(parents=True)
    for plugin in (root / "usr/lib/cni").iterdir():
        shutil.copy(plugin, plugins)
    network = root / "etc/cni/net.d/10-lab.conflist"
    network.parent.mkdir(parents=True)
    network.write_text(json.dumps(CNI, indent=2))


def base_specification(specification: Mapping[str, object]) -> Mapping[str, object]:
    """What containers of the CRI are made from: kind's hook, and no limits of their own."""
    process = dict(_table(specification["process"]))
    process.pop("rlimits", None)
    hook = {"path": "/kind/bin/mount-product-files.sh"}
    return {**specification, "process": process, "hooks": {"createContainer": [hook]}}


def _table(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _put_kubernetes(root: Path, minor: str, packages: Packages) -> None:
    """What kind's node image adds: programs, and images in containerd's store."""
    found = control_plane_programs.find(minor)
    kubeadm = control_plane_programs.kubeadm(minor)
    for program in (kubeadm, control_plane_programs.go_kubelet(minor), found["kubectl"]):
        shutil.copy(program, root / "usr/bin")
    (root / "kind/version").write_text(found.version)
    archives = root / ARCHIVES
    archives.mkdir()
    listed = run([kubeadm, "config", "images", "list", "--kubernetes-version", found.version])
    made = tuple(control_plane_images(listed.split(), found.folder))
    for number, image in enumerate((*made, _pause(root, packages))):
        image.write(archives / f"{number}.tar")
    root_folder.run_inside(root, os.environ, "sh", "-e", "-c", IMPORT)
    shutil.rmtree(archives)


def control_plane_images(names: list[str], folder: Path) -> Iterator[images.Image]:
    """Images by the names that kubeadm wants, of programs that are there by those names."""
    for name in names:
        program = name.rpartition("/")[2].partition(":")[0]
        if (folder / program).exists():
            content = (folder / program).read_bytes()
            files = {f"usr/local/bin/{program}": images.File(0o755, content)}
            yield images.Image(name, (files,), environment=(PATH,))


def _pause(root: Path, packages: Packages) -> images.Image:
    """The lab's image for sandboxes, by the name that kind's configuration has."""
    catatonit = packages.unpacked("catatonit") / "usr/bin/catatonit"
    configuration = tomllib.loads((root / "etc/containerd/config.toml").read_text())
    name = configuration["plugins"]["io.containerd.grpc.v1.cri"]["sandbox_image"]
    made = images.all_images(tools.busybox(packages), catatonit)
    return next(image for image in made if image.name == images.PAUSE).named(name)


def copy_files(source: Path, root: Path) -> None:
    """Copy kind's files, with the modes that its recipe gives them; a module has none."""
    for path in sorted(source.rglob("*")):
        if path.is_dir():
            continue
        relative = path.relative_to(source)
        copy = root / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        is_program = relative.parent.name == "bin"
        copy.chmod(0o755 if is_program else 0o644)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
