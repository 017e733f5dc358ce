"""The life of a pod is what a small model of the rules says, whatever its containers do.

The real parts that act on pods and the model live through the same script: which instances start
and end when and how, when containers turn ready, how often they were restarted and how the pod
ends must be the same. `LIFECYCLE_EXAMPLES` says how many pods are tried.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings

from state_machines.container import ContainerRole
from state_machines.probe import ProbeKind
from tests.properties.lifecycle.model import Model
from tests.properties.lifecycle.scripts import (
    ERROR,
    FAILURE,
    KILLED,
    LATE,
    SUCCESS,
    ContainerScript,
    Life,
    PodScript,
    ProbeScript,
    pods,
)
from tests.properties.lifecycle.world import live

Moments = Sequence[tuple[Any, ...]]
# A pod may live for hours of simulated time, which is up to two seconds of a processor's.
EXAMPLES = int(os.environ.get("LIFECYCLE_EXAMPLES", settings().max_examples // 5))
MOMENT_SECONDS = 0.02
"""What calls and file work may add up to, and what is too short to be told of for certain."""

SIDECAR, INIT = ContainerRole.SIDECAR, ContainerRole.INIT
LIVENESS, READINESS, STARTUP = ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP

RESTARTS_AND_BACK_OFFS = PodScript(
    containers=(
        ContainerScript(name="init-0", role=INIT, lives=(Life(2.3, 1), Life(0.3))),
        ContainerScript(
            name="main-0",
            lives=(Life(2.3, 1), Life()),
            probes=(
                ProbeScript(kind=READINESS),
                ProbeScript(kind=LIVENESS, outcomes=(SUCCESS, FAILURE), period=3),
            ),
        ),
    ),
)
GRACE_OF_A_PROBE_AFTER_A_HOOK = PodScript(
    containers=(
        ContainerScript(name="init-0", role=SIDECAR, obeys=None, pre_stop=2),
        ContainerScript(
            name="main-0",
            obeys=None,
            post_start=2,
            pre_stop=2,
            probes=(
                ProbeScript(kind=STARTUP, outcomes=(LATE, FAILURE, SUCCESS), delay=5, period=3),
                ProbeScript(kind=LIVENESS, outcomes=(FAILURE, ERROR), failures=1, grace=4),
            ),
        ),
        ContainerScript(name="main-1", probes=(ProbeScript(kind=READINESS, successes=3),)),
    ),
)
ENDS_WELL_WHEN_ITS_PROBE_HAS_FAILED = PodScript(
    containers=(
        ContainerScript(
            name="main-0",
            term_code=0,
            probes=(ProbeScript(kind=LIVENESS, outcomes=(FAILURE,), period=1),),
        ),
        ContainerScript(name="main-1", lives=(Life(2.3),)),
    ),
    policy="OnFailure",
    removed_after=45.48,
)
END_WELL_IN_ONE_STOP_WHEN_THEIR_PROBES_HAVE_FAILED = PodScript(
    containers=tuple(
        ContainerScript(
            name=name,
            term_code=0,
            policy="OnFailure",
            pre_stop=2,
            probes=(ProbeScript(kind=STARTUP, outcomes=(LATE,), delay=12, failures=1, grace=1),),
        )
        for name in ("main-0", "main-1")
    ),
    policy="Never",
    removed_after=45.48,
)
NOT_RESTARTED_AFTER_ITS_PROBE = PodScript(
    containers=(
        ContainerScript(name="init-0", role=SIDECAR, pre_stop=6),
        ContainerScript(
            name="main-0",
            policy="Never",
            pre_stop=6,
            probes=(ProbeScript(kind=LIVENESS, outcomes=(FAILURE,), failures=1, grace=4),),
        ),
    ),
    grace=2,
)
STOPPED_BEFORE_ANOTHER_STARTS_WITH_A_HOOK = PodScript(
    containers=(
        ContainerScript(
            name="main-0",
            probes=(ProbeScript(kind=LIVENESS, outcomes=(SUCCESS, LATE), period=1, failures=1),),
        ),
        ContainerScript(
            name="main-1",
            obeys=3.7,
            policy="Never",
            rule=(KILLED,),
            post_start=2,
            probes=(ProbeScript(kind=STARTUP, outcomes=(FAILURE,), period=1, failures=1),),
        ),
    ),
    grace=2,
    removed_after=8.48,
)
FAIL_AFTER_ONE_ANOTHER = PodScript(
    containers=(
        ContainerScript(
            name="init-0",
            role=SIDECAR,
            post_start=2,
            probes=(
                ProbeScript(kind=LIVENESS, outcomes=(LATE, LATE, FAILURE), period=1),
                ProbeScript(kind=READINESS, period=1),
            ),
        ),
        ContainerScript(
            name="init-1",
            role=SIDECAR,
            post_start=2,
            probes=(ProbeScript(kind=STARTUP, outcomes=(FAILURE,), period=1, failures=1),),
        ),
        ContainerScript(name="main-0", lives=(Life(2.3),)),
    ),
    grace=2,
    removed_after=45.48,
)
# One sidecar has ended while the other one, which takes its time, is still being stopped.
SERVES_NOBODY_WHEN_IT_HAS_ENDED_UNSEEN = PodScript(
    containers=(
        ContainerScript(name="init-0", role=SIDECAR, obeys=3.7),
        ContainerScript(
            name="init-1",
            role=SIDECAR,
            lives=(Life(0.3),),
            obeys=0.7,
            probes=(ProbeScript(kind=READINESS, period=1, failures=1),),
        ),
        ContainerScript(name="main-0", lives=(Life(0.3),), obeys=0.7),
    ),
    policy="OnFailure",
    grace=2,
    removed_after=8.48,
)


@settings(max_examples=EXAMPLES)
@given(script=pods())
@example(script=RESTARTS_AND_BACK_OFFS)
@example(script=GRACE_OF_A_PROBE_AFTER_A_HOOK)
@example(script=ENDS_WELL_WHEN_ITS_PROBE_HAS_FAILED)
@example(script=END_WELL_IN_ONE_STOP_WHEN_THEIR_PROBES_HAVE_FAILED)
@example(script=NOT_RESTARTED_AFTER_ITS_PROBE)
@example(script=STOPPED_BEFORE_ANOTHER_STARTS_WITH_A_HOOK)
@example(script=FAIL_AFTER_ONE_ANOTHER)
@example(script=SERVES_NOBODY_WHEN_IT_HAS_ENDED_UNSEEN)
def test_a_pod_lives_as_the_model_says(script: PodScript) -> None:
    model, lived = Model(script), live(script)
    model.live()
    assert lived.errors == ()
    assert [each[1:] for each in lived.starts] == [each[1:] for each in model.starts]
    assert_same(lived.starts, model.starts)
    assert_same(lived.ends, model.ends)
    assert_same(lasting(lived.turned), lasting(model.turned))
    assert lived.phase == model.phase
    assert lived.restarts == model.restarts


def lasting(turned: Sequence[tuple[float, str, bool]]) -> Moments:
    """The turns after which a moment passed: what came and went in one may be told of or not."""
    kept: list[tuple[float, str, bool]] = []
    for name in sorted({name for _, name, _ in turned}):
        own = [each for each in turned if each[1] == name]
        following = [each[0] for each in own[1:]] + [math.inf]
        pairs = zip(own, following, strict=True)
        own = [each for each, then in pairs if then - each[0] > MOMENT_SECONDS]
        before = [False, *(ready for _, _, ready in own[:-1])]
        kept += [each for each, was in zip(own, before, strict=False) if each[2] is not was]
    return kept


def assert_same(lived: Moments, model: Moments) -> None:
    """Compare what happened to each container, in its order, and when."""
    for name in sorted({each[1] for each in (*lived, *model)}):
        was, should = ([each for each in some if each[1] == name] for some in (lived, model))
        assert [each[1:] for each in was] == [each[1:] for each in should]
        times = [each[0] for each in should]
        assert [each[0] for each in was] == pytest.approx(times, abs=MOMENT_SECONDS)
