"""The configuration file of a private containerd.

containerd 1.6 and 1.7 read version 2 of the file, 2.x version 3, where the CRI plugin is split
into images, runtime and streaming. Everything that would otherwise land in a place shared with
another containerd (shim state, opt, NRI socket, network namespaces) is moved or switched off.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Value = bool | int | str | list[str]

# Snapshotters that look for devices or modules of the host.
UNUSED_PLUGINS = [
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
]


@dataclass(frozen=True, slots=True)
class ContainerdSettings:
    """What one instance is configured with; all paths absolute."""

    version: tuple[int, int]
    root: Path
    state: Path
    socket: Path
    oci_runtime: Path
    cni_plugins: Path
    cni_configurations: Path
    registries: Path
    cdi_specifications: Path
    sandbox_image: str
    snapshotter: str
    platform: str
    restrict_oom_score_adj: bool
    limits_huge_pages: bool = False


def render(settings: ContainerdSettings) -> str:
    """Return the text of config.toml."""
    tables: Mapping[str, Mapping[str, Value]] = {
        "grpc": {
            "address": str(settings.socket),
            "max_recv_message_size": 16 << 20,
            "max_send_message_size": 16 << 20,
        },
        "ttrpc": {"address": f"{settings.socket}.ttrpc"},
        'plugins."io.containerd.internal.v1.opt"': {"path": str(settings.root / "opt")},
        **(_cri_of_1(settings) if settings.version < (2, 0) else _cri_of_2(settings)),
    }
    head: Mapping[str, Value] = {
        "version": 2 if settings.version < (2, 0) else 3,
        "root": str(settings.root),
        "state": str(settings.state),
        "disabled_plugins": UNUSED_PLUGINS,
    }
    parts = [_lines(head), *(f"[{name}]\n{_lines(table)}" for name, table in tables.items())]
    return "\n".join([*parts, *_unpacking(settings)])


def _unpacking(settings: ContainerdSettings) -> tuple[str, ...]:
    """Tell the service that imports and pulls since 1.7 of a snapshotter that is not its own."""
    if settings.version < (1, 7) or settings.snapshotter == "overlayfs":
        return ()
    unpacking = {"platform": settings.platform, "snapshotter": settings.snapshotter}
    return (f"[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\n{_lines(unpacking)}",)


def _lines(table: Mapping[str, Value]) -> str:
    # JSON's strings, numbers, booleans and lists of strings are TOML's too.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def _runtime(settings: ContainerdSettings) -> dict[str, Value]:
    return {
        "enable_cdi": True,
        "cdi_spec_dirs": [str(settings.cdi_specifications)],
        "restrict_oom_score_adj": settings.restrict_oom_score_adj,
        "netns_mounts_under_state_dir": True,
        "disable_hugetlb_controller": not settings.limits_huge_pages,
        "tolerate_missing_hugetlb_controller": True,
    }


def _handler_tables(settings: ContainerdSettings, plugin: str) -> dict[str, Mapping[str, Value]]:
    """Make the OCI runtime the only handler, under its own name."""
    name = settings.oci_runtime.name
    handler = f"{plugin}.containerd.runtimes.{name}"
    return {
        f"{plugin}.containerd": {
            "default_runtime_name": name,
            **({"snapshotter": settings.snapshotter} if settings.version < (2, 0) else {}),
        },
        handler: {"runtime_type": "io.containerd.runc.v2"},
        f"{handler}.options": {
            "BinaryName": str(settings.oci_runtime),
            "Root": str(settings.state / "runc"),
            "SystemdCgroup": False,
        },
    }


def _streaming() -> dict[str, Value]:
    return {"stream_server_address": "127.0.0.1", "stream_server_port": "0"}


def _cri_of_1(settings: ContainerdSettings) -> dict[str, Mapping[str, Value]]:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return {
        cri: {
            **_runtime(settings),
            **_streaming(),
            "sandbox_image": settings.sandbox_image,
        },
        f"{cri}.cni": {
            "bin_dir": str(settings.cni_plugins),
            "conf_dir": str(settings.cni_configurations),
        },
        f"{cri}.registry": {"config_path": str(settings.registries)},
        **_handler_tables(settings, cri),
        'plugins."io.containerd.nri.v1.nri"': {"disable": True},
    }


def _cri_of_2(settings: ContainerdSettings) -> dict[str, Mapping[str, Value]]:
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    images = "plugins.'io.containerd.cri.v1.images'"
    plugins = str(settings.cni_plugins)
    return {
        runtime: _runtime(settings),
        f"{runtime}.cni": {
            # 2.1 made a list of it.
            **({"bin_dirs": [plugins]} if settings.version >= (2, 1) else {"bin_dir": plugins}),
            "conf_dir": str(settings.cni_configurations),
        },
        **_handler_tables(settings, runtime),
        images: {"snapshotter": settings.snapshotter},
        f"{images}.pinned_images": {"sandbox": settings.sandbox_image},
        f"{images}.registry": {"config_path": str(settings.registries)},
        "plugins.'io.containerd.grpc.v1.cri'": _streaming(),
        "plugins.'io.containerd.nri.v1.nri'": {"disable": True},
    }
