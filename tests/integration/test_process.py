"""The real program as its user and systemd see it; on the hollow runtime where that is enough."""

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from lab.agent import LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.images import SLEEPER
from lab.orphans import cgroup_of_ours
from lab.ports import free_port
from lab.processes import wait_until

START_SECONDS = 60
END_SECONDS = 30

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

CONTAINER = {"name": "main", "image": "busybox", "command": ["sleep", "1000"]}

AS_NOBODY = """
import encodings.utf_8_sig, os, sys
import trio_kubelet.agent.main, trio_kubelet.cli.commands, trio_kubelet.telemetry.log
from trio_kubelet.cli.start import start
os.setuid(65534)
sys.exit(start(sys.argv[1:], "trio-kubelet run"))
"""

WITHOUT_OPENAT2 = """
import ctypes, struct, sys
from trio_kubelet.cli.start import start
libc = ctypes.CDLL(None, use_errno=True)
LOAD_NUMBER, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ENOSYS = 0x7FFF0000, 0x00050000 | 38
code = b"".join(struct.pack("HBBI", *line) for line in (
    (LOAD_NUMBER, 0, 0, 0), (IF_EQUAL, 0, 1, 437), (RETURN, 0, 0, ENOSYS), (RETURN, 0, 0, ALLOW),
))
lines = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(lines))
assert libc.prctl(38, 1, 0, 0, 0) == 0, "no_new_privs"
assert libc.prctl(22, 2, program) == 0, "seccomp"
sys.exit(start(sys.argv[1:], "trio-kubelet run"))
"""
"""An agent under a seccomp filter that answers openat2 as a kernel before Linux 5.6 does."""


class Program:
    """One run of `trio-kubelet run` with what it writes to its streams, together, in a file."""

    def __init__(self, folder: Path, *words: str, code: str = "", **environment: str) -> None:
        self.log = folder / f"program-{len(list(folder.glob('program-*')))}.log"
        command = [sys.executable, *(["-c", code] if code else ["-m", "trio_kubelet", "run"])]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, words: str) -> None:
        wait_until(
            lambda: words in self.said or self.process.poll() is not None,
            deadline_seconds=START_SECONDS,
            else_say=lambda: f"it never said {words!r}: {self.said}",
        )
        assert words in self.said, self.said

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.ended()

    def ended(self) -> int:
        return self.process.wait(START_SECONDS)


Run = Callable[..., Program]


@pytest.fixture
def configuration(tmp_path: Path) -> dict[str, object]:
    """The configuration that `run` writes down; a test changes what matters to it."""
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(manifests),
        "podLogsDir": str(tmp_path / "logs"),
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "healthzPort": 0,
        "enableServer": False,
    }


@pytest.fixture
def run(tmp_path: Path, configuration: dict[str, object]) -> Iterator[Run]:
    """Starts agents that end with the test: `run(root="root", hollow=True, *flags)`."""
    programs: list[Program] = []

    def run(
        *flags: str, root: str = "root", hollow: bool = True, code: str = "", **environment: str
    ) -> Program:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(configuration))
        words = [f"--config={config}", f"--root-dir={tmp_path / root}", *flags]
        words += ["--hollow"] if hollow else []
        program = Program(tmp_path, *words, code=code, **environment)
        programs.append(program)
        return program

    yield run
    for program in programs:
        program.process.kill()
        program.process.wait()


def answers(root: Path) -> bool:
    """Whether an agent answers on the socket of that root folder."""
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(str(root / "agent.sock"))
            agent.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            return b" 200 OK" in agent.recv(4096)
    except OSError:
        return False


def wait_for_answers(root: Path) -> None:
    wait_until(
        lambda: answers(root),
        deadline_seconds=START_SECONDS,
        else_say=lambda: "the agent does not answer",
    )


