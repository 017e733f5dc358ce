"""Statuses, conditions and events in the words that users know, for pods that go right or wrong.

All pods of the table run side by side; each is a test of its own.
"""

import re
from collections.abc import Iterator

import pytest

from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import Cluster, Namespace, conditions, container
from tests.e2e.pod_cases import CASES, Case

DEADLINE_SECONDS = 90


@pytest.fixture(scope="module")
def shown(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace with a pod for each case, under its name."""
    namespace = cluster.make_namespace("shown")
    namespace.create("ConfigMap", "present", {"data": {"k": "v"}})
    namespace.create("Secret", "present", {"stringData": {"k": "v"}})
    for name, case in CASES.items():
        bound = {"nodeName": cluster.node} if case.is_bound else {}
        namespace.create("Pod", name, {"spec": {**case.spec, **bound}})
    yield namespace
    namespace.delete()


@pytest.mark.parametrize("name", CASES)
def test_kubectl_and_the_api_show_what_became_of_a_pod(shown: Namespace, name: str) -> None:
    case = CASES[name]
    columns: list[str] = []

    def is_shown() -> bool:
        columns[:] = shown.kubectl("get", "pod", name, "--no-headers").split()[1:3]
        return columns[0] == case.ready and re.fullmatch(case.status, columns[1]) is not None

    wait_until(
        is_shown,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: (
            f"kubectl shows {columns}, not {case.ready} {case.status}: {shown.pod(name)['status']}"
        ),
    )
    seen: list[str] = []

    def is_right() -> bool:
        seen[:] = differences(case, shown, name)
        return not seen

    # What kubectl shows comes from several patches, and events let starting pods go first.
    wait_until(is_right, deadline_seconds=DEADLINE_SECONDS, else_say=lambda: "\n".join(seen))


def differences(case: Case, namespace: Namespace, name: str) -> list[str]:
    """What is not as expected, in words."""
    pod = namespace.pod(name)
    uid = pod["metadata"]["uid"]

    def fits(pattern: str, text: str) -> bool:
        filled = pattern.replace("{namespace}", namespace.name).replace("{uid}", uid)
        return text == filled or re.fullmatch(filled, text) is not None

    found = []
    if case.state is not None:
        kind, reason, message = case.state
        state: Json = container(pod, case.container)["state"].get(kind, {})
        said = (state.get("reason", ""), state.get("message", ""))
        if said[0] != reason or not fits(message, said[1]):
            found.append(f"the container is {container(pod, case.container)['state']}")
    for wanted, (status, reason, message) in case.conditions.items():
        has = conditions(pod).get(wanted, {})
        told = (has.get("status"), has.get("reason", ""))
        if told != (status, reason) or not fits(message, has.get("message", "")):
            found.append(f"{wanted} is {has}")
    if case.why is not None:
        reason, message = case.why
        status = pod["status"]
        if status.get("reason") != reason or not fits(message, status.get("message", "")):
            found.append(f"the pod is {status.get('reason')}: {status.get('message')}")
    events = [(event["reason"], event["message"]) for event in namespace.events(name)]
    for reason, message in case.events:
        if not any(reason == has and fits(message, words) for has, words in events):
            found.append(f"no event {reason}: {message} in {events}")
    return found
