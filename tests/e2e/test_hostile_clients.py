"""What one user can do to others through the API server, which is one peer of the node: nothing."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.cluster import Namespace, until_term
from tests.e2e.local import LocalCluster
from tests.hostile.victims import Victims

FOLLOWERS = 340
"""More than the node has room for."""


@pytest.fixture(scope="module")
def victims(local_cluster: LocalCluster) -> Iterator[Victims]:
    """Ten good pods beside the tests' own."""
    found = Victims.of(local_cluster.agent, until_term("c"))
    yield found
    found.leave()


def test_hundreds_who_follow_a_quiet_log(
    local_cluster: LocalCluster, victims: Victims, namespace: Namespace
) -> None:
    namespace.run("quiet", until_term("c"))
    others = local_cluster.make_namespace("beside")
    others.run("good", until_term("c", "echo well"))
    log = f"{namespace.path('Pod', 'quiet')}/log"
    with victims.undisturbed(), ExitStack() as followers:
        for _ in range(FOLLOWERS):
            followers.enter_context(namespace.api.unread(log, follow="true"))
        assert others.kubectl("logs", "good") == "well\n"
        assert others.kubectl("exec", "good", "--", "echo", "well") == "well\n"
    others.delete()
