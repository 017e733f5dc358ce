"""What variables and pulls of a pod are made of."""

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.apiserver.faults import RequestFault
from tests.turns import making_test_data
from tests.unit.references.cluster import Cluster, open_cluster
from tests.unit.references.pods import pod_with
from trio_kubelet.k8s import (
    ConfigMapEnvSource,
    Container,
    EnvFromSource,
    ObjectMeta,
    Service,
    ServicePort,
    ServiceSpec,
)
from trio_kubelet.k8s.kinds import SERVICES
from trio_kubelet.references import ObjectError
from trio_kubelet.references.object_references import MAX_OBJECTS


def put_service(cluster: Cluster, name: str, namespace: str, address: str) -> None:
    cluster.server.create(
        SERVICES,
        Service(
            metadata=ObjectMeta(name=name, namespace=namespace),
            spec=ServiceSpec(cluster_ip=address, ports=(ServicePort(port=443),)),
        ),
    )


async def test_variables_are_made_of_objects_and_services(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        put_service(cluster, "kubernetes", "default", "10.96.0.1")
        cluster.put_map("settings", a="1")
        cluster.put_secret("keys", key=b"k")
        pod = pod_with("u1", env_map="settings", env_secret="keys", config_map="for-files")
        cluster.references.register(pod)
        data = await cluster.references.environment(pod)
        assert data.config_maps == {"settings": {"a": "1"}}
        assert data.secrets == {"keys": {"key": b"k"}}
        assert data.problems == {}
        assert data.services["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"


async def test_what_is_missing_is_not_there_and_what_is_refused_is_a_problem(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.server.faults.add(RequestFault(resource="secrets", code=403))
        pod = pod_with("u1", env_map="gone", env_secret="keys")
        cluster.references.register(pod)
        data = await cluster.references.environment(pod)
        assert data.config_maps == {}
        words = "failed to sync secret cache: timed out waiting for the condition"
        assert data.problems == {("secret", "keys"): words}


async def test_objects_are_waited_for_side_by_side(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        cluster.put_secret("keys", key=b"k")
        await wait_all_tasks_blocked()
        cluster.server.faults.add(RequestFault(verb="get", seconds=1))
        pod = pod_with("u1", env_map="settings", env_secret="keys")
        cluster.references.register(pod)
        began = trio.current_time()
        await cluster.references.environment(pod)
        assert trio.current_time() - began == pytest.approx(1, abs=0.3)


async def test_services_are_followed(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        pod = pod_with("u1")
        cluster.references.register(pod)
        assert (await cluster.references.environment(pod)).services == {}
        put_service(cluster, "web", "shop", "10.96.0.7")
        await wait_all_tasks_blocked()
        services = (await cluster.references.environment(pod)).services
        assert services["WEB_SERVICE_HOST"] == "10.96.0.7"
        cluster.server.delete(SERVICES, "web", "shop")
        await wait_all_tasks_blocked()
        assert (await cluster.references.environment(pod)).services == {}


async def test_only_static_pods_start_before_the_services_were_read(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.server.go_away()
        pod = pod_with("u1")
        cluster.references.register(pod)
        assert (await cluster.references.environment(pod, is_static=True)).services == {}
        with pytest.raises(ObjectError, match="services have not yet been read at least once"):
            await cluster.references.environment(pod)


async def test_pull_secrets_come_in_their_order_and_missing_ones_are_named(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.put_secret("second", a=b"2")
        cluster.put_secret("first", a=b"1")
        pod = pod_with("u1", pull_secrets=("first", "gone", "second"))
        cluster.references.register(pod)
        found = await cluster.references.pull_secrets(pod)
        assert [secret.metadata.name for secret in found.secrets] == ["first", "second"]
        assert found.missing == ("gone",)


async def test_of_names_by_the_ten_thousand_those_are_asked_for_that_are_registered(
    autojump_clock: MockClock,
) -> None:
    with making_test_data():
        names = [f"n{number:05}" for number in range(30_000)]
        repeated = (*names, *names[:9])
        pod = pod_with("u1", pull_secrets=repeated)
        maps = tuple(
            EnvFromSource(config_map_ref=ConfigMapEnvSource(name=name)) for name in repeated
        )
        containers = (Container(name="c", env_from=maps),)
        pod = evolve(pod, spec=evolve(pod.spec, containers=containers))
    async with open_cluster() as cluster:
        cluster.put_secret("n00499")
        cluster.put_secret("n00500")
        cluster.references.register(pod)
        await trio.lowlevel.checkpoint()
        found = await cluster.references.pull_secrets(pod)
        assert [secret.metadata.name for secret in found.secrets] == ["n00499"]
        assert len(found.missing) == len(names) - 1
        problems = (await cluster.references.environment(pod)).problems
        assert ("configmap", "n00499") not in problems
        assert "not registered" in problems["configmap", "n00500"]
        assert len(problems) == len(names) - MAX_OBJECTS


async def test_registering_again_and_leaving_twice_change_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        pod = pod_with("u1", config_map="settings")
        for _ in range(3):
            cluster.references.register(pod)
        await wait_all_tasks_blocked()
        assert cluster.asked("get") == 1
        for _ in range(2):
            cluster.references.unregister("u1")
        await wait_all_tasks_blocked()
        assert cluster.watched() == 0


async def test_what_was_registered_before_the_start_is_followed_from_it(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        late = cluster.another_node()
        cluster.put_map("settings", a="1")
        late.register(pod_with("u1", config_map="settings"))
        async with trio.open_nursery() as nursery:
            await nursery.start(late.run)
            assert (await late.config_map("shop", "settings")).data == {"a": "1"}
            nursery.cancel_scope.cancel()


async def test_three_hundred_objects_are_followed_at_once(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        pods = [pod_with(f"u{n}", config_map=f"map-{n}", secret=f"key-{n}") for n in range(150)]
        for number, pod in enumerate(pods):
            cluster.put_map(f"map-{number}", a="1")
            cluster.put_secret(f"key-{number}", a=b"1")
            cluster.references.register(pod)
        await cluster.references.config_map("shop", "map-149")
        await wait_all_tasks_blocked()
        assert cluster.watched() + cluster.watched("secrets") == 300
        cluster.put_map("map-77", a="2")
        assert await cluster.told.wait() == ["u77"]
        for pod in pods:
            cluster.references.unregister(pod.metadata.uid)
        await wait_all_tasks_blocked()
        assert cluster.watched() + cluster.watched("secrets") == 0