def error_lines(program: Program) -> list[str]:
    return [line for line in program.said.splitlines() if line.startswith("trio-kubelet: ")]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_agent_quickly_and_well(
    how: signal.Signals, run: Run, tmp_path: Path
) -> None:
    program = run()
    wait_for_answers(tmp_path / "root")
    program.process.send_signal(how)
    assert program.process.wait(END_SECONDS) == 0
    assert how.name in program.said
    assert "Traceback" not in program.said


def give_reader(fifo: Path, program: Program, text: str, *, then: str) -> None:
    """Write a text for the one who reads the named pipe; who reads it next finds another file."""
    writer = -1

    def is_read() -> bool:
        nonlocal writer
        try:
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        return writer >= 0

    wait_until(is_read, deadline_seconds=START_SECONDS, else_say=lambda: program.said)
    (fifo.parent / "next").write_text(then)
    (fifo.parent / "next").rename(fifo)
    with open(writer, "w") as file:
        file.write(text)


def test_a_hangup_before_the_configuration_is_read_has_it_read_once_more(
    run: Run, tmp_path: Path, configuration: dict[str, object]
) -> None:
    """A named pipe among the drop-ins holds the agent up where it reads its configuration."""
    fifo = tmp_path / "drop-ins" / "late.conf"
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    header = {name: configuration[name] for name in ("apiVersion", "kind")}
    program = run(f"--config-dir={fifo.parent}")
    wait_until(
        lambda: holds_back(program.process.pid, signal.SIGHUP),
        deadline_seconds=START_SECONDS,
        else_say=lambda: program.said,
    )
    program.process.send_signal(signal.SIGHUP)
    changed = json.dumps({**header, "registryBurst": 20})
    give_reader(fifo, program, json.dumps(header), then=changed)
    program.wait_for("registryBurst: 10 -> 20")
    assert program.end() == 0


