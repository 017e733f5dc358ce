"""The provider `guest`: the node is a machine with systemd, of a control plane here.

The agent is the service of a guest of the lab (`lab/guest`), which joins with a bootstrap token.
The API server listens where guests reach the host, and nowhere else.
"""

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lab.cluster_api import ClusterApi, Json
from lab.control_plane import ControlPlane
from lab.guest.guest import Guest
from lab.guest.image import GuestImage
from lab.guest.network import GuestNetwork
from lab.started import Started
from tests.e2e.cluster import AdministeredCluster, Cluster
from tests.guest.node import MANIFESTS, UNIT, Node, build_wheel

NODE = "guest-node"
READY_DEADLINE_SECONDS = 240
# Pods of a class that the API server does not know come to the node, too.
SERVER_FLAGS = ("--disable-admission-plugins=RuntimeClass",)


class ClusterOfGuests(AdministeredCluster, Started):
    """A control plane here, and guests in its network as nodes; a context manager."""

    def __init__(self, folder: Path, version: str, *, server_flags: tuple[str, ...] = ()) -> None:
        self.network = GuestNetwork()
        self._folder = folder
        self._version = version
        self._server_flags = server_flags
        self._running = ExitStack()
        self._plane: ControlPlane | None = None

    @property
    def control_plane(self) -> ControlPlane:
        """There once started."""
        assert self._plane is not None, "not started"
        return self._plane

    @property
    def api(self) -> ClusterApi:
        return self.control_plane.api

    def start(self) -> None:
        """Start the control plane, and the machines as its nodes, which are usable then."""
        with ExitStack() as running:
            running.enter_context(self.network)
            self._plane = running.enter_context(
                ControlPlane(
                    self._folder / "control-plane",
                    version=self._version,
                    address=self.network.host_address,
                    server_flags=self._server_flags,
                )
            )
            self.start_nodes(running)
            self._running = running.pop_all()

    @abstractmethod
    def start_nodes(self, running: ExitStack) -> None:
        """Start the machines, which end with `running`, let them join, and wait for the nodes."""

    def stop(self) -> None:
        """End it all. Nothing of the machines is kept, so pods need not go first."""
        self._running.close()

    def kubectl(self, *words: str, stdin: str | Mapping[str, Any] = "") -> str:
        return self.control_plane.kubectl(*words, stdin=stdin)

    def kubectl_command(self, *words: str) -> list[str]:
        return self.control_plane.kubectl_command(*words)


class GuestCluster(ClusterOfGuests, Cluster):
    """A control plane, and a machine as its node; `machine` is the service there."""

    def __init__(self, folder: Path, image: GuestImage, version: str) -> None:
        super().__init__(folder, version, server_flags=SERVER_FLAGS)
        self.node = NODE
        guest = Guest(folder / "guest", image=image, name=NODE, network=self.network)
        self.machine = Node(guest)

    def start_nodes(self, running: ExitStack) -> None:
        running.enter_context(self.machine.guest)
        self.machine.install(build_wheel(self._folder / "wheel"))
        self.machine.join(self.control_plane)
        self.wait_node_ready(deadline_seconds=READY_DEADLINE_SECONDS)

    def start_agent(self) -> None:
        self.machine.systemctl("start", UNIT)

    def stop_agent(self) -> None:
        self.machine.systemctl("stop", UNIT)

    def kill_agent(self) -> None:
        # Its unit would start it again by itself; `start_agent` is to do that.
        self.machine.guest.run(f"systemctl kill --signal KILL {UNIT}; systemctl stop {UNIT}")

    def stop_api_server(self) -> None:
        self.control_plane.stop_api_server()

    def start_api_server(self) -> None:
        self.control_plane.start_api_server()

    def add_static_pod(self, manifest: Json) -> None:
        self.machine.add(manifest)

    def remove_static_pod(self, name: str) -> None:
        self.machine.guest.run("rm", f"{MANIFESTS}/{name}.json")

    def last_words(self) -> str:
        return f"{self.machine.guest.last_words()}\n{self.control_plane.last_words()}"
