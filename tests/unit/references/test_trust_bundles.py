"""Trust bundles: selected by name, or by signer and labels; each certificate once."""

import threading
import time
from collections.abc import Iterable
from functools import partial

import pytest
import trio
import trustme
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.apiserver.faults import RequestFault
from tests.turns import is_too_long
from tests.unit.references.cluster import Cluster, open_cluster
from tests.unit.references.pods import pod_with
from trio_kubelet.k8s import (
    ClusterTrustBundle,
    ClusterTrustBundleProjection,
    ClusterTrustBundleSpec,
    LabelSelector,
    LabelSelectorRequirement,
    ObjectMeta,
    Pod,
    ProjectedVolumeSource,
    Volume,
    VolumeProjection,
)
from trio_kubelet.k8s.kinds import CLUSTER_TRUST_BUNDLES
from trio_kubelet.references import ObjectError, trust_bundles
from trio_kubelet.references.trust_bundles import (
    DISABLED,
    NOT_SERVED,
    Certificates,
    certificates,
    joined,
    selects,
)

ONE, TWO = (trustme.CA().cert_pem.bytes().decode() for _ in range(2))
EVERYTHING = LabelSelector()
POD = pod_with("u1")


def bundle(name: str, text: str, signer: str = "", **labels: str) -> ClusterTrustBundle:
    return ClusterTrustBundle(
        metadata=ObjectMeta(name=name, labels=labels),
        spec=ClusterTrustBundleSpec(signer_name=signer, trust_bundle=text),
    )


def by_name(name: str, optional: bool = False) -> ClusterTrustBundleProjection:
    return ClusterTrustBundleProjection(name=name, path="ca.pem", optional=optional)


def by_signer(
    signer: str, selector: LabelSelector | None = EVERYTHING, optional: bool = False
) -> ClusterTrustBundleProjection:
    return ClusterTrustBundleProjection(
        signer_name=signer, label_selector=selector, path="ca.pem", optional=optional
    )


def pod_of(projection: ClusterTrustBundleProjection) -> Pod:
    source = ProjectedVolumeSource(sources=(VolumeProjection(cluster_trust_bundle=projection),))
    return pod_with("u1", volumes=(Volume(name="roots", projected=source),))


def count(pem: bytes) -> int:
    return pem.count(b"BEGIN CERTIFICATE")


def put(cluster: Cluster, *bundles: ClusterTrustBundle) -> None:
    for each in bundles:
        cluster.server.create(CLUSTER_TRUST_BUNDLES, each)


def anchors_of(bundles: Iterable[ClusterTrustBundle]) -> bytes:
    return joined(map(certificates, bundles))


def test_a_certificate_comes_once_and_in_the_same_order_always() -> None:
    forward = anchors_of([bundle("a", f"text before\n{ONE}{TWO}"), bundle("b", ONE)])
    assert forward == anchors_of([bundle("b", TWO + ONE)])
    assert count(forward) == 2
    assert anchors_of([bundle("b", ONE)]) == ONE.encode()


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, False),
        (LabelSelector(), True),
        (LabelSelector(match_labels={"a": "1"}), True),
        (LabelSelector(match_labels={"a": "2"}), False),
        (LabelSelector(match_labels={"b": "1"}), False),
        *(
            (
                LabelSelector(
                    match_expressions=(
                        LabelSelectorRequirement(key=key, operator=operator, values=values),
                    )
                ),
                expected,
            )
            for key, operator, values, expected in (
                ("a", "In", ("1", "2"), True),
                ("a", "In", ("2",), False),
                ("b", "In", ("1",), False),
                ("a", "NotIn", ("2",), True),
                ("b", "NotIn", ("2",), True),
                ("a", "NotIn", ("1",), False),
                ("a", "Exists", (), True),
                ("b", "Exists", (), False),
                ("b", "DoesNotExist", (), True),
                ("a", "DoesNotExist", (), False),
                ("a", "Unknown", (), False),
            )
        ),
    ],
)
def test_labels_are_selected(selector: LabelSelector | None, expected: bool) -> None:
    assert selects(selector, {"a": "1"}) == expected


