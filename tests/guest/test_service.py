"""The agent as a service of systemd: how it starts, ends and fails, and that pods never notice."""

import json
from collections.abc import Iterator

import pytest

from lab.agent import pod_manifest
from lab.images import SLEEPER
from tests.guest.node import CONFIGURATION, MANIFESTS, PACKAGING, UNIT, Containers, Node

# Runs the agent so that its sync loop hangs at a pod named `hangs`, while timers run on.
HANGING = """
import sys, trio
from trio_kubelet.cli import main
from trio_kubelet.sync.loop import SyncLoop
on_config = SyncLoop.on_config
async def hang(self, update):
    if any(pod.metadata.name.startswith("hangs-") for pod in update.pods):
        print("the loop hangs", file=sys.stderr)
        await trio.sleep_forever()
    await on_config(self, update)
SyncLoop.on_config = hang
main()
"""

# Runs in the unit, and writes down what it may do there. PER_LINUX32 is 8.
TRIES = """
import ctypes, json, os, pathlib, subprocess
def personality():
    if ctypes.CDLL(None, use_errno=True).personality(8) < 0:
        raise OSError(ctypes.get_errno(), "personality")
def mount():
    pathlib.Path("/run/mounted").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/mounted"], check=True)
def realtime():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
def tried(act):
    try:
        act()
    except Exception as error:
        return type(error).__name__
    return "done"
pathlib.Path("/run/tried").write_text(json.dumps({
    "another personality": tried(personality),
    "a realtime scheduler": tried(realtime),
    "a mount": tried(mount),
    "a cgroup": tried(pathlib.Path("/sys/fs/cgroup/tried").mkdir),
    "a negative OOM score": tried(
        lambda: pathlib.Path("/proc/self/oom_score_adj").write_text("-1000")
    ),
    "a program": tried(lambda: subprocess.run(["iptables", "--version"], check=True)),
}))
"""


# What shows in nothing else that a test could see within seconds.
UNIT_SAYS = {
    "OOMScoreAdjust": "-999",
    "KillMode": "process",
    "StartLimitIntervalUSec": "0",
    "TimeoutStartUSec": "10min",
    "TimeoutStopUSec": "20s",
}
WAITING = "waiting for the container runtime"


@pytest.fixture(scope="module")
def pod(node: Node) -> Iterator[str]:
    """A pod that runs through all tests of the module."""
    node.add(pod_manifest("steady", {"name": "main", "image": SLEEPER}))
    node.wait_for_pod("steady")
    yield "steady"
    node.remove("steady")


@pytest.fixture
def undisturbed(node: Node, pod: str) -> Iterator[Containers]:
    """The containers, which are the same ones after the test."""
    node.wait_for_pod(pod)
    before = node.containers()
    processes = node.processes()
    yield before
    node.wait_for_pod(pod)
    assert node.containers() == before
    assert node.processes() == processes


