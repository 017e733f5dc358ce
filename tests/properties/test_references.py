"""What is kept at hand is what the API server has, whatever happens to either of them."""

import math
from collections.abc import Mapping, Sequence

import trio
import trio.testing
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from tests.file_work import in_place
from tests.unit.references.cluster import NAMESPACE, Cluster, open_cluster
from tests.unit.references.pods import pod_with
from trio_kubelet.k8s.kinds import CONFIG_MAPS
from trio_kubelet.references import ObjectError, ObjectNotFoundError

NAMES = ("a", "b", "c")
UIDS = ("u1", "u2", "u3")
CALM_SECONDS = 120.0
"""Longer than the longest pause between two attempts."""


@frozen
class Deed:
    """Something that happens, some seconds after what happened before."""

    what: str
    name: str
    uid: str
    value: str
    wait_seconds: float


deeds = st.builds(
    Deed,
    what=st.sampled_from(
        ("put", "put", "fix", "delete", "use", "use", "leave", "drop", "away", "back")
    ),
    name=st.sampled_from(NAMES),
    uid=st.sampled_from(UIDS),
    value=st.sampled_from(("1", "2")),
    wait_seconds=st.sampled_from((0.0, 0.0, 0.01, 0.3, 7.0)),
)


def do(cluster: Cluster, pods: "Pods", fixed: set[str], deed: Deed) -> None:
    """Carry a deed out; an object that is immutable stays as it is."""
    server = cluster.server
    if deed.what in ("put", "fix") and deed.name not in fixed:
        immutable = deed.what == "fix"
        cluster.put_map(deed.name, immutable=immutable, key=deed.value)
        if immutable:
            fixed.add(deed.name)
    elif deed.what == "delete" and deed.name not in fixed:
        if server.find(CONFIG_MAPS, deed.name, NAMESPACE) is not None:
            cluster.delete_map(deed.name)
    elif deed.what == "use":
        pods.used[deed.uid] = deed.name
        cluster.references.register(pod_with(deed.uid, config_map=deed.name))
        pods.begin(deed.uid)
    elif deed.what == "leave":
        pods.used.pop(deed.uid, None)
        cluster.references.unregister(deed.uid)
    elif deed.what == "drop":
        server.drop_watches()
    elif deed.what == "away":
        server.go_away()
    elif deed.what == "back":
        server.come_back()


class Pods:
    """Pods that look when they begin to use an object, and again whenever they are told."""

    def __init__(self, cluster: Cluster, nursery: trio.Nursery) -> None:
        self._cluster = cluster
        self._nursery = nursery
        self.used: dict[str, str] = {}
        self.seen: dict[str, Mapping[str, str] | None] = {}

    def begin(self, uid: str) -> None:
        self._nursery.start_soon(self._look, uid)

    async def look_when_told(self) -> None:
        while True:
            for uid in await self._cluster.told.wait(math.inf):
                self.begin(uid)

    async def _look(self, uid: str) -> None:
        name = self.used.get(uid)
        if name is None:
            return
        try:
            found = (await self._cluster.references.config_map(NAMESPACE, name)).data
        except ObjectNotFoundError:
            found = None
        except ObjectError:
            return
        if self.used.get(uid) == name:
            self.seen[uid] = found


@given(st.lists(deeds, max_size=15))
def test_in_the_end_pods_see_what_the_server_has_and_nothing_else_is_watched(
    deeds: Sequence[Deed],
) -> None:
    async def main() -> None:
        async with open_cluster() as cluster, trio.open_nursery() as nursery:
            pods = Pods(cluster, nursery)
            nursery.start_soon(pods.look_when_told)
            fixed: set[str] = set()
            for deed in deeds:
                await trio.sleep(deed.wait_seconds)
                do(cluster, pods, fixed, deed)
            cluster.server.come_back()
            await trio.sleep(CALM_SECONDS)
            for uid, name in pods.used.items():
                expected = cluster.server.find(CONFIG_MAPS, name, NAMESPACE)
                assert pods.seen[uid] == (expected.data if expected is not None else None)
            changing = {name for name in pods.used.values() if name not in fixed}
            assert cluster.watched() == len(changing)
            nursery.cancel_scope.cancel()

    with in_place():
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
