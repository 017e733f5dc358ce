"""Exits that restart all containers of a pod in its sandbox, and exit rules of init containers."""

import pytest

from lab.agent import Json, is_running, pod_manifest
from lab.processes import wait_until
from tests.integration.pods import (
    DEADLINE_SECONDS,
    SLEEP,
    Node,
    container_ids,
    is_over,
    phase,
    shell,
    status_of,
    until_term,
)

VOLUME = {"volumes": [{"name": "v", "emptyDir": {}}]}
MOUNT = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
ONCE = "[ -e /v/once ] || { touch /v/once; exit 42; }"
"""What ends a container the first time, in a volume that stays."""


def rules(action: str) -> Json:
    on_42 = {"action": action, "exitCodes": {"operator": "In", "values": [42]}}
    return {"restartPolicy": "Never", "restartPolicyRules": [on_42]}


def restarts(pod: Json) -> dict[str, int]:
    return {name: status_of(pod, name)["restartCount"] for name in container_ids(pod)}


def sandbox_of(node: Node, pod: Json) -> set[str]:
    return set(node.sandboxes(pod["metadata"]["uid"])) - set(container_ids(pod).values())


def condition(pod: Json, kind: str) -> Json:
    (found,) = (each for each in pod["status"]["conditions"] if each["type"] == kind)
    return dict(found)


def test_an_exit_restarts_all_containers_in_place(node: Node) -> None:
    """What runs is asked to end by a signal, with the least grace, and by no hook."""
    hook = {"preStop": {"exec": {"command": ["touch", "/v/hooked"]}}}
    other = until_term("other", "trap 'touch /v/asked; exit 0' TERM", lifecycle=hook, **MOUNT)
    cause = shell("cause", "while ! [ -e /v/go ]; do sleep 0.1; done; rm /v/go; exit 42")
    manifest = pod_manifest(
        "all",
        {**cause, **MOUNT, **rules("RestartAllContainers")},
        other,
        initContainers=[
            shell("setup", "echo again >>/v/setups", **MOUNT),
            shell("side", "trap 'exit 0' TERM; sleep 1000000 & wait", restartPolicy="Always"),
        ],
        restartPolicy="Never",
        **VOLUME,
    )
    first = node.run(manifest)
    assert condition(first, "AllContainersRestarting")["status"] == "False"
    sandbox = sandbox_of(node, first)
    uid = first["metadata"]["uid"]
    volume = node.agent.root / "pods" / uid / "volumes/kubernetes.io~empty-dir/v"
    (volume / "go").touch()
    pod = node.wait("all", lambda pod: is_running(pod) and restarts(pod)["other"] == 1)
    assert restarts(pod) == {"setup": 1, "side": 1, "cause": 1, "other": 1}
    ends = {name: status_of(pod, name)["lastState"]["terminated"] for name in restarts(pod)}
    codes = {name: end["exitCode"] for name, end in ends.items()}
    assert codes == {"setup": 0, "side": 0, "cause": 42, "other": 0}
    assert (volume / "asked").exists()
    assert not (volume / "hooked").exists()
    assert (volume / "setups").read_text() == "again\nagain\n"
    assert sandbox_of(node, pod) == sandbox
    assert pod["status"]["podIP"] == first["status"]["podIP"]
    assert node.output(pod, "cause", 0) == [], "its log stays"
    assert len(node.sandboxes(uid)) == 1 + len(restarts(pod)), "what was restarted is removed"
    node.agent.kill()
    node.agent.start()
    (volume / "go").touch()
    again = node.wait("all", lambda pod: is_running(pod) and restarts(pod)["other"] == 2)
    assert sandbox_of(node, again) == sandbox
    assert (volume / "setups").read_text() == "again\n" * 3
    node.containerd.ctr("tasks", "kill", "-s", "KILL", container_ids(again)["other"])
    over = node.wait("all", lambda pod: "terminated" in status_of(pod, "other")["state"])
    assert phase(over) == "Running", "no other exit restarts anything"
    node.remove("all")


@pytest.mark.parametrize("cause", ["init", "sidecar"])
def test_an_init_container_and_a_sidecar_restart_all(node: Node, cause: str) -> None:
    name = f"all-by-{cause}"
    policy = {"restartPolicy": "Always"} if cause == "sidecar" else {}
    script = f"{ONCE}; {SLEEP if cause == 'sidecar' else ':'}"
    node.add(
        pod_manifest(
            name,
            shell("main", SLEEP),
            initContainers=[
                shell("first", "echo again >>/v/firsts", **MOUNT),
                shell("cause", script, **MOUNT, **(rules("RestartAllContainers") | policy)),
            ],
            restartPolicy="Never",
            **VOLUME,
        )
    )
    pod = node.wait(name, is_running)
    counts = restarts(pod)
    assert counts.pop("main") in (0, 1)
    assert counts == {"first": 1, "cause": 1}
    assert status_of(pod, "cause")["lastState"]["terminated"]["exitCode"] == 42
    node.remove(name)


def test_an_exit_rule_restarts_an_init_container_of_a_pod_that_never_restarts(node: Node) -> None:
    ended = node.finish(
        pod_manifest(
            "init-rule",
            shell("main", "exit 0"),
            initContainers=[shell("init", ONCE, **MOUNT, **rules("Restart"))],
            restartPolicy="Never",
            **VOLUME,
        )
    )
    assert phase(ended) == "Succeeded"
    assert restarts(ended) == {"init": 1, "main": 0}
    failed = node.finish(
        pod_manifest(
            "init-rule-other",
            shell("main", "exit 0"),
            initContainers=[shell("init", "exit 1", **rules("Restart"))],
            restartPolicy="Never",
        )
    )
    assert is_over(failed)
    assert phase(failed) == "Failed"
    node.remove("init-rule", "init-rule-other")


def test_an_agent_that_is_killed_while_all_restart_goes_on(node: Node) -> None:
    """Killed as soon as all restart: what is left to do is read off the runtime."""
    cause = shell("cause", f"{ONCE}; {SLEEP}", **MOUNT)
    others = [shell(f"other-{number}", SLEEP) for number in range(3)]
    node.add(
        pod_manifest(
            "all-killed",
            {**cause, **rules("RestartAllContainers")},
            *others,
            initContainers=[shell("setup", "sleep 2")],
            restartPolicy="Never",
            **VOLUME,
        )
    )
    wait_until(
        lambda: ("Killing", "Stopping container other-0") in node.events("all-killed"),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"{node.events('all-killed')}",
    )
    node.agent.kill()
    node.agent.start()
    pod = node.wait("all-killed", is_running)
    assert restarts(pod) == {"setup": 1, "cause": 1, "other-0": 1, "other-1": 1, "other-2": 1}
    node.remove("all-killed")
