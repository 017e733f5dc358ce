"""What is told of pods that go: while they are stopped, and in the last version of each."""

import re

from lab.cluster_api import Json
from tests.e2e.cluster import Namespace, conditions, container, shell, until_term, waiting
from tests.e2e.pod_cases import from_config_map

HOOK = {"postStart": {"exec": {"command": ["sh", "-c", "echo no; exit 4"]}}}


def words(pod: Json, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition."""
    found = conditions(pod)[kind]
    return found["status"], found.get("reason", ""), found.get("message", "")


def test_pods_that_are_deleted_in_trouble_say_to_the_last_what_it_was(namespace: Namespace) -> None:
    made = {
        "lacks": namespace.add("lacks", until_term("runs"), from_config_map("absent", "k")),
        "crashes": namespace.add("crashes", shell("c", "exit 3")),
        "hooked": namespace.add("hooked", until_term("c", lifecycle=HOOK)),
    }
    namespace.wait("lacks", lambda pod: "running" in container(pod, "runs")["state"])
    namespace.wait("lacks", lambda pod: waiting(pod).get("reason") == "CreateContainerConfigError")
    for name in ("crashes", "hooked"):
        namespace.wait(name, lambda pod: waiting(pod).get("reason") == "CrashLoopBackOff")
    for name in made:
        namespace.api.delete(namespace.path("Pod", name))
    for name in made:
        namespace.wait_gone(name)
    seen = {name: namespace.versions(pod) for name, pod in made.items()}
    never_started = "containers with unready status: [runs c]"
    for kind in ("Ready", "ContainersReady"):
        assert words(seen["lacks"][-1], kind) == ("False", "ContainersNotReady", never_started)
        assert words(seen["crashes"][-1], kind) == ("False", "PodFailed", "")
        assert words(seen["hooked"][-1], kind) == ("False", "PodCompleted", "")
    lost = container(seen["lacks"][-1])["state"]["terminated"]
    assert (lost["reason"], lost["exitCode"]) == ("ContainerStatusUnknown", 137)
    for name, code in (("crashes", 3), ("hooked", 0)):
        last = container(seen[name][-1])
        ends = (last["state"]["terminated"], last["lastState"]["terminated"])
        assert [end["exitCode"] for end in ends] == [code, code]
    assert reasons(seen["hooked"]) == [
        "ContainerCreating",
        "PostStartHookError",
        "CrashLoopBackOff",
    ]
    (said,) = {waiting(each)["message"] for each in seen["hooked"] if is_hook_error(each)}
    assert re.match(r'Exec lifecycle hook \(\[sh -c echo no; exit 4\]\) for Container "c" ', said)


def is_hook_error(pod: Json) -> bool:
    return waiting(pod).get("reason") == "PostStartHookError"


def reasons(versions: list[Json]) -> list[str]:
    """Why the container waited, in the order of first times."""
    return list(dict.fromkeys(filter(None, (waiting(each).get("reason") for each in versions))))


def test_a_pod_over_its_deadline_is_unready_while_it_is_stopped(namespace: Namespace) -> None:
    stubborn = shell("c", "trap '' TERM; sleep 1000")
    made = namespace.run("late", stubborn, activeDeadlineSeconds=5, terminationGracePeriodSeconds=3)
    namespace.wait("late", lambda pod: pod["status"]["phase"] == "Failed")
    seen = namespace.versions(made)
    stopping = [each for each in seen if words(each, "Ready")[0] == "False"]
    assert "running" in container(stopping[0])["state"]
    assert {words(each, "Ready") for each in stopping} == {("False", "PodFailed", "")}
