"""Which fields differ between two configurations, and what each change needs."""

import pytest
from attrs import evolve

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.changes import DRAIN, LIVE, Effect, changes, with_fields
from trio_kubelet.config.parts import LoggingConfiguration, UserNamespaces
from trio_kubelet.config.support import declared_fields

DEFAULT = KubeletConfiguration()


def shown(new: KubeletConfiguration, running: KubeletConfiguration = DEFAULT) -> list[str]:
    return [f"{each.effect}: {each}" for each in changes(running, new)]


def test_nothing_differs_from_itself() -> None:
    assert changes(DEFAULT, KubeletConfiguration()) == ()


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (evolve(DEFAULT, registry_burst=20), "live: registryBurst: 10 -> 20"),
        (evolve(DEFAULT, max_pods=20), "restart: maxPods: 110 -> 20"),
        (
            evolve(DEFAULT, cgroup_driver="systemd"),
            "drain first: cgroupDriver: cgroupfs -> systemd",
        ),
        (
            evolve(DEFAULT, logging=LoggingConfiguration(verbosity=4)),
            "live: logging.verbosity: 0 -> 4",
        ),
        (
            evolve(DEFAULT, system_reserved={"cpu": "1"}),
            'restart: systemReserved: unset -> {"cpu": "1"}',
        ),
        (
            evolve(DEFAULT, user_namespaces=UserNamespaces(ids_per_pod=131072)),
            "drain first: userNamespaces.idsPerPod: unset -> 131072",
        ),
        (
            evolve(DEFAULT, static_pod_url="https://me:secret@host"),
            "live: staticPodURL: unset -> <hidden>",
        ),
    ],
)
def test_a_change_is_told_with_its_values_and_what_it_needs(
    new: KubeletConfiguration, expected: str
) -> None:
    assert shown(new) == [expected]
    assert len(shown(DEFAULT, new)) == 1, "and the way back"


def test_only_fields_that_there_are_have_an_effect_of_their_own() -> None:
    whole = evolve(DEFAULT, user_namespaces=UserNamespaces())
    paths = {each.path for one in (DEFAULT, whole) for each in declared_fields(one)}
    assert paths >= LIVE | DRAIN
    assert not LIVE & DRAIN


def test_some_fields_are_taken_from_another_configuration() -> None:
    running = evolve(DEFAULT, logging=LoggingConfiguration(format="json"))
    new = evolve(DEFAULT, max_pods=20, registry_burst=20, logging=LoggingConfiguration(verbosity=4))
    live = [each.path for each in changes(running, new) if each.effect is Effect.LIVE]
    assert with_fields(running, new, live) == evolve(
        running,
        registry_burst=20,
        logging=LoggingConfiguration(format="json", verbosity=4),
    )
