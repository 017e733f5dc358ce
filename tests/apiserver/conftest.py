"""Contract: the same expectations of the API server in memory and of a real kube-apiserver. What
the tests say was seen on the real one; the one in memory has to follow."""

import itertools
from collections.abc import AsyncIterator

import pytest
import trio
from attrs import frozen

from lab.control_plane import ControlPlane
from tests.apiserver.server import ApiServer
from trio_kubelet.k8s import ObjectMeta, ServiceAccount
from trio_kubelet.k8s.client import ApiClient, Selection, open_api_clients
from trio_kubelet.k8s.kinds import SERVICE_ACCOUNTS

_numbers = itertools.count(1)


@frozen
class Api:
    """An API server under test, and a namespace that nobody else uses."""

    client: ApiClient
    namespace: str

    def selection(self, *, fields: str = "", labels: str = "") -> Selection:
        """Objects of the namespace."""
        return Selection(namespace=self.namespace, fields=fields, labels=labels)


@pytest.fixture(
    params=["memory", pytest.param("kube-apiserver", marks=pytest.mark.e2e)], name="real_one"
)
def find_real_one(request: pytest.FixtureRequest) -> ControlPlane | None:
    """The control plane to ask; None for the API server in memory."""
    if request.param == "memory":
        return None
    found: ControlPlane = request.getfixturevalue("control_plane")
    return found


@pytest.fixture
async def api(real_one: ControlPlane | None) -> AsyncIterator[Api]:
    """The API server under test, with a new namespace."""
    namespace = f"contract-{next(_numbers)}"
    if real_one is None:
        server = ApiServer()
        server.create(
            SERVICE_ACCOUNTS,
            ServiceAccount(metadata=ObjectMeta(name="default", namespace=namespace)),
        )
        yield Api(server.client(), namespace)
        return
    await trio.to_thread.run_sync(_make_namespace, real_one, namespace)
    async with open_api_clients(real_one.folder / "admin.conf") as clients:
        yield Api(clients.main, namespace)
    await trio.to_thread.run_sync(real_one.api.delete, f"/api/v1/namespaces/{namespace}")


def _make_namespace(plane: ControlPlane, name: str) -> None:
    """Pods are refused before their namespace has its service account."""
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    plane.api.wait_for(f"/api/v1/namespaces/{name}/serviceaccounts/default", bool)