def holds_back(pid: int, number: signal.Signals) -> bool:
    """Whether a process has blocked a signal; it may have ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigBlk:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_hangups_while_the_agent_ends_change_nothing_about_its_end(
    run: Run, tmp_path: Path
) -> None:
    program = run()
    wait_for_answers(tmp_path / "root")
    program.process.send_signal(signal.SIGTERM)

    def ended() -> bool:
        program.process.send_signal(signal.SIGHUP)
        return program.process.poll() is not None

    wait_until(ended, deadline_seconds=END_SECONDS, else_say=lambda: program.said)
    assert program.process.returncode == 0


def test_a_signal_ends_an_agent_that_still_waits_for_the_lock(run: Run, tmp_path: Path) -> None:
    lock = f"--lock-file={tmp_path / 'lock'}"
    run(lock)
    wait_for_answers(tmp_path / "root")
    second = run(lock, root="other")
    second.wait_for("waiting for the lock file")
    assert second.end() == 0


def test_the_next_agent_takes_the_lock_when_the_first_has_ended(run: Run, tmp_path: Path) -> None:
    lock = f"--lock-file={tmp_path / 'lock'}"
    first = run(lock)
    wait_for_answers(tmp_path / "root")
    second = run(lock)
    second.wait_for("waiting for the lock file")
    assert first.process.poll() is None
    first.end(signal.SIGKILL)
    wait_for_answers(tmp_path / "root")
    assert second.process.poll() is None


def test_with_exit_on_lock_contention_the_first_makes_way(run: Run, tmp_path: Path) -> None:
    flags = (f"--lock-file={tmp_path / 'lock'}", "--exit-on-lock-contention")
    first = run(*flags)
    wait_for_answers(tmp_path / "root")
    second = run(*flags)
    assert first.ended() == 0
    assert "somebody else wants the lock file" in first.said
    wait_for_answers(tmp_path / "root")
    assert second.process.poll() is None


def test_the_agents_socket_and_ports_answer(
    run: Run, tmp_path: Path, configuration: dict[str, object]
) -> None:
    health, pods = free_port(), free_port()
    configuration |= {"healthzPort": health, "readOnlyPort": pods}
    run()
    wait_for_answers(tmp_path / "root")
    mode = (tmp_path / "root" / "agent.sock").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    for port in (health, pods):
        answer = httpx.get(f"http://127.0.0.1:{port}/healthz?verbose")
        assert answer.text == "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"
    assert httpx.head(f"http://127.0.0.1:{health}/healthz/syncloop").status_code == 200
    assert httpx.get(f"http://127.0.0.1:{health}/pods").status_code == 404
    assert httpx.get(f"http://127.0.0.1:{pods}/pods").json()["kind"] == "PodList"
    assert httpx.get(f"http://127.0.0.1:{pods}/debug/journal").status_code == 404
    assert httpx.post(f"http://127.0.0.1:{pods}/pods").status_code == 405


def test_people_can_look_at_pods_and_at_their_history(run: Run, tmp_path: Path) -> None:
    manifest = pod_manifest("web", CONTAINER)
    (tmp_path / "manifests" / "web.json").write_text(json.dumps(manifest))
    run()
    wait_for_answers(tmp_path / "root")

    def shown(*words: str) -> str:
        command = [sys.executable, "-m", "trio_kubelet", *words, f"--root-dir={tmp_path / 'root'}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    wait_until(
        lambda: "Running" in shown("pods"),
        deadline_seconds=START_SECONDS,
        else_say=lambda: shown("pods"),
    )
    assert shown("pods").splitlines()[1].split()[2:5] == ["1/1", "Running", "0"]
    assert json.loads(shown("pods", "-o", "json"))["items"][0]["status"]["phase"] == "Running"
    story = shown("timeline", "web")
    assert "all containers started after" in story
    assert "Container started" in story
    assert "Waiting → Running" in story


def test_a_port_that_is_taken_is_one_line_and_exit_code_1(
    run: Run, configuration: dict[str, object]
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        configuration["healthzPort"] = port
        program = run()
        assert program.ended() == 1
    (line,) = error_lines(program)
    assert f"healthzPort: cannot listen on 127.0.0.1:{port}: Address already in use" in line
    assert "Traceback" not in program.said


def test_two_agents_cannot_share_a_root_folder(run: Run, tmp_path: Path) -> None:
    first = run()
    wait_for_answers(tmp_path / "root")
    second = run()
    assert second.ended() == 1
    (line,) = error_lines(second)
    assert "agent.sock: another process listens on this socket" in line
    assert first.process.poll() is None
    wait_for_answers(tmp_path / "root")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--exit-on-lock-contention",), "no lock file specified, set --lock-file"),
        (("--lock-file=/no/such/folder/lock",), "--lock-file: /no/such/folder/lock: No such file"),
    ],
)
def test_flags_that_cannot_be_followed_are_one_line_and_exit_code_1(
    flags: tuple[str, ...], words: str, run: Run
) -> None:
    program = run(*flags)
    assert program.ended() == 1
    assert words in program.said
    assert program.said.count("\n") == 1


def test_a_kernel_without_openat2_is_refused_in_one_line(run: Run) -> None:
    program = run(code=WITHOUT_OPENAT2)
    assert program.ended() == 1
    (line,) = error_lines(program)
    assert "the system call openat2 is needed" in line
    assert "Linux 5.6 or newer" in line


@NEEDS_ROOT
def test_an_endpoint_that_cannot_be_one_is_one_line_and_exit_code_1(
    run: Run, configuration: dict[str, object]
) -> None:
    configuration["containerRuntimeEndpoint"] = "http://somewhere"
    program = run(hollow=False)
    assert program.ended() == 1
    assert "containerRuntimeEndpoint" in program.said
    assert "must be a unix socket" in program.said
    assert program.said.count("\n") == 1, program.said


@NEEDS_ROOT
def test_without_root_a_real_runtime_is_one_line_and_exit_code_1(
    run: Run, configuration: dict[str, object]
) -> None:
    # Not below the folder of pytest, which each run of it closes to others.
    with TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        config = Path(open_to_all) / "config.json"
        config.write_text(json.dumps(configuration))
        program = run(f"--config={config}", hollow=False, code=AS_NOBODY)
        assert program.ended() == 1
    assert "must be run as root" in program.said
    assert program.said.count("\n") == 1, program.said


class Manager:
    """The service manager's end of $NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.heard: list[str] = []

    def wait_for(self, message: str) -> str:
        """Listen until a message begins like that; returns all of it."""
        self.socket.settimeout(START_SECONDS)
        while True:
            self.heard.append(self.socket.recv(4096).decode())
            if self.heard[-1].startswith(message):
                return self.heard[-1]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify"))
    with closing(manager.socket):
        yield manager


