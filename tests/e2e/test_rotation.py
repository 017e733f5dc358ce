"""Certificates of two minutes, signed by a real controller manager, under load.

TRIO_KUBELET_ROTATION_SECONDS is how long (`nox -s rotation`: half an hour). The signer dates such
certificates back by five minutes, so that one is rotated within 78 s.
"""

import os
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from lab import LabError, UnavailableError
from lab.agent import LabAgent
from lab.cluster_api import ClusterApi, Json
from lab.control_plane import ADMINISTRATORS, ControlPlane
from lab.control_plane_programs import NEWEST
from lab.ports import free_port
from lab.processes import wait_until
from tests.e2e.cluster import is_ready
from tests.e2e.conftest import KUBERNETES
from tests.missing import do_without
from trio_kubelet.k8s import NODES, Node, ObjectMeta
from trio_kubelet.k8s.client import (
    ApiClients,
    ListSynced,
    ObjectChanged,
    ObjectRemoved,
    Selection,
    WatchEvent,
    open_api_clients,
    reflect,
)
from trio_kubelet.node.client_certificate import (
    ClientFiles,
    RotatedClientCertificate,
    open_client_certificate,
)
from trio_kubelet.node.signing_requests import SERVING_SIGNER
from trio_kubelet.tasks.clock import SystemClock

NAME, AGENT = "rotating", "rotating-agent"
SECONDS = float(os.environ.get("TRIO_KUBELET_ROTATION_SECONDS", "100"))
FIRST_SECONDS = 60.0
PAUSE_SECONDS = 0.05
THIS_NODE = Selection(fields=f"metadata.name={NAME}")


