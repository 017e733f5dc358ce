"""What kubeadm's project leaves on machines and in clusters, and the guide to joining them."""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from lab.control_plane import ADVERTISED, ControlPlane
from lab.guest.recipe import REPOSITORY
from lab.processes import run
from tests.e2e.guide import Block, read_guide

GUIDE = read_guide((REPOSITORY / "docs" / "joining.md").read_text())
# Of the API server: nodes sign their serving certificates themselves.
SERVER_FLAGS = ("--kubelet-certificate-authority=",)
SETTINGS: Mapping[str, object] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
}
PRINTED = re.compile(r"--token (?P<TOKEN>\S+) --discovery-token-ca-cert-hash (?P<CA_HASH>\S+)")

# What the packages of kubeadm's project install.
KUBELET_UNIT = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
"""
KUBEADM_DROP_IN = """\
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS \
$KUBELET_EXTRA_ARGS
"""
UNIT_FILES: Mapping[str, str] = {
    "/usr/lib/systemd/system/kubelet.service": KUBELET_UNIT,
    "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": KUBEADM_DROP_IN,
}


def blocks(section: str) -> tuple[Block, ...]:
    """The commands of a section of docs/joining.md."""
    return tuple(each for each in GUIDE if each.section == section and each.who != "example")


def leave_what_kubeadm_init_leaves(plane: ControlPlane, kubeadm: Path, folder: Path) -> None:
    """The cluster's configuration in its config maps, and what lets nodes read them and join."""
    ours = {"apiVersion": "kubeadm.k8s.io/v1beta4"}
    endpoint = {"advertiseAddress": ADVERTISED, "bindPort": plane.port}
    documents = (
        {**ours, "kind": "InitConfiguration", "localAPIEndpoint": endpoint},
        {
            **ours,
            "kind": "ClusterConfiguration",
            "kubernetesVersion": plane.version,
            "controlPlaneEndpoint": plane.endpoint,
        },
        SETTINGS,
    )
    configuration = folder / "kubeadm.yaml"
    configuration.write_text(yaml.safe_dump_all(documents))
    for phase in (("upload-config", "all"), ("bootstrap-token", "--skip-token-print")):
        run(
            [
                *(kubeadm, "init", "phase", *phase, f"--config={configuration}"),
                f"--kubeconfig={plane.folder / 'admin.conf'}",
            ]
        )
