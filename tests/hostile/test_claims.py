"""What pods do to others by their resource claims, and a driver by its answers: nothing."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lab.agent import Json, LabAgent, is_running
from lab.dra_driver import NAME, LabDRADriver
from lab.processes import wait_until
from tests.apiserver.served import ServedApi
from tests.hostile.served_objects import NODE, delete_all_pods, pod, put
from tests.hostile.victims import DEADLINE_SECONDS, Victims
from trio_kubelet.dra.driver import CALLS_OF_NAMESPACE, MAX_DEVICES

PREPARE = "NodePrepareResources"
CLAIMS = 128
"""The most that a pod may have."""
DEVICES = 16
"""Of each of them: the answer for all claims of a pod is bounded, too."""
PODS_THAT_HANG = 2 * CALLS_OF_NAMESPACE
CLAIM_BYTES = 1_000_000


@pytest.fixture(scope="module")
def api() -> Iterator[ServedApi]:
    with ServedApi() as served:
        yield served


@pytest.fixture(scope="module")
def victims(api: ServedApi) -> Iterator[Victims]:
    """Ten good pods. Their node's folder has a short path, since there will be sockets below."""
    with tempfile.TemporaryDirectory(prefix="claims-") as name:
        folder = Path(name)
        flags = ("--kubeconfig", str(api.kubeconfig(folder)), "--hostname-override", NODE)
        with LabAgent(folder, flags=flags) as agent:
            yield Victims.of(agent, {"name": "c", "image": "good"})


@pytest.fixture
def driver(victims: Victims) -> Iterator[LabDRADriver]:
    """The driver as a process; the pods of the API go before it."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        said = LabDRADriver(Path(name))
        socket = victims.agent.root / "plugins_registry" / "dra.sock"
        command = [sys.executable, "-m", "lab.dra_driver", "--folder", name]
        with subprocess.Popen([*command, "--registry-socket", str(socket)]) as process:
            try:
                wait_until(
                    lambda: bool(said.calls("NotifyRegistrationStatus")),
                    deadline_seconds=DEADLINE_SECONDS,
                    else_say=lambda: "the driver is not registered",
                )
                yield said
            finally:
                process.kill()
                socket.unlink(missing_ok=True)


def put_pod(api: ServedApi, name: str, namespace: str, claims: int, **metadata: object) -> None:
    """Have a pod whose container uses so many claims that are allocated for it."""
    names = [f"{name}-{number}" for number in range(claims)]
    for each in names:
        put(api, claim(each, namespace, f"uid-of-{name}", **metadata))
    made = pod(
        name,
        namespace,
        resourceClaims=[{"name": each, "resourceClaimName": each} for each in names],
    )
    (container,) = made["spec"]["containers"]
    container["resources"] = {"claims": [{"name": each} for each in names]}
    put(api, made)


def claim(name: str, namespace: str, user: str, **metadata: object) -> Json:
    result = {"driver": NAME, "pool": "pool", "device": name, "request": "r"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": user, "uid": user}],
        },
    }


def remove_pods(victims: Victims, api: ServedApi, driver: LabDRADriver) -> None:
    """Delete the pods of the API, and wait until all that was prepared is undone."""
    api.do(delete_all_pods)
    victims.agent.wait_for(lambda pods: not any(name.startswith("hostile") for name in pods))
    wait_until(
        lambda: not driver.prepared(),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"{len(driver.prepared())} claims are prepared still",
    )


def test_a_pod_with_as_many_claims_as_it_may_have_of_some_devices_each(
    victims: Victims, api: ServedApi, driver: LabDRADriver
) -> None:
    driver.set_faults(**{PREPARE: {"devices": DEVICES}})
    with victims.undisturbed():
        put_pod(api, "hostile", "hostile", CLAIMS)
        victims.wait_pod("hostile", is_running)
        remove_pods(victims, api, driver)


def test_claims_of_a_megabyte(victims: Victims, api: ServedApi, driver: LabDRADriver) -> None:
    annotations = {"large": "x" * CLAIM_BYTES}
    with victims.undisturbed():
        put_pod(api, "hostile", "hostile", 10, annotations=annotations)
        victims.wait_pod("hostile", is_running)
        remove_pods(victims, api, driver)


def test_a_driver_that_hangs_for_the_claims_of_one_namespace(
    victims: Victims, api: ServedApi, driver: LabDRADriver
) -> None:
    driver.set_faults(**{PREPARE: {"hang": True, "namespace": "hostile"}})
    with victims.undisturbed():
        for number in range(PODS_THAT_HANG):
            put_pod(api, f"hostile-{number}", "hostile", 1)
        wait_until(
            lambda: len(driver.calls(PREPARE)) >= CALLS_OF_NAMESPACE,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"{len(driver.calls(PREPARE))} calls hang",
        )
        put_pod(api, "neighbour", "good", 1)
        victims.wait_pod("neighbour", is_running)
        asked = [uid for call in driver.calls(PREPARE) for uid in call["claims"]]
        assert sum("hostile" in uid for uid in asked) == CALLS_OF_NAMESPACE
        driver.set_faults()
        remove_pods(victims, api, driver)


def test_answers_of_a_driver_that_are_too_large(
    victims: Victims, api: ServedApi, driver: LabDRADriver
) -> None:
    driver.set_faults(**{PREPARE: {"devices": 100 * MAX_DEVICES}})
    is_waiting = partial(waits_because, "ResourceExhausted")
    with victims.undisturbed():
        put_pod(api, "hostile", "hostile", 8)
        victims.wait_pod("hostile", is_waiting)
        driver.set_faults()
        remove_pods(victims, api, driver)


def waits_because(words: str, waiting: Json) -> bool:
    """True of a pod whose container waits, and says these words."""
    states = [each["state"] for each in waiting["status"].get("containerStatuses", ())]
    return any(words in state.get("waiting", {}).get("message", "") for state in states)
