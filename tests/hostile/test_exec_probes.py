"""What large commands of exec probes do to nobody else, however long they run."""

from pathlib import Path

from lab.agent import LabAgent, pod_manifest
from tests.hostile.served_runtime import served_runtime
from tests.hostile.victims import Victims

CONTAINERS = 60
PROBES = 2 * CONTAINERS
RUN_SECONDS = 30
DEADLINE_SECONDS = 300


def test_large_commands_that_run_long(tmp_path: Path) -> None:
    """Two megabytes each, as many arguments as Linux takes, of which most run together."""
    command = ["sh", "-c", f"sleep {RUN_SECONDS}", *["$(V)" * 24] * 17]
    probe = {"exec": {"command": command}, "periodSeconds": 1, "timeoutSeconds": 60}
    container = {
        "image": "one",
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "V", "value": "x" * 5000}],
        "readinessProbe": probe,
        "livenessProbe": probe,
    }
    manifest = pod_manifest("hostile", *({"name": f"c{n}", **container} for n in range(CONTAINERS)))
    with (
        served_runtime(has_events=True) as runtime,
        LabAgent(tmp_path, endpoint=f"unix://{runtime.socket}") as agent,
    ):
        victims = Victims.of(agent, {"name": "c", "image": "good"})
        with victims.beside(manifest):
            victims.wait_probed("hostile", PROBES, DEADLINE_SECONDS)
