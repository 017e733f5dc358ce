"""Hooks over the network, and what the runtime says of how containers run."""

import pytest

from lab.agent import Json, pod_manifest
from lab.images import BUSYBOX, WEB
from tests.integration.pods import (
    Node,
    container_ids,
    status_of,
    until_term,
    waiting_reason,
)

FALLBACK = "LifecycleHTTPFallback"


def web(**hooks: Json) -> Json:
    return {"name": "web", "image": WEB, "lifecycle": hooks}


@pytest.mark.parametrize("path", ["/", "/missing"])
def test_a_hook_over_http_is_through_with_any_answer(node: Node, path: str) -> None:
    name = f"http-hook-{len(path)}"
    node.run(pod_manifest(name, web(postStart={"httpGet": {"path": path, "port": 80}})))
    assert not [event for event in node.events(name) if event[0] == FALLBACK]
    node.remove(name)


def test_a_hook_over_https_falls_back_to_http(node: Node) -> None:
    hook = {"httpGet": {"path": "/", "port": 80, "scheme": "HTTPS"}}
    pod = node.run(pod_manifest("https-hook", web(postStart=hook)))
    where = f"{pod['status']['podIP']}:80"
    words = f"request to HTTPS lifecycle hook {where} got HTTP response, retry with HTTP succeeded"
    assert (FALLBACK, words) in node.events("https-hook")
    node.remove("https-hook")


def test_a_hook_over_tcp_fails_its_container(node: Node) -> None:
    node.add(pod_manifest("tcp-hook", web(postStart={"tcpSocket": {"port": 80}})))
    pod = node.wait("tcp-hook", lambda pod: waiting_reason(pod, "web") == "PostStartHookError")
    message = status_of(pod, "web")["state"]["waiting"]["message"]
    assert message.startswith("Cannot run handler: invalid handler")
    node.remove("tcp-hook")


def test_limits_of_the_pod_hold_for_a_container_without_its_own(node: Node) -> None:
    limits = {"cpu": "500m", "memory": "64Mi"}
    own = until_term("own", resources={"limits": {"memory": "32Mi"}})
    pod = node.run(
        pod_manifest("whole-limits", until_term("none"), own, resources={"limits": limits})
    )
    config = {
        name: node.containerd.ctr("containers", "info", id_)
        for name, id_ in container_ids(pod).items()
    }
    assert f'"limit": {64 << 20}' in config["none"]
    assert f'"limit": {32 << 20}' in config["own"]
    for each in config.values():
        assert '"quota": 50000' in each
    assert pod["status"]["resources"]["limits"] == limits
    node.remove("whole-limits")


def test_the_user_in_a_status_is_what_the_runtime_says(node: Node) -> None:
    """containerd tells of it since 2.0; the groups of the image's own user are among it."""
    container = {
        "name": "c",
        "image": BUSYBOX,
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"],
        "securityContext": {"runAsUser": 1000, "runAsGroup": 3000},
    }
    pod = node.run(pod_manifest("user", container, securityContext={"supplementalGroups": [4000]}))
    user: Json = status_of(pod, "c").get("user", {})
    if node.containerd.tools.major_minor < (2, 0):
        assert user == {}, "it says nothing, so the agent does not"
    else:
        groups = user["linux"].pop("supplementalGroups")
        assert user == {"linux": {"uid": 1000, "gid": 3000}}
        assert {2000, 4000} <= set(groups), "the image has a group that the spec does not name"
    node.remove("user")