async def test_bundles_are_followed_and_pods_that_project_them_are_told(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster(trust_bundles=True) as cluster:
        put(cluster, bundle("roots", ONE))
        projection = by_name("roots")
        cluster.references.register(pod_of(projection))
        cluster.references.register(pod_with("u2"))
        assert await cluster.references.trust_anchors(POD, projection) == ONE.encode()
        await wait_all_tasks_blocked()
        assert cluster.told.uids == []
        cluster.server.delete(CLUSTER_TRUST_BUNDLES, "roots")
        assert await cluster.told.wait() == ["u1"]
        with pytest.raises(ObjectError, match='"roots" not found'):
            await cluster.references.trust_anchors(POD, projection)
        assert await cluster.references.trust_anchors(POD, by_name("roots", optional=True)) == b""


async def test_a_signer_has_several_bundles(autojump_clock: MockClock) -> None:
    async with open_cluster(trust_bundles=True) as cluster:
        put(
            cluster,
            bundle("s:1", ONE, signer="x/s", live="yes"),
            bundle("s:2", TWO, signer="x/s"),
            bundle("t:1", TWO, signer="x/t"),
        )
        cluster.references.register(pod_of(by_signer("x/s")))
        ask = partial(cluster.references.trust_anchors, POD)
        assert count(await ask(by_signer("x/s"))) == 2
        live = LabelSelector(match_labels={"live": "yes"})
        assert await ask(by_signer("x/s", live)) == ONE.encode()
        with pytest.raises(ObjectError, match="matched zero ClusterTrustBundles"):
            await ask(by_signer("x/s", None))
        assert await ask(by_signer("x/none", optional=True)) == b""
        with pytest.raises(ObjectError, match="requires either name or signerName"):
            await ask(ClusterTrustBundleProjection(path="ca.pem"))


async def test_nothing_is_asked_before_a_pod_wants_bundles(autojump_clock: MockClock) -> None:
    async with open_cluster(trust_bundles=True) as cluster:
        cluster.references.register(pod_with("u1"))
        await trio.sleep(60)
        assert cluster.asked("list", "clustertrustbundles") == 0


async def test_a_server_without_bundles_is_told_and_asked_again_later(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster(trust_bundles=True) as cluster:
        put(cluster, bundle("roots", ONE))
        fault = cluster.server.faults.add(RequestFault(resource="clustertrustbundles", code=404))
        projection = by_name("roots")
        cluster.references.register(pod_of(projection))
        with pytest.raises(ObjectError, match=NOT_SERVED):
            await cluster.references.trust_anchors(POD, projection)
        cluster.server.faults.remove(fault)
        assert await cluster.told.wait() == ["u1"]
        assert await cluster.references.trust_anchors(POD, projection) == ONE.encode()


async def test_with_the_gate_closed_nothing_is_asked(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        projection = by_name("roots")
        cluster.references.register(pod_of(projection))
        with pytest.raises(ObjectError, match=DISABLED):
            await cluster.references.trust_anchors(POD, projection)
        assert cluster.asked("list", "clustertrustbundles") == 0


def test_a_bundle_that_cannot_be_read_is_named() -> None:
    text = "-----BEGIN CERTIFICATE-----\nx\u0663\n-----END CERTIFICATE-----"
    with pytest.raises(ObjectError, match='clustertrustbundle "broken"'):
        anchors_of([bundle("broken", text)])


def test_a_text_with_many_beginnings_and_no_end_is_read_once() -> None:
    began = time.thread_time()
    assert anchors_of([bundle("odd", "-----BEGIN CERTIFICATE-----" * 40_000)]) == b""
    assert not is_too_long(time.thread_time() - began)


async def test_a_bundle_is_read_once_in_each_version_and_never_in_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[tuple[str, bool]] = []

    def counted(bundle: ClusterTrustBundle) -> Certificates:
        read.append((bundle.metadata.name, threading.current_thread() is threading.main_thread()))
        return certificates(bundle)

    monkeypatch.setattr(trust_bundles, "certificates", counted)
    async with open_cluster(trust_bundles=True) as cluster:
        put(cluster, bundle("roots", ONE, "s/s"), bundle("others", TWO, "s/s"))
        cluster.references.register(pod_of(by_name("roots")))
        for projection in [by_name("roots"), by_signer("s/s", LabelSelector())] * 20:
            assert await cluster.references.trust_anchors(POD, projection)
        assert sorted(read) == [("others", False), ("roots", False)]
        cluster.server.update(CLUSTER_TRUST_BUNDLES, bundle("roots", TWO, "s/s"))
        await cluster.told.wait()
        assert await cluster.references.trust_anchors(POD, by_name("roots")) == TWO.encode()
        assert len(read) == 3


async def test_of_many_bundles_those_that_were_used_last_are_kept(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust_bundles, "KEPT_BYTES", 2 * len(ONE))
    read: list[str] = []

    def counted(bundle: ClusterTrustBundle) -> Certificates:
        read.append(bundle.metadata.name)
        return certificates(bundle)

    monkeypatch.setattr(trust_bundles, "certificates", counted)
    async with open_cluster(trust_bundles=True) as cluster:
        put(cluster, *(bundle(name, ONE) for name in "abc"))
        cluster.references.register(pod_of(by_name("a")))
        for name in "abacab":
            await cluster.references.trust_anchors(POD, by_name(name))
    assert read == ["a", "b", "c", "b"]


async def test_more_certificates_than_a_volume_may_hold_are_refused(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust_bundles, "MAX_BYTES", len(ONE))
    async with open_cluster(trust_bundles=True) as cluster:
        put(cluster, bundle("roots", ONE + TWO))
        cluster.references.register(pod_of(by_name("roots")))
        with pytest.raises(ObjectError, match="have more than"):
            await cluster.references.trust_anchors(POD, by_name("roots"))
