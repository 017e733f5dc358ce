"""What a simulated pod is like: its document, as its owner wants it, and what must become of it.

A pod whose containers nobody kills ends up as its fate says, whatever happens to agent and runtime.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from attrs import evolve, frozen

from trio_kubelet.k8s import Quantity
from trio_kubelet.resources import milli_cpu_to_shares
from trio_kubelet.resources.cgroup_config import MAX_SHARES

REGISTRY = "registry.example.com"
UNREACHABLE = "unreachable.example.com"
PRIVATE = "private.example.com"
POD_RESOURCES = {
    "requests": {"cpu": "100m", "memory": "16Mi"},
    "limits": {"cpu": "200m", "memory": "64Mi"},
}
"""What some pods ask for as a whole (KEP-2837): more than their containers do together."""
STORAGE = "ephemeral-storage"
DEVICE = "example.com/device"
"""The resource of the device plugin."""
TOO_MUCH_CPU = "1000"
"""The registry whose images one has to log in for."""
PRIVATE_IMAGES = tuple(f"{PRIVATE}/app:{number}" for number in (1, 2))
LOGIN = "login"
"""The pull secret for it, which pods of the API may name."""
NAMESPACE = "default"
SETTINGS = ("settings-1", "settings-2", "settings-3")
"""Config maps that pods share."""
PASSWORDS = ("password-1", "password-2")
"""Secrets that pods share."""
ACCOUNT = "default"
"""The service account of all pods."""
CSI_DRIVER = "csi.example.com"
"""The driver of claimed volumes, and of those that are made for one pod."""
DRA_DRIVER = "dra.example.com"
"""The driver of resource claims."""
RESOURCE_CLAIM_NAMES = ("gpu-1", "gpu-2", "gpu-3")
"""Resource claims that pods share."""
CLAIMS = ("data-1", "data-2", "data-3")
"""Claims that pods share, each bound to a volume of the driver."""
TOKEN_SECONDS = 600
"""How long the token of a pod is good for: the API allows no less."""

RESTARTS_ALL = 42
"""The exit code by which a container restarts all of its pod."""
RETRIED = 7
"""The exit code by which a rule restarts a container that never restarts otherwise."""

Document = Mapping[str, Any]


class Fate(StrEnum):
    """What becomes of a pod that is left alone."""

    RUNS = "runs"
    SUCCEEDS = "succeeds"
    FAILS = "fails"
    CRASHES = "crashes"
    """Its containers run and end and run again, for ever."""
    WAITS = "waits"
    """It never gets a regular container started."""


@frozen(kw_only=True)
class Shape:
    """A pod as its owner wants it."""

    document: Document
    fate: Fate

    @property
    def uid(self) -> str:
        """metadata.uid, which each document has."""
        return str(self.document["metadata"]["uid"])

    @property
    def name(self) -> str:
        """metadata.name."""
        return str(self.document["metadata"]["name"])

    def with_uid(self, uid: str) -> "Shape":
        """The same pod under the UID that somebody gave it."""
        metadata = {**self.document["metadata"], "uid": uid}
        return evolve(self, document={**self.document, "metadata": metadata})

    @property
    def never_restarts(self) -> bool:
        """Whether no container of the pod may run twice."""
        return bool(self.document["spec"].get("restartPolicy") == "Never")

    @property
    def images(self) -> Mapping[str, str]:
        """The image of each container by its name."""
        spec = self.document["spec"]
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        return {container["name"]: container["image"] for container in containers}

    @property
    def amounts(self) -> Mapping[str, tuple[int, int]]:
        """Shares of cpu and memory limit in bytes of each container, by its name; of those that
        ask for any.
        """
        spec = self.document["spec"]
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        return {
            each["name"]: (
                milli_cpu_to_shares(Quantity(each["resources"]["requests"]["cpu"]).milli_value),
                Quantity(each["resources"]["limits"]["memory"]).value,
            )
            for each in containers
            if "resources" in each
        }

    @property
    def cpu_limits(self) -> Mapping[str, int]:
        """The limits of containers in millicores, by their names. Who has one is Guaranteed."""
        spec = self.document["spec"]
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        limits = {each["name"]: each.get("resources", {}).get("limits", {}) for each in containers}
        return {n: Quantity(each["cpu"]).milli_value for n, each in limits.items() if "cpu" in each}

    @property
    def cpus(self) -> Mapping[str, int]:
        """The numbers of CPUs that containers are to have for themselves, by their names."""
        limits = self.cpu_limits.items()
        return {name: milli // 1000 for name, milli in limits if milli % 1000 == 0}

    @property
    def devices(self) -> Mapping[str, int]:
        """The numbers of devices that containers ask for, by their names."""
        containers = self.document["spec"]["containers"]
        limits = {each["name"]: each.get("resources", {}).get("limits", {}) for each in containers}
        return {name: int(each[DEVICE]) for name, each in limits.items() if DEVICE in each}

    @property
    def storage_limit_bytes(self) -> int:
        """The least that one of its containers may use of the disk, 0 if none has a limit."""
        spec = self.document["spec"]
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        limits = [each.get("resources", {}).get("limits", {}) for each in containers]
        given = [Quantity(each[STORAGE]).value for each in limits if STORAGE in each]
        return min(given, default=0)

    @property
    def asks_for_too_much(self) -> bool:
        """Whether the node will never allocate what the pod asks for."""
        return any(shares == MAX_SHARES for shares, _ in self.amounts.values())

    @property
    def has_limits(self) -> bool:
        """Whether the pod as a whole has limits."""
        return "resources" in self.document["spec"]

    @property
    def has_login(self) -> bool:
        """Whether the pod may use private images."""
        return "imagePullSecrets" in self.document["spec"]

    @property
    def restarting_names(self) -> frozenset[str]:
        """The containers whose exit may restart all of the pod."""
        return self._names_with_rules("RestartAllContainers")

    @property
    def retried_names(self) -> frozenset[str]:
        """The containers that run once more after an exit of `RETRIED` alone."""
        return self._names_with_rules("Restart")

    def _names_with_rules(self, action: str) -> frozenset[str]:
        return frozenset(
            container["name"]
            for container in self.document["spec"]["containers"]
            if any(rule["action"] == action for rule in container.get("restartPolicyRules", ()))
        )

    @property
    def has_own_ids(self) -> bool:
        """Whether the pod runs in a user namespace of its own."""
        return self.document["spec"].get("hostUsers") is False

    @property
    def has_deadline(self) -> bool:
        """Whether the pod may run for some time only."""
        return "activeDeadlineSeconds" in self.document["spec"]

    @property
    def post_start_seconds(self) -> float:
        """How long the first container's postStart hook sleeps; nobody looks at it meanwhile."""
        hooks = self.document["spec"]["containers"][0].get("lifecycle", {})
        return float(hooks["postStart"]["sleep"]["seconds"]) if "postStart" in hooks else 0.0

    @property
    def wants_port(self) -> bool:
        """Whether the pod can be rejected because another one has its port."""
        return any("ports" in container for container in self.document["spec"]["containers"])

    @property
    def shared(self) -> str:
        """The config map or secret that the pod has in a volume; empty if it has none."""
        for volume in self._volumes:
            if "configMap" in volume:
                return str(volume["configMap"]["name"])
            if "secret" in volume:
                return str(volume["secret"]["secretName"])
        return ""

    @property
    def has_token(self) -> bool:
        """Whether the pod has a token of its service account in a volume."""
        return any("projected" in volume for volume in self._volumes)

    @property
    def claims(self) -> tuple[str, ...]:
        """The claims whose volumes the pod has."""
        claimed = [each["persistentVolumeClaim"] for each in self._volumes if is_claim(each)]
        return tuple(each["claimName"] for each in claimed)

    @property
    def resource_claims(self) -> tuple[str, ...]:
        """The resource claims whose devices the pod's containers have."""
        claims = self.document["spec"].get("resourceClaims", ())
        return tuple(each["resourceClaimName"] for each in claims)

    @property
    def csi_volumes(self) -> tuple[str, ...]:
        """The volumes that the CSI driver publishes for the pod, as folders name them."""
        inline = (each["name"] for each in self._volumes if "csi" in each)
        return (*map(persistent_name, self.claims), *inline)

    @property
    def _volumes(self) -> Sequence[Document]:
        volumes: Sequence[Document] = self.document["spec"].get("volumes", ())
        return volumes

    @property
    def init_names(self) -> tuple[str, ...]:
        """The init containers in their order, sidecars included."""
        return tuple(c["name"] for c in self.document["spec"].get("initContainers", ()))

    @property
    def sidecar_names(self) -> frozenset[str]:
        """The init containers that run as long as the pod."""
        containers = self.document["spec"].get("initContainers", ())
        return frozenset(c["name"] for c in containers if "restartPolicy" in c)

    @property
    def regular_names(self) -> tuple[str, ...]:
        """The names of spec.containers."""
        return tuple(c["name"] for c in self.document["spec"]["containers"])


def is_claim(volume: Document) -> bool:
    """Whether a volume of a pod is one that was claimed."""
    return "persistentVolumeClaim" in volume


def persistent_name(claim: str) -> str:
    """The name of the volume that a claim is bound to."""
    return f"volume-of-{claim}"
