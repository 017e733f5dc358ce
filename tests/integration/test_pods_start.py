"""Pods start, and what runs in them is what their manifests say."""

import os
import re

import pytest

from lab.agent import is_running, pod_manifest
from lab.images import BUSYBOX, PAGE, WEB
from lab.processes import wait_until
from tests.integration.pods import (
    Node,
    conditions,
    container_ids,
    containers_in,
    fetch,
    one_shot,
    phase,
    shell,
    status_of,
    until_term,
)

CRI_LOG_LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d) (stdout|stderr) F .*"
)


def test_a_web_server_answers_at_the_address_of_its_pod(node: Node) -> None:
    pod = node.run(pod_manifest("web", {"name": "web", "image": WEB}))
    assert fetch(f"http://{pod['status']['podIP']}/") == PAGE
    node.remove("web")


def test_a_running_pod_has_a_complete_status(node: Node) -> None:
    pod = node.run(pod_manifest("status", until_term("c")))
    status = pod["status"]
    assert status["phase"] == "Running"
    assert status["qosClass"] == "BestEffort"
    assert status["podIPs"] == [{"ip": status["podIP"]}]
    assert status["hostIP"]
    assert status["startTime"]
    assert conditions(pod) == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    container = status_of(pod, "c")
    assert container["restartCount"] == 0
    assert container["ready"] is True
    assert container["started"] is True
    assert container["image"] == BUSYBOX
    assert container["containerID"].startswith("containerd://")
    assert [reason for reason, _ in node.events("status")] == ["Pulled", "Created", "Started"]
    node.remove("status")


def test_a_pod_waits_for_a_volume_of_a_kind_that_is_not_there(node: Node) -> None:
    container = until_term("c", volumeMounts=[{"name": "far", "mountPath": "/far"}])
    volume = {"name": "far", "flocker": {"datasetName": "d"}}
    node.add(pod_manifest("far", container, volumes=[volume]))
    words = (
        'MountVolume.SetUp failed for volume "far" : no volume plugin matched: '
        "this kubelet has no volumes of the kind flocker"
    )
    node.wait("far", lambda _: ("FailedMount", words) in node.events("far"))
    assert phase(node.pod("far")) == "Pending"
    node.remove("far")
    node.wait_gone("far")


def test_containers_of_a_pod_share_their_network(node: Node) -> None:
    pod = node.finish(
        one_shot(
            "shared-network",
            shell("client", "until wget -q -O- http://127.0.0.1:80/; do sleep 0.1; done"),
            initContainers=[{"name": "web", "image": WEB, "restartPolicy": "Always"}],
        )
    )
    assert "<h1>Hello from a pod</h1>" in node.output(pod, "client")
    node.remove("shared-network")


def test_containers_can_share_their_processes(node: Node) -> None:
    pod = node.run(
        pod_manifest(
            "shared-processes",
            shell("other", "exec sleep 1234567"),
            shell(
                "looks",
                "until ps | grep '[s]leep 1234567'; do sleep 0.1; done; exec cat",
                stdin=True,
            ),
            shareProcessNamespace=True,
        )
    )
    wait_until(
        lambda: any("sleep 1234567" in line for line in node.output(pod, "looks")),
        deadline_seconds=60,
        else_say=lambda: "the other container's process is not seen",
    )
    node.remove("shared-processes")


def test_variables_are_expanded_in_environment_and_arguments(node: Node) -> None:
    pod = node.finish(
        one_shot(
            "variables",
            {
                "name": "c",
                "image": BUSYBOX,
                "command": ["printf", r"%s\n", "$(GREETING)"],
                "args": ["$(UNKNOWN)", "$$(GREETING)", "$(POD)", "$(ADDRESS)", "$(CPUS)"],
                "resources": {"limits": {"cpu": "250m"}},
                "env": [
                    {"name": "WHO", "value": "world"},
                    {"name": "GREETING", "value": "hello $(WHO)"},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {
                        "name": "CPUS",
                        "valueFrom": {
                            "resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}
                        },
                    },
                ],
            },
        )
    )
    assert node.output(pod, "c") == [
        "hello world",
        "$(UNKNOWN)",
        "$(GREETING)",
        pod["metadata"]["name"],
        pod["status"]["podIP"],
        "250",
    ]
    node.remove("variables")


def test_the_host_name_is_that_of_the_manifest_and_leads_to_the_pod(node: Node) -> None:
    script = "hostname; hostname -i; grep -c Kubernetes-managed /etc/hosts; grep friend /etc/hosts"
    pod = node.finish(
        one_shot(
            "host-name",
            shell("c", script),
            hostname="a-name-of-its-own",
            hostAliases=[{"ip": "192.0.2.7", "hostnames": ["friend"]}],
        )
    )
    assert node.output(pod, "c") == [
        "a-name-of-its-own",
        pod["status"]["podIP"],
        "1",
        "192.0.2.7\tfriend",
    ]
    node.remove("host-name")


def test_working_directory_user_and_groups_are_those_of_the_manifest(node: Node) -> None:
    pod = node.finish(
        one_shot(
            "user",
            shell("c", "pwd; id -u; id -g; id -G", workingDir="/var"),
            securityContext={"runAsUser": 1000, "runAsGroup": 3000, "supplementalGroups": [4000]},
        )
    )
    where, user, group, groups = node.output(pod, "c")
    assert (where, user, group) == ("/var", "1000", "3000")
    assert {"3000", "4000"} <= set(groups.split())
    node.remove("user")


