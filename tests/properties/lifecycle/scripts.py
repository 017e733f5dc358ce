"""What a pod's containers and probes do in one example, and how it becomes a pod.

Moments of different kinds never fall together: processes end some tenths of a second after whole
ones, which are when probes run and hooks end.
"""

from collections.abc import Iterable

from attrs import frozen
from hypothesis import strategies as st

from state_machines.container import ContainerRole
from state_machines.probe import ProbeKind
from trio_kubelet.hollow import Behaviour, Invocation
from trio_kubelet.hollow.behaviour import Behaviours
from trio_kubelet.k8s import (
    Container,
    ExecAction,
    Lifecycle,
    LifecycleHandler,
    ObjectMeta,
    Pod,
    PodSpec,
    Probe,
    SleepAction,
    TCPSocketAction,
)
from trio_kubelet.k8s.container import (
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
)
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.k8s.intstr import IntOrString
from trio_kubelet.probes.pod_probes import COMMAND_SETTLE_SECONDS, CONNECTION_SETTLE_SECONDS

KILLED = 137
IMAGE = "registry.example.com/app:1"
PROBE_TIMEOUT_SECONDS = 1
SUCCESS, FAILURE, ERROR, LATE, CUT_OFF = "success", "failure", "error", "late", "cut off"
"""How one run of a probe comes out: `LATE` is a failure after its timeout, and `CUT_OFF` one that
looks as if its container had ended."""


@frozen
class Life:
    """What one instance of a container does: None runs until it is stopped."""

    seconds: float | None = None
    exit_code: int = 0


@frozen(kw_only=True)
class ProbeScript:
    """A probe and how it comes out, run by run, for each instance anew; the last one stays."""

    kind: ProbeKind
    outcomes: tuple[str, ...] = (SUCCESS,)
    delay: int = 0
    period: int = 10
    successes: int = 1
    failures: int = 3
    grace: int | None = None
    by_command: bool = False

    def outcome(self, run: int) -> str:
        """How a run comes out, counted from 0."""
        return self.outcomes[min(run, len(self.outcomes) - 1)]


@frozen(kw_only=True)
class ContainerScript:
    """A container. `lives` are those of its instances, of which the last repeats.

    `obeys` is how many seconds after TERM it ends with `term_code`; None: it ignores it. `rule`
    are the exit codes after which a rule of its own restarts it, beside `policy`.
    """

    name: str
    role: ContainerRole = ContainerRole.REGULAR
    lives: tuple[Life, ...] = (Life(),)
    obeys: float | None = 0.7
    term_code: int = 143
    policy: str = ""
    rule: tuple[int, ...] = ()
    post_start: int = 0
    pre_stop: int = 0
    probes: tuple[ProbeScript, ...] = ()

    def life(self, attempt: int) -> Life:
        """What the instance of that number does."""
        return self.lives[min(attempt, len(self.lives) - 1)]

    def probe(self, kind: ProbeKind) -> ProbeScript | None:
        """Its probe of that kind."""
        return next((probe for probe in self.probes if probe.kind is kind), None)


@frozen(kw_only=True)
class PodScript:
    """A pod, which is removed after some seconds."""

    containers: tuple[ContainerScript, ...]
    policy: str = "Always"
    grace: int = 30
    removed_after: float = 150.48

    @property
    def init(self) -> tuple[ContainerScript, ...]:
        """Its init containers, sidecars among them."""
        return tuple(c for c in self.containers if c.role is not ContainerRole.REGULAR)

    @property
    def regular(self) -> tuple[ContainerScript, ...]:
        """Its other containers."""
        return tuple(c for c in self.containers if c.role is ContainerRole.REGULAR)

    def answer_seconds(self, name: str, kind: ProbeKind, outcome: str) -> float:
        """How long one run of a probe takes: no two of a pod are answered in one moment, nor
        after some late answers, each of which is followed by the next run. What cannot be run
        takes no time.
        """
        if outcome == ERROR:
            return 0.0
        number = [c.name for c in self.containers].index(name) * 3 + list(ProbeKind).index(kind)
        return 0.0547 + 0.0168 * number + (PROBE_TIMEOUT_SECONDS if outcome == LATE else 0)

    def doubt_seconds(self, name: str, kind: ProbeKind) -> float:
        """After how long a run that was cut off counts, if its container runs on."""
        probe = self.container(name).probe(kind)
        is_command = probe is not None and probe.by_command
        return COMMAND_SETTLE_SECONDS if is_command else CONNECTION_SETTLE_SECONDS

    def life_seconds(self, container: ContainerScript, attempt: int) -> float | None:
        """How long an instance runs by itself: no two of a pod end in one moment."""
        seconds = container.life(attempt).seconds
        return None if seconds is None else seconds + 0.01 * self.containers.index(container)

    def container(self, name: str) -> ContainerScript:
        """The container of that name."""
        return next(c for c in self.containers if c.name == name)


def pod_of(script: PodScript) -> Pod:
    """The pod as its owner writes it."""
    return with_defaults(
        Pod(
            metadata=ObjectMeta(name="web", namespace="default", uid="uid-web"),
            spec=PodSpec(
                init_containers=tuple(map(_container, script.init)),
                containers=tuple(map(_container, script.regular)),
                restart_policy=script.policy,
                dns_policy="Default",
                termination_grace_period_seconds=script.grace,
                node_name="node",
            ),
        )
    )


