"""`kubectl logs` through the API server: what pods have printed, and why there is nothing."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from lab import LabError
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, is_over, is_ready, shell, until_term
from tests.e2e.local import LocalCluster

MANY = 200_000
ROTATIONS = 20
# Less than what a log is rotated at, with the times before its lines: what was before that is told
# to those who follow alone, by the Go kubelet, too.
MEBIBYTES = int(os.environ.get("TRIO_KUBELET_E2E_MEBIBYTES", "6"))


def test_what_a_pod_has_printed_is_told(namespace: Namespace) -> None:
    script = "echo out; echo err >&2; head -c 40000 /dev/zero | tr '\\0' x; echo; echo last"
    containers = until_term("c", script), shell("other", "echo else")
    namespace.add("talks", *containers, restartPolicy="OnFailure")
    namespace.wait("talks", lambda pod: "started" in str(pod["status"]))
    said = _said(namespace, "talks", "-c", "c", until="last\n")
    assert sorted(said.splitlines()) == ["err", "last", "out", "x" * 40_000]
    assert namespace.kubectl("logs", "talks", "-c", "c", "--tail=1") == "last\n"
    assert namespace.kubectl("logs", "talks", "-c", "c", "--limit-bytes=3") in ("out", "err")
    stamped = namespace.kubectl("logs", "talks", "-c", "c", "--timestamps", "--since=1h")
    assert {len(line.split(" ")[0]) for line in stamped.splitlines()} == {30}
    assert _said(namespace, "talks", "-c", "other", until="else\n") == "else\n"
    every = namespace.kubectl("logs", "talks", "--all-containers", "--prefix").splitlines()
    assert {"[pod/talks/c] last", "[pod/talks/other] else"} <= set(every)
    assert namespace.kubectl("logs", "talks", "-c", "c", "--since-time=2999-01-01T00:00:00Z") == ""
    [since] = [line.split(" ")[0] for line in stamped.splitlines() if line.endswith(" last")]
    told = namespace.kubectl("logs", "talks", "-c", "c", f"--since-time={since}")
    assert "last" in told.splitlines()


def test_a_follower_has_every_line_until_the_container_ends(namespace: Namespace) -> None:
    namespace.add("counts", shell("c", f"seq {MANY}"), restartPolicy="Never")
    namespace.wait("counts", lambda pod: "containerID" in str(pod["status"]))
    followed = namespace.kubectl("logs", "--follow", "counts")
    assert followed.split() == [str(number) for number in range(1, MANY + 1)]
    namespace.wait("counts", is_over)
    assert namespace.kubectl("logs", "counts") == followed
    last = namespace.kubectl("logs", "counts", "--tail=3")
    assert last.split() == [str(MANY - 2), str(MANY - 1), str(MANY)]


def test_a_follower_has_every_line_once_across_rotations(
    local_cluster: LocalCluster, namespace: Namespace, tmp_path: Path
) -> None:
    """The Go kubelet loses what is printed between its last read and a rotation."""
    step = "i=$((i+1)); echo $i; [ $((i%100)) != 0 ] || sleep 0.01"
    count = f"i=0; while [ ! -e /tmp/stop ]; do {step}; done"
    namespace.add("counts", shell("c", count), restartPolicy="Never")
    pod = namespace.wait("counts", is_ready)
    folder = local_cluster.agent.pod_logs / f"{namespace.name}_counts_{pod['metadata']['uid']}"
    log = folder / "c" / "0.log"
    id_ = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    followed = tmp_path / "followed"
    command = namespace.kubectl_command("logs", "--follow", "counts")
    with followed.open("wb") as file, subprocess.Popen(command, stdout=file) as following:
        try:
            for number in range(ROTATIONS):
                _wait_for_more(followed)
                log.rename(f"{log}.20260101-{number:06}")
                local_cluster.reopen_log(id_)
            # The container may end, and all that runs in it, before the command is over.
            with suppress(LabError):
                namespace.kubectl("exec", "counts", "--", "touch", "/tmp/stop")
            assert following.wait(60) == 0
        finally:
            following.kill()
    lines = followed.read_text().split()
    assert lines == [str(number) for number in range(1, len(lines) + 1)]
    assert lines[-1] == log.read_text().split()[-1]


def _wait_for_more(file: Path) -> None:
    before = file.stat().st_size
    wait_until(
        lambda: file.stat().st_size > before,
        deadline_seconds=60,
        else_say=lambda: f"nothing follows after {before} bytes",
    )


def test_a_long_log_is_told_whole(namespace: Namespace) -> None:
    script = (
        f"yes {'x' * 99} | head -n {MEBIBYTES << 20} | head -c {MEBIBYTES << 20}; echo; echo over"
    )
    namespace.add("long", until_term("c", script))
    assert _said(namespace, "long", "--tail=1", until="over\n") == "over\n"
    said = namespace.kubectl("logs", "long")
    assert len(said) == (MEBIBYTES << 20) + len("\nover\n")
    assert set(said) == set("x\nover")


def test_a_container_that_restarted_has_two_logs(namespace: Namespace) -> None:
    script = (
        "if mkdir /shared/once 2>/dev/null; then echo first; exit 1; fi; echo second; sleep 100000"
    )
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    container = shell("c", script, volumeMounts=mounts)
    namespace.add("twice", container, volumes=[{"name": "shared", "emptyDir": {}}])
    namespace.wait("twice", lambda pod: "'restartCount': 1" in str(pod["status"]))
    assert _said(namespace, "twice", until="second\n") == "second\n"
    assert namespace.kubectl("logs", "twice", "--previous") == "first\n"


@pytest.mark.parametrize(
    ("image", "words", "why"),
    [
        (("--previous",), "", 'previous terminated container "c" in pod "odd" not found'),
        ((), "nowhere.invalid/x", 'container "c" in pod "odd" is waiting to start: '),
    ],
)
def test_why_there_is_no_log_is_told(
    namespace: Namespace, image: tuple[str, ...], words: str, why: str
) -> None:
    container = until_term("c")
    namespace.add("odd", {**container, "image": words} if words else container)
    namespace.wait("odd", lambda pod: "containerStatuses" in pod["status"])
    with pytest.raises(LabError) as refused:
        namespace.kubectl("logs", "odd", *image)
    assert why in str(refused.value)


def _said(namespace: Namespace, name: str, *flags: str, until: str) -> str:
    """The log of a container, once it ends so."""

    def look() -> bool:
        try:
            return namespace.kubectl("logs", name, *flags).endswith(until)
        except LabError:
            return False

    wait_until(look, deadline_seconds=60, else_say=lambda: f"{name} does not say {until!r}")
    return namespace.kubectl("logs", name, *flags)