def test_containers_share_a_volume_and_one_sees_only_its_part_of_it(node: Node) -> None:
    pod = node.finish(
        one_shot(
            "volume",
            shell(
                "reader",
                "cat /part/file; ls /part",
                volumeMounts=[{"name": "v", "mountPath": "/part", "subPath": "part"}],
            ),
            initContainers=[
                shell(
                    "writer",
                    "mkdir /all/part; echo text > /all/part/file; touch /all/other",
                    volumeMounts=[{"name": "v", "mountPath": "/all"}],
                )
            ],
            volumes=[{"name": "v", "emptyDir": {}}],
        )
    )
    assert node.output(pod, "reader") == ["text", "file"]
    node.remove("volume")


def test_logs_are_where_collectors_look_for_them(node: Node) -> None:
    pod = node.finish(one_shot("logs", shell("c", "echo out; echo err >&2")))
    file = node.log_file(pod, "c")
    lines = file.read_text().splitlines()
    assert all(CRI_LOG_LINE.fullmatch(line) for line in lines), lines
    assert sorted(line.split(" ", 1)[1] for line in lines) == ["stderr F err", "stdout F out"]
    name, identifier = pod["metadata"]["name"], container_ids(pod)["c"]
    link = node.agent.pod_logs.parent / f"containers/{name}_default_c-{identifier}.log"
    assert link.resolve() == file
    node.remove("logs")
    node.wait_gone("logs")
    assert not link.is_symlink()


def test_the_termination_message_is_in_the_last_state(node: Node) -> None:
    script = "echo the reason > /dev/termination-log; sleep 0.2; exit 3"
    node.add(pod_manifest("message", shell("c", script)))
    pod = node.wait("message", lambda pod: status_of(pod, "c")["restartCount"] > 0)
    end = status_of(pod, "c")["lastState"]["terminated"]
    assert (end["exitCode"], end["reason"], end["message"]) == (3, "Error", "the reason\n")
    node.remove("message")


def test_the_end_of_the_log_stands_in_for_a_termination_message(node: Node) -> None:
    pod = node.finish(
        one_shot(
            "message-of-log",
            shell("c", "echo last words; exit 1", terminationMessagePolicy="FallbackToLogsOnError"),
        )
    )
    assert status_of(pod, "c")["state"]["terminated"]["message"] == "last words\n"
    node.remove("message-of-log")


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("terminal", {"tty": True}, "terminal, end of input: no"),
        ("standard-input", {"stdin": True}, "no terminal, end of input: no"),
        ("neither", {}, "no terminal, end of input: yes"),
    ],
)
def test_terminal_and_standard_input_are_there_if_asked_for(
    node: Node, name: str, fields: dict[str, object], expected: str
) -> None:
    script = (
        "[ -t 1 ] && t='terminal' || t='no terminal'; "
        'timeout 2 cat > /dev/null 2>&1 && e=yes || e=no; echo "$t, end of input: $e"'
    )
    if name == "terminal":
        fields = {**fields, "stdin": True}
    pod = node.finish(one_shot(name, shell("c", script, **fields)))
    assert [line.rstrip("\r") for line in node.output(pod, "c")] == [expected]
    node.remove(name)


def test_a_container_that_cannot_start_says_why(node: Node) -> None:
    node.add(pod_manifest("no-program", {"name": "c", "image": BUSYBOX, "command": ["/nothing"]}))
    pod = node.wait(
        "no-program", lambda pod: status_of(pod, "c").get("lastState", {}).get("terminated")
    )
    end = status_of(pod, "c")["lastState"]["terminated"]
    assert (end["exitCode"], end["reason"]) == (128, "StartError")
    assert "/nothing" in end["message"]
    node.remove("no-program")


def test_a_critical_pod_is_among_the_first_that_start_however_late_it_is_listed(
    node: Node,
) -> None:
    """As after a boot: all pods are there at once, and few start at a time."""
    at_once = 2 * (os.cpu_count() or 1)
    critical = {"priorityClassName": "system-node-critical"}
    others = [f"a-{number}" for number in range(3 * at_once)]
    node.agent.stop()
    node.add(*(pod_manifest(name, until_term("c")) for name in others))
    node.add(pod_manifest("z-critical", until_term("c"), **critical))
    node.agent.start()
    uids = [node.wait(name, is_running)["metadata"]["uid"] for name in (*others, "z-critical")]
    sandboxes = {
        record["CreatedAt"]: record["Labels"]["io.kubernetes.pod.uid"]
        for record in containers_in(node.containerd).values()
        if record["Labels"]["io.cri-containerd.kind"] == "sandbox"
    }
    begun = [sandboxes[at] for at in sorted(sandboxes) if sandboxes[at] in uids]
    assert uids[-1] in begun[: at_once + 1]
    node.remove_all()


def test_a_bad_neighbour_holds_up_nobody(node: Node) -> None:
    """A container that cannot be made leaves the other one of its pod running."""
    node.add(
        pod_manifest(
            "neighbours",
            until_term("good"),
            until_term("bad", securityContext={"runAsNonRoot": True}),
        )
    )
    pod = node.wait(
        "neighbours",
        lambda pod: "running" in status_of(pod, "good")["state"] and status_of(pod, "bad")["state"],
    )
    bad = status_of(pod, "bad")["state"]["waiting"]
    assert bad["reason"] == "CreateContainerConfigError"
    assert bad["message"].startswith("container has runAsNonRoot and image will run as root")
    assert phase(pod) == "Pending"
    node.remove("neighbours")
