"""An update of a config map reaches all pods that mount it, at once and whole.

The API server is a real one. The agent syncs its pods by the clock once an hour here: what reaches
them came by a watch.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, container, is_ready, shell, until_term
from tests.e2e.local import LocalCluster

PODS, READERS, UPDATES = 50, 3, 5
LINES = 2000
"""Of each file, so that it cannot be written in one step."""
START_SECONDS, UPDATE_SECONDS = 300, 120
MOUNT: Json = {"volumeMounts": [{"name": "conf", "mountPath": "/conf"}]}
CONF = {"name": "conf", "configMap": {"name": "settings"}}
READ = """
trap 'exit 0' TERM
while :; do
  folder=$(readlink /conf/..data)
  if cd "/conf/$folder" 2>/dev/null && both=$(cat a b 2>/dev/null); then
    [ "$(echo "$both" | uniq | wc -l)" = 1 ] || exit 9
  else
    [ "$folder" != "$(readlink /conf/..data)" ] || exit 9
  fi
done
"""
"""Fails once both files are not of one version, or one is missing in a folder that is shown."""


def data(version: int) -> Json:
    return {"data": dict.fromkeys(("a", "b"), f"{version}\n" * LINES)}


@pytest.fixture
def without_polling(local_cluster: LocalCluster) -> Iterator[None]:
    """The agent, which does nothing for pods that only time asks for."""
    local_cluster.restart_agent(syncFrequency="1h")
    yield
    local_cluster.restart_agent()


def test_updates_reach_fifty_pods_whole(
    local_cluster: LocalCluster, namespace: Namespace, without_polling: None
) -> None:
    namespace.create("ConfigMap", "settings", data(0))
    for number in range(PODS):
        main = shell("c", READ, **MOUNT) if number < READERS else until_term("c", **MOUNT)
        namespace.add(f"p-{number}", main, volumes=[CONF], nodeName=namespace.node)
    pods = namespace.wait_all(
        lambda found: len(found) == PODS and all(map(is_ready, found)),
        deadline_seconds=START_SECONDS,
    )
    root = local_cluster.agent.root
    volumes = [
        root / "pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~configmap/conf"
        for pod in pods
    ]
    for version in range(1, UPDATES + 1):
        namespace.api.patch(namespace.path("ConfigMap", "settings"), data(version))
        wait_shown(volumes, str(version))
    for pod in namespace.pods():
        assert container(pod)["restartCount"] == 0, "a reader in the container saw a mix"


def wait_shown(volumes: Sequence[Path], version: str) -> None:
    """Wait until all volumes show a version."""
    seen: list[str] = []

    def have_it() -> bool:
        seen[:] = map(shown, volumes)
        return set(seen) == {version}

    wait_until(have_it, deadline_seconds=UPDATE_SECONDS, else_say=lambda: f"{seen} are shown")


def shown(volume: Path) -> str:
    """The version that a volume shows, of which all lines of both files must be."""
    while True:
        folder = (volume / "..data").readlink()
        try:
            lines = [line for name in ("a", "b") for line in read(volume / folder / name)]
        except FileNotFoundError:
            assert folder != (volume / "..data").readlink(), "a file is missing"
            continue  # The folder was replaced meanwhile.
        assert len(lines) == 2 * LINES
        (version,) = set(lines)
        return version


def read(file: Path) -> list[str]:
    return file.read_text().splitlines()