def behaviours_of(script: PodScript) -> Behaviours:
    """What the processes of the pod's containers do."""

    def behaviour(invocation: Invocation) -> Behaviour:
        container = script.container(invocation.name)
        life = container.life(invocation.attempt)
        return Behaviour(
            run_seconds=script.life_seconds(container, invocation.attempt),
            exit_code=life.exit_code,
            obeys_term=container.obeys,
            term_exit_code=container.term_code,
        )

    return behaviour


def _container(script: ContainerScript) -> Container:
    policy = "Always" if script.role is ContainerRole.SIDECAR else script.policy
    post_start, pre_stop = map(_sleep, (script.post_start, script.pre_stop))
    codes = ContainerRestartRuleOnExitCodes(operator="In", values=script.rule)
    return Container(
        name=script.name,
        image=IMAGE,
        restart_policy=policy,
        restart_policy_rules=(ContainerRestartRule(action="Restart", exit_codes=codes),)
        if script.rule
        else (),
        lifecycle=Lifecycle(post_start=post_start, pre_stop=pre_stop)
        if post_start or pre_stop
        else None,
        startup_probe=_probe(script.probe(ProbeKind.STARTUP)),
        readiness_probe=_probe(script.probe(ProbeKind.READINESS)),
        liveness_probe=_probe(script.probe(ProbeKind.LIVENESS)),
    )


def _sleep(seconds: int) -> LifecycleHandler | None:
    return LifecycleHandler(sleep=SleepAction(seconds=seconds)) if seconds else None


def _probe(script: ProbeScript | None) -> Probe | None:
    if script is None:
        return None
    command = ExecAction(command=("probe", script.kind)) if script.by_command else None
    return Probe(
        exec=command,
        tcp_socket=None if command else TCPSocketAction(port=IntOrString(80)),
        initial_delay_seconds=script.delay,
        period_seconds=script.period,
        timeout_seconds=PROBE_TIMEOUT_SECONDS,
        success_threshold=script.successes,
        failure_threshold=script.failures,
        termination_grace_period_seconds=script.grace,
    )


# Examples

seconds = st.sampled_from((0.3, 2.3, 7.3, 15.3, 40.3))
exit_codes = st.sampled_from((0, 0, 1, 3))


@st.composite
def probes(draw: st.DrawFn, kind: ProbeKind) -> ProbeScript:
    """A probe of a kind."""
    often = st.sampled_from((SUCCESS, SUCCESS, SUCCESS, FAILURE, FAILURE, ERROR, LATE, CUT_OFF))
    is_readiness = kind is ProbeKind.READINESS
    return ProbeScript(
        kind=kind,
        outcomes=tuple(draw(st.lists(often, min_size=1, max_size=6))),
        delay=draw(st.sampled_from((0, 0, 5, 12))),
        period=draw(st.sampled_from((1, 3, 10))),
        successes=draw(st.integers(1, 3)) if is_readiness else 1,
        failures=draw(st.integers(1, 3)),
        grace=None if is_readiness else draw(st.sampled_from((None, None, 1, 4))),
        by_command=draw(st.booleans()),
    )


def _some_probes(draw: st.DrawFn) -> Iterable[ProbeScript]:
    for kind in ProbeKind:
        if draw(st.booleans()):
            yield draw(probes(kind))


@st.composite
def containers(draw: st.DrawFn, name: str, role: ContainerRole) -> ContainerScript:
    """A container of a role."""
    is_init = role is ContainerRole.INIT
    ends = st.builds(Life, seconds, exit_codes)
    lives = ends if is_init else ends | st.just(Life()) | st.just(Life())
    policy = ""
    if role is not ContainerRole.SIDECAR:
        policy = draw(st.sampled_from(("", "", "", "Never", "OnFailure")))
    return ContainerScript(
        name=name,
        role=role,
        lives=tuple(draw(st.lists(lives, min_size=1, max_size=3))),
        obeys=draw(st.sampled_from((0.7, 0.7, 3.7, None))),
        term_code=draw(st.sampled_from((143, 143, 0))),
        policy=policy,
        rule=draw(st.sampled_from(((), (3,), (3, KILLED)))) if policy else (),
        post_start=0 if is_init else draw(st.sampled_from((0, 0, 0, 2))),
        pre_stop=0 if is_init else draw(st.sampled_from((0, 0, 0, 2, 6))),
        probes=() if is_init else tuple(_some_probes(draw)),
    )


@st.composite
def pods(draw: st.DrawFn) -> PodScript:
    """A pod of one to four containers."""
    roles = draw(st.lists(st.sampled_from((ContainerRole.INIT, ContainerRole.SIDECAR)), max_size=2))
    init = [draw(containers(f"init-{n}", role)) for n, role in enumerate(roles)]
    regular = [
        draw(containers(f"main-{n}", ContainerRole.REGULAR)) for n in range(draw(st.integers(1, 2)))
    ]
    return PodScript(
        containers=(*init, *regular),
        policy=draw(st.sampled_from(("Always", "OnFailure", "Never"))),
        grace=draw(st.sampled_from((2, 5, 30))),
        removed_after=draw(st.sampled_from((8.48, 45.48, 150.48))),
    )
