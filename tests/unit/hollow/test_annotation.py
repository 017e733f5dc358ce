"""How the annotations of a pod script its containers."""

from collections.abc import Mapping

import pytest

from trio_kubelet.hollow import (
    BEHAVIOUR_ANNOTATION,
    Behaviour,
    BehaviourError,
    ExecResult,
    Invocation,
    LogLine,
    behaviour_of,
)
from trio_kubelet.hollow.annotation import parse_behaviour


def invocation(annotations: Mapping[str, str], attempt: int = 0) -> Invocation:
    return Invocation(
        name="main",
        image="busybox",
        command=("sleep", "5"),
        attempt=attempt,
        pod_annotations=annotations,
    )


def test_without_an_annotation_the_command_speaks() -> None:
    assert behaviour_of(invocation({})).run_seconds == 5


def test_the_pods_annotation_speaks_for_all_of_its_containers() -> None:
    annotations = {BEHAVIOUR_ANNOTATION: '{"runSeconds": 2, "exitCode": 1}'}
    assert behaviour_of(invocation(annotations)) == Behaviour(run_seconds=2, exit_code=1)


def test_a_containers_own_annotation_comes_first() -> None:
    annotations = {
        BEHAVIOUR_ANNOTATION: "{exitCode: 1}",
        f"{BEHAVIOUR_ANNOTATION}.main": "{exitCode: 2}",
        f"{BEHAVIOUR_ANNOTATION}.other": "{exitCode: 3}",
    }
    assert behaviour_of(invocation(annotations)).exit_code == 2


@pytest.mark.parametrize(("attempt", "exit_code"), [(0, 1), (1, 2), (2, 0), (9, 0)])
def test_a_list_gives_each_attempt_its_own_and_its_last_repeats(
    attempt: int, exit_code: int
) -> None:
    text = "[{exitCode: 1}, {exitCode: 2}, {exitCode: 0}]"
    assert behaviour_of(invocation({BEHAVIOUR_ANNOTATION: text}, attempt)).exit_code == exit_code


def test_every_field_can_be_written() -> None:
    text = """
    runSeconds: 1.5
    exitCode: 3
    obeysTerm: null
    termExitCode: 9
    createLatency: 1
    startLatency: 2
    startError: no such file
    oomKilled: true
    logLines: [hello, {text: later, atSeconds: 1, everySeconds: 2, stream: stderr}]
    terminationMessage: bye
    execs: {cat /x: {stdout: content, exitCode: 1}}
    """
    assert parse_behaviour(text) == Behaviour(
        run_seconds=1.5,
        exit_code=3,
        obeys_term=None,
        term_exit_code=9,
        create_latency=1,
        start_latency=2,
        start_error="no such file",
        oom_killed=True,
        log_lines=(
            LogLine(text="hello"),
            LogLine(text="later", at_seconds=1, every_seconds=2, stream="stderr"),
        ),
        termination_message="bye",
        execs={"cat /x": ExecResult(stdout="content", exit_code=1)},
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{runSecond: 1}", "runSecond"),
        ("{runSeconds: soon}", "behaviour.run_seconds"),
        ("{logLines: [{atSeconds: 1}]}", "text"),
        ("sleep 5", "expected a mapping, got 'sleep 5'"),
        ("[]", "expected a mapping"),
        ("{exitCode: ", "not YAML"),
    ],
)
def test_a_mistake_is_named(text: str, problem: str) -> None:
    with pytest.raises(BehaviourError, match=problem):
        parse_behaviour(text)
