"""Contract: which ends of containers the API server takes back when it is asked to."""

from typing import Any

import pytest

from tests.apiserver.conftest import Api
from tests.apiserver.test_contract import delete_pod, patch_pod
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.client import ApiError
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.k8s.kinds import PODS

FORBIDDEN = "Forbidden: may not be transitioned to non-terminated state"


def with_state(state: dict[str, Any], *, name: str = "c", statuses: str = "") -> dict[str, Any]:
    """A status in which one container is in that state."""
    known = {"image": "i", "imageID": "", "ready": False, "restartCount": 0}
    return {"status": {statuses or "containerStatuses": [{"name": name, **known, "state": state}]}}


async def is_final(api: Api, exit_code: int, **container: str) -> bool:
    """True if the server refuses to let a container wait once more that has ended so."""
    waits, ends = {"waiting": {"reason": "R"}}, {"terminated": {"exitCode": exit_code}}
    states: tuple[dict[str, Any], ...] = ({"running": {}}, waits, ends)
    for state in states:
        await patch_pod(api, with_state(state, **container), subresource="status")
    statuses = container.get("statuses", "containerStatuses")
    back = patch_pod(api, with_state(waits, **container), subresource="status")
    try:
        shown = encode(await back)["status"]
    except ApiError as error:
        told = (error.code, error.reason, f"status.{statuses}[0].state: {FORBIDDEN}" in str(error))
    else:
        assert "waiting" in shown[statuses][0]["state"]
        return False
    assert told == (422, "Invalid", True)
    return True


def rule(operator: str, *codes: int, action: str = "Restart") -> dict[str, Any]:
    return {"action": action, "exitCodes": {"operator": operator, "values": list(codes)}}


def ruled(policy: str, *rules: dict[str, Any]) -> dict[str, Any]:
    """What a container has of its own policy."""
    return {"restartPolicy": policy, "restartPolicyRules": list(rules)}


async def make_pod_of(api: Api, pod_policy: str, **spec: Any) -> None:
    document = {
        "metadata": {"name": "web"},
        "spec": {
            "nodeName": "n1",
            "restartPolicy": pod_policy,
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "i"}],
            **spec,
        },
    }
    await api.client.create(PODS, decode(Pod, document), api.namespace)


@pytest.mark.parametrize(
    ("pod_policy", "own", "exit_code", "may_go_back"),
    [
        ("Always", {}, 0, True),
        ("OnFailure", {}, 1, True),
        ("OnFailure", {}, 0, False),
        ("Never", {}, 0, False),
        ("Never", {}, 1, False),
        ("Never", ruled("Always"), 0, True),
        ("Never", ruled("OnFailure"), 1, True),
        ("Always", ruled("OnFailure"), 0, False),
        ("Always", ruled("Never"), 1, False),
        ("Never", ruled("Never", rule("In", 7)), 7, True),
        ("Never", ruled("Never", rule("In", 7)), 1, False),
        ("Always", ruled("Never", rule("NotIn", 7)), 7, False),
        ("Never", ruled("Never", rule("NotIn", 7)), 1, True),
        ("Never", ruled("Never", rule("In", 7), rule("In", 8)), 8, True),
        ("Never", ruled("Never", rule("In", 7), rule("In", 8)), 9, False),
        ("Never", ruled("OnFailure", rule("In", 0)), 0, True),
        ("Never", ruled("OnFailure", rule("In", 7)), 0, False),
        ("Never", ruled("Never", rule("In", 7, action="RestartAllContainers")), 1, True),
    ],
)
async def test_a_container_comes_back_from_an_end_only_as_its_policy_says(
    api: Api, pod_policy: str, own: dict[str, Any], exit_code: int, may_go_back: bool
) -> None:
    await make_pod_of(api, pod_policy, containers=[{"name": "c", "image": "i", **own}])
    assert await is_final(api, exit_code) is not may_go_back


@pytest.mark.parametrize(
    ("pod_policy", "own", "exit_code", "may_go_back"),
    [
        ("Always", {}, 0, True),
        ("OnFailure", {}, 0, False),
        ("Never", {"restartPolicy": "Always"}, 0, True),
        ("Never", ruled("Never", rule("In", 7)), 7, True),
        ("Never", ruled("Never", rule("In", 7)), 1, False),
    ],
)
async def test_an_init_container_comes_back_from_an_end_only_as_its_policy_says(
    api: Api, pod_policy: str, own: dict[str, Any], exit_code: int, may_go_back: bool
) -> None:
    await make_pod_of(api, pod_policy, initContainers=[{"name": "i", "image": "i", **own}])
    final = await is_final(api, exit_code, name="i", statuses="initContainerStatuses")
    assert final is not may_go_back


RESTARTS_ALL = ruled("Never", rule("In", 7, action="RestartAllContainers"))


@pytest.mark.parametrize("own", [{}, RESTARTS_ALL], ids=["always", "restarts all"])
async def test_an_ephemeral_container_never_comes_back_from_an_end(
    api: Api, own: dict[str, Any]
) -> None:
    """Nobody asks whether the pod has a container to a status."""
    await make_pod_of(api, "Always", containers=[{"name": "c", "image": "i", **own}])
    assert await is_final(api, 1, name="e", statuses="ephemeralContainerStatuses")


async def test_a_container_that_the_pod_does_not_have_comes_back_only_where_all_are_restarted(
    api: Api,
) -> None:
    await make_pod_of(api, "Always")
    assert await is_final(api, 1, name="nobody")
    await delete_pod(api, 0)
    await make_pod_of(api, "Never", containers=[{"name": "c", "image": "i", **RESTARTS_ALL}])
    assert not await is_final(api, 1, name="nobody")