@pytest.fixture
def hasty_control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane whose certificates are good for two minutes."""
    plane = ControlPlane(tmp_path / "plane", version=KUBERNETES or NEWEST, signing_duration="2m")
    try:
        plane.start()
    except UnavailableError as reason:
        do_without(str(reason), asked_for=bool(KUBERNETES))
    yield plane
    plane.stop()


async def test_no_request_fails_while_certificates_of_two_minutes_are_rotated(
    hasty_control_plane: ControlPlane, tmp_path: Path
) -> None:
    certificate = await _opened(hasty_control_plane, tmp_path)
    answers: Counter[int | None] = Counter()
    versions: list[str] = []
    async with (
        open_api_clients(certificate.config, rotated=certificate.pem) as clients,
        trio.open_nursery() as nursery,
    ):
        first = clients.main.recovery.next
        nursery.start_soon(certificate.run, clients)
        with trio.fail_after(FIRST_SECONDS):
            await first.wait()
        await clients.main.create(NODES, Node(metadata=ObjectMeta(name=NAME)))
        for client in (clients.main, clients.heartbeat):
            client.on_answer.add(lambda _method, code, _seconds: answers.update([code]))
        serials = set[int]()
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as load:
                load.start_soon(_ask, clients)
                load.start_soon(_change, clients)
                load.start_soon(_watch, clients, versions)
                while True:
                    pair = certificate.rotation.valid_pair()
                    assert pair is not None
                    serials.add(pair.chain[0].serial_number)
                    await trio.sleep(1)
        newest = (await clients.main.get(NODES, NAME)).metadata.resource_version
        nursery.cancel_scope.cancel()
    print(f"{len(serials)} certificates, answers: {dict(answers)}, versions: {len(versions)}")
    assert len(serials) >= 1 + SECONDS // 100
    assert answers.keys() <= {200, 201}, "signing requests are created"
    assert certificate.rotation.failures == 0
    assert len(versions) == len(set(versions)) > SECONDS / 2
    assert int(newest) - int(versions[-1]) < 1000


async def _opened(plane: ControlPlane, folder: Path) -> RotatedClientCertificate:
    files = ClientFiles(
        kubeconfig=folder / "kubelet.conf",
        bootstrap=plane.bootstrap_kubeconfig(),
        cert_dir=folder / "pki",
    )
    return await open_client_certificate(files, NAME, SystemClock())


async def _ask(clients: ApiClients) -> None:
    while True:
        await clients.heartbeat.get(NODES, NAME)
        await trio.sleep(PAUSE_SECONDS)


async def _change(clients: ApiClients) -> None:
    number = 0
    while True:
        number += 1
        body = {"metadata": {"annotations": {"number": str(number)}}}
        await clients.main.patch(NODES, NAME, body=body)
        await trio.sleep(10 * PAUSE_SECONDS)


async def _watch(clients: ApiClients, versions: list[str]) -> None:
    """Take down each version of the node that a watch tells."""

    async def on_event(event: WatchEvent[Node]) -> None:
        await trio.lowlevel.checkpoint()
        assert not isinstance(event, ObjectRemoved)
        if isinstance(event, ObjectChanged):
            versions.append(event.object.metadata.resource_version)
        else:
            assert isinstance(event, ListSynced)

    await reflect(clients.main, NODES, on_event, THIS_NODE)


def test_nothing_fails_while_an_agent_and_its_port_have_certificates_of_two_minutes(
    hasty_control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = hasty_control_plane
    agent = _agent(plane, tmp_path)
    try:
        agent.launch()
        node = plane.api.wait_for(f"/api/v1/nodes/{AGENT}", is_ready)
        port = _Port(plane, node)
        assert "INTERNAL_ERROR" in port.refusal()
        with _approving(plane):
            wait_until(port.answers, deadline_seconds=FIRST_SECONDS, else_say=port.refusal)
            serials = port.serials(SECONDS)
        through = plane.kubectl("get", "--raw", f"/api/v1/nodes/{AGENT}/proxy/metrics")
    finally:
        agent.kill()
    requests = [line for line in through.splitlines() if line.startswith("rest_client_requests")]
    print(f"{len(serials)} certificates of the port", *requests, sep="\n")
    assert len(serials) >= 1 + SECONDS // 100
    assert not [line for line in requests if 'code="401"' in line or 'code="<error>"' in line]
    assert f"{RENEW_ERRORS['client']} 0" in through
    assert f"{RENEW_ERRORS['server']} 0" in through


RENEW_ERRORS = {
    "client": "kubelet_certificate_manager_client_expiration_renew_errors",
    "server": "kubelet_server_expiration_renew_errors",
}


def _agent(plane: ControlPlane, folder: Path) -> LabAgent:
    authority = folder / "ca.crt"
    authority.write_bytes(plane.authority.certificate)
    return LabAgent(
        folder / "agent",
        flags=(
            *("--bootstrap-kubeconfig", str(plane.bootstrap_kubeconfig())),
            *("--kubeconfig", str(folder / "kubelet.conf")),
            *("--cert-dir", str(folder / "pki")),
            *("--hostname-override", AGENT),
        ),
        settings={
            "rotateCertificates": True,
            "serverTLSBootstrap": True,
            "enableServer": True,
            "port": free_port(),
            "authentication": {"x509": {"clientCAFile": str(authority)}},
        },
    )


class _Port:
    """The port of a node, asked by an administrator who verifies its certificate."""

    def __init__(self, plane: ControlPlane, node: Json) -> None:
        self._plane = plane
        self._identity = plane.authority.issue("somebody", groups=(ADMINISTRATORS,))
        told = node["status"]
        endpoint = told["daemonEndpoints"]["kubeletEndpoint"]
        self._address = (told["addresses"][0]["address"], endpoint["Port"])

    def refusal(self) -> str:
        """Why nothing is answered; empty if it is."""
        host, port = self._address
        trusted = self._plane.authority.certificate
        client = ClusterApi(f"https://{host}:{port}", trusted, identity=self._identity)
        try:
            client.get("/pods")
        except LabError as error:
            return str(error)
        finally:
            client.close()
        return ""

    def answers(self) -> bool:
        return not self.refusal()

    def serials(self, seconds: float) -> set[str]:
        """Ask for so long, over a new connection each time; the certificates that were shown."""
        shown, end = set[str](), time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.refusal() == ""
            shown.add(ssl.get_server_certificate(self._address))
            time.sleep(PAUSE_SECONDS)
        return shown


@contextmanager
def _approving(plane: ControlPlane) -> Iterator[None]:
    """Somebody approves the requests for certificates of ports, as no controller does."""
    over = threading.Event()
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    approved = [{"type": "Approved", "status": "True", "reason": "AsWished", "message": ""}]

    def approve() -> None:
        while not over.wait(0.2):
            for request in plane.api.get(path)["items"]:
                is_of_port = request["spec"]["signerName"] == SERVING_SIGNER
                if is_of_port and not request["status"].get("conditions"):
                    decided = {**request, "status": {"conditions": approved}}
                    name = request["metadata"]["name"]
                    plane.api.replace(f"{path}/{name}/approval", decided)

    approver = threading.Thread(target=approve)
    approver.start()
    try:
        yield
    finally:
        over.set()
        approver.join()