def test_the_service_manager_hears_how_the_agent_does(
    run: Run, manager: Manager, tmp_path: Path
) -> None:
    program = run(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="300000")
    manager.wait_for("READY=1")
    manager.wait_for("WATCHDOG=1")
    manager.wait_for("WATCHDOG=1")
    if "STATUS=running" not in manager.heard:
        manager.wait_for("STATUS=running")
    program.process.terminate()
    manager.wait_for("STOPPING=1")
    assert program.ended() == 0


@NEEDS_ROOT
def test_a_runtime_that_is_not_there_is_waited_for(
    run: Run, manager: Manager, tmp_path: Path, configuration: dict[str, object]
) -> None:
    configuration["containerRuntimeEndpoint"] = f"unix://{tmp_path / 'nobody.sock'}"
    configuration["cgroupRoot"] = f"/{cgroup_of_ours('program')}"
    program = run(hollow=False, NOTIFY_SOCKET=str(tmp_path / "notify"))
    status = manager.wait_for("STATUS=")
    assert status.startswith("STATUS=waiting for the container runtime: ")
    if "READY=1" not in manager.heard:
        manager.wait_for("READY=1")
    wait_for_answers(tmp_path / "root")
    assert program.process.poll() is None
    assert program.said.count("waiting for the container runtime") == 1
    assert program.end() == 0


def test_containers_run_on_when_the_agent_ends_and_belong_to_the_next(
    containerd: Containerd, tmp_path: Path
) -> None:
    with LabAgent(tmp_path / "node", endpoint=containerd.endpoint) as agent:
        agent.write("web.json", pod_manifest("web", {"name": "main", "image": SLEEPER}))
        before = ids(agent)
        code, running = agent.stop(), containerd.ctr("tasks", "ls")
        agent.start()
        assert code == 0
        assert all(each in running for each in before)
        assert ids(agent) == before


def ids(agent: LabAgent) -> list[str]:
    """The ids of the containers, once they run."""
    pods = agent.wait_for(lambda pods: bool(pods) and all(map(is_running, pods.values())))
    return [
        status["containerID"].rpartition("/")[2]
        for pod in pods.values()
        for status in pod["status"]["containerStatuses"]
    ]


def test_a_threshold_has_been_crossed_for_as_long_when_the_agent_was_killed(
    run: Run, configuration: dict[str, object], tmp_path: Path
) -> None:
    configuration["evictionSoft"] = {"memory.available": "99.9%"}
    configuration["evictionSoftGracePeriod"] = {"memory.available": "1h"}
    first = run()
    before = record_of_pressures(tmp_path / "root", first)
    first.end(signal.SIGKILL)
    after = record_of_pressures(tmp_path / "root", run(), newer_than_ns=before["observedAtNs"])
    (was,), (stays,) = before["thresholds"], after["thresholds"]
    moved_by_ns = abs(stays["crossedSinceNs"] - was["crossedSinceNs"])
    assert moved_by_ns < 1e9, "the machine's clock may be corrected meanwhile, by less"


def record_of_pressures(root: Path, agent: Program, newer_than_ns: int = 0) -> Any:
    """Wait until an agent has written down an observation that is newer; the record."""
    file = root / "pressures.json"
    wait_until(
        lambda: file.exists() and json.loads(file.read_bytes())["observedAtNs"] > newer_than_ns,
        deadline_seconds=START_SECONDS,
        else_say=lambda: agent.said,
    )
    return json.loads(file.read_bytes())