def test_the_units_have_nothing_that_systemd_wonders_about(node: Node) -> None:
    units = PACKAGING / "systemd"
    node.guest.write("/root/units/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
    for path in (each for each in units.rglob("*") if each.is_file()):
        node.guest.write(f"/root/units/{path.relative_to(units)}", path.read_bytes())
    for name in ("kubelet.service", UNIT):
        found = node.guest.call("systemd-analyze", "verify", f"/root/units/{name}")
        assert (found.status, found.stderr) == (0, b""), name
    node.guest.run("rm", "-r", "/root/units")


def wait_for_status(node: Node, text: str) -> None:
    """Wait until the service says that of itself."""
    node.wait_for(lambda: node.show("StatusText").startswith(text), lambda: node.show("StatusText"))


def test_its_status_and_its_journal_say_what_it_waits_for(
    node: Node, undisturbed: Containers
) -> None:
    assert node.show("StatusText") == "running"
    node.systemctl("stop", "containerd")
    try:
        wait_for_status(node, WAITING)
        node.systemctl("restart", UNIT)
        assert node.show("ActiveState") == "active"
        wait_for_status(node, WAITING)
    finally:
        node.systemctl("start", "containerd")
    wait_for_status(node, "running")
    written = node.guest.run("journalctl", "-b", "--output=json", f"_PID={node.pid}")
    entries = [json.loads(line) for line in written.splitlines()]
    levels = {"INFO": "6", "WARNING": "4", "ERROR": "3"}
    for entry in entries:
        assert entry["_SYSTEMD_UNIT"] == UNIT
        assert entry["SYSLOG_IDENTIFIER"] == "trio-kubelet"
        assert entry["PRIORITY"] == levels[entry["MESSAGE"].split()[1]]
    assert {"6", "4"} <= {entry["PRIORITY"] for entry in entries}


def test_a_restart_is_over_when_another_process_is_ready_and_the_same_containers_run(
    node: Node, undisturbed: Containers
) -> None:
    assert node.show("Type") == "notify"
    before = node.pid
    node.systemctl("restart", UNIT)
    assert node.show("ActiveState") == "active"
    # The port is opened beside the other parts, whose being there the service manager is told.
    health = "busybox wget -q -O - http://127.0.0.1:10248/healthz || true"
    node.wait_for(lambda: node.guest.run(health) == "ok", node.status)
    assert node.pid not in (0, before)


def test_a_reload_has_the_configuration_read_and_disturbs_nothing(
    node: Node, undisturbed: Containers
) -> None:
    before = node.pid
    node.systemctl("reload", UNIT)

    def told() -> str:
        return node.guest.run("journalctl", "-b", "--output=cat", f"_PID={before}")

    node.wait_for(lambda: "configuration reloaded" in told(), told)
    node.wait_for(lambda: node.show("ActiveState") == "active", lambda: node.show("ActiveState"))
    assert node.pid == before


def test_after_a_stop_it_is_inactive_and_containers_run_on(
    node: Node, undisturbed: Containers
) -> None:
    processes = node.processes()
    node.systemctl("stop", UNIT)
    assert node.show("ActiveState") == "inactive"
    assert (node.show("Result"), node.show("ExecMainStatus")) == ("success", "0")
    assert node.processes() == processes
    node.systemctl("start", UNIT)


def test_a_killed_agent_is_started_anew(node: Node, undisturbed: Containers) -> None:
    before, restarts = node.pid, int(node.show("NRestarts"))
    node.systemctl("kill", "--signal=KILL", "--kill-whom=main", UNIT)
    node.wait_for_another(before)
    assert int(node.show("NRestarts")) == restarts + 1


def test_a_signal_to_all_of_the_service_reaches_no_container(
    node: Node, undisturbed: Containers
) -> None:
    before = node.pid
    node.systemctl("kill", "--kill-whom=all", UNIT)
    node.wait_for_another(before)


def test_it_has_the_limits_that_the_unit_gives_it(node: Node) -> None:
    limits = node.process_file("limits")
    assert limits.split("Max open files")[1].split()[:2] == ["1048576", "1048576"]
    assert node.process_file("oom_score_adj") == "-999\n"
    # The agent would set its score by itself. A start may take as long as a slow machine needs.
    says = node.systemctl("show", UNIT, *(f"--property={name}" for name in UNIT_SAYS))
    assert dict(line.split("=") for line in says.split()) == UNIT_SAYS
    cgroup = node.process_file("cgroup").strip().removeprefix("0::")
    assert cgroup == f"/system.slice/{UNIT}"
    assert node.guest.read(f"/sys/fs/cgroup{cgroup}/pids.max") == b"max\n"


def test_its_unit_takes_from_it_what_it_needs_not_and_no_more(node: Node) -> None:
    analysed = json.loads(node.guest.run("systemd-analyze", "security", "--json=short", UNIT))
    taken = {each["json_field"].partition("_")[0] for each in analysed if each["set"]}
    assert {"LockPersonality", "RestrictRealtime", "SystemCallArchitectures"} <= taken
    node.guest.write("/root/tries.py", TRIES)
    tries = "ExecStartPost=/opt/trio-kubelet/bin/python /root/tries.py"
    with node.drop_in(tries, restart_after=False):
        assert json.loads(node.guest.read("/run/tried")) == {
            "another personality": "PermissionError",
            "a realtime scheduler": "PermissionError",
            "a mount": "done",
            "a cgroup": "done",
            "a negative OOM score": "done",
            "a program": "done",
        }
        assert "/run/mounted" in node.guest.run("cat", "/proc/1/mounts")
    node.guest.run("umount /run/mounted; rmdir /run/mounted /sys/fs/cgroup/tried")
    capabilities = (
        node.guest.run(f"grep CapBnd /proc/{pid}/status") for pid in (str(node.pid), "1")
    )
    assert len(set(capabilities)) == 1


def test_what_it_mounts_is_mounted_for_the_whole_machine(node: Node) -> None:
    own, first = (node.guest.run("readlink", f"/proc/{pid}/ns/mnt") for pid in (str(node.pid), "1"))
    assert own == first


def test_containers_have_no_share_in_its_cgroup(node: Node, undisturbed: Containers) -> None:
    cgroup = f"/sys/fs/cgroup/system.slice/{UNIT}"
    assert node.guest.run("cat", f"{cgroup}/cgroup.procs").split() == [str(node.pid)]


@pytest.fixture(scope="module")
def short_watchdog(node: Node, pod: str) -> Iterator[None]:
    """For the last tests: five seconds, and a sync loop that hangs at a pod named `hangs`."""
    node.guest.write("/root/hanging.py", HANGING)
    start = f"/opt/trio-kubelet/bin/python /root/hanging.py run --config={CONFIGURATION}"
    with node.drop_in(f"WatchdogSec=5\nExecStart=\nExecStart={start}"):
        yield


def test_when_systemd_executes_itself_anew_the_watchdog_goes_on(
    node: Node, short_watchdog: None, undisturbed: Containers
) -> None:
    before = node.pid
    node.systemctl("daemon-reexec")
    seen = {node.show("WatchdogTimestampMonotonic")}

    def is_fed_twice() -> bool:
        seen.add(node.show("WatchdogTimestampMonotonic"))
        return len(seen) == 3

    node.wait_for(is_fed_twice, lambda: f"the watchdog was fed at {seen}")
    assert node.pid == before


def test_an_agent_that_stands_still_is_ended_and_started_anew(
    node: Node, short_watchdog: None, undisturbed: Containers
) -> None:
    before, since = node.pid, node.now()
    node.guest.run("kill", "-STOP", str(before))
    node.wait_for_another(before)
    said = node.log(since)
    assert "Watchdog timeout" in said
    assert "Fatal Python error: Aborted" in said


def test_an_agent_whose_loop_hangs_is_ended_and_started_anew(
    node: Node, short_watchdog: None, undisturbed: Containers
) -> None:
    before, since = node.pid, node.now()
    node.add(pod_manifest("hangs", {"name": "main", "image": SLEEPER}))
    node.wait_for(lambda: "the loop hangs" in node.log(since), lambda: "it does not hang")
    node.guest.run("rm", f"{MANIFESTS}/hangs.json")
    node.wait_for_another(before)
    assert "Watchdog timeout" in node.log(since)
