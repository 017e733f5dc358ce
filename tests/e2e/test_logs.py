"""`kubectl logs` through the API server: what pods have printed, and why there is nothing."""

import pytest

from lab import LabError
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, is_over, shell, until_term

MANY = 200_000


def test_what_a_pod_has_printed_is_told(namespace: Namespace) -> None:
    script = "echo out; echo err >&2; head -c 40000 /dev/zero | tr '\\0' x; echo"
    namespace.add("talks", until_term("c", script), shell("other", "echo else"))
    namespace.wait("talks", lambda pod: "started" in str(pod["status"]))
    said = _said(namespace, "talks", "-c", "c", until="x\n")
    assert sorted(said.splitlines()) == ["err", "out", "x" * 40_000]
    assert namespace.kubectl("logs", "talks", "-c", "c", "--tail=1") == "x" * 40_000 + "\n"
    assert namespace.kubectl("logs", "talks", "-c", "c", "--limit-bytes=3") in ("out", "err")
    stamped = namespace.kubectl("logs", "talks", "-c", "c", "--timestamps", "--since=1h")
    assert {len(line.split(" ")[0]) for line in stamped.splitlines()} == {30}
    assert _said(namespace, "talks", "-c", "other", until="else\n") == "else\n"


def test_a_follower_has_every_line_until_the_container_ends(namespace: Namespace) -> None:
    namespace.add("counts", shell("c", f"seq {MANY}"), restartPolicy="Never")
    namespace.wait("counts", lambda pod: "containerID" in str(pod["status"]))
    followed = namespace.kubectl("logs", "--follow", "counts")
    assert followed.split() == [str(number) for number in range(1, MANY + 1)]
    namespace.wait("counts", is_over)
    assert namespace.kubectl("logs", "counts") == followed
    last = namespace.kubectl("logs", "counts", "--tail=3")
    assert last.split() == [str(MANY - 2), str(MANY - 1), str(MANY)]


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
