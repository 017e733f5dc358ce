"""An agent in a user namespace, where the kernel lets it do less than root."""

from pathlib import Path

from lab.agent import LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.images import SLEEPER

INSIDE = ("unshare", "--user", "--map-root-user", "--mount")


def test_an_agent_in_a_user_namespace_runs_pods_and_says_what_it_may_not(
    containerd: Containerd, tmp_path: Path
) -> None:
    name = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
    volumes = [
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "pod", "downwardAPI": {"items": [name]}},
    ]
    mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
    container = {"name": "main", "image": SLEEPER, "volumeMounts": mounts}
    with LabAgent(tmp_path / "node", endpoint=containerd.endpoint, run_by=INSIDE) as agent:
        agent.write("web.json", pod_manifest("web", container, volumes=volumes))
        agent.wait_for(lambda pods: bool(pods) and all(map(is_running, pods.values())))
    said = agent.log.read_text()
    assert said.count("OOM score adjustment failed") == 1
    assert said.count("kernel log read failed") == 1
    assert "Traceback" not in said
