"""The containers that ended by the kernel's OOM killer, by the counts of cgroup v2. Pure.

A pod's `memory.events` counts the kills in all cgroups below it and outlives those of its
containers, which are gone when an end is seen. What the pod's cgroup counts and those that are
still there do not was killed in those that went. Where that could have been more than one
container, and the kernel's count of killed groups does not settle it, nothing is said.
"""

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve, field, frozen

KILLED_EXIT_CODE = 137
KEPT_VERDICTS = 100
"""Of each pod, beyond the containers that the runtime still shows."""
_SCOPE = ".scope"
_MONITOR = "-conmon-"
"""In the scope of CRI-O's monitor of a container, which is not the container's own."""


@frozen
class Kills:
    """Counts of `memory.events`: processes killed, and cgroups that were killed as a whole."""

    processes: int = 0
    groups: int = 0

    def __add__(self, other: "Kills") -> "Kills":
        return Kills(self.processes + other.processes, self.groups + other.groups)

    def __sub__(self, other: "Kills") -> "Kills":
        return Kills(self.processes - other.processes, self.groups - other.groups)


@frozen(kw_only=True)
class KillCounts:
    """The counts of a pod's cgroup, and each cgroup directly below it by the name of its folder.

    `cgroup` tells this cgroup from one of the same name that was there before.
    """

    cgroup: str
    total: Kills
    below: Mapping[str, Kills]

    @property
    def gone(self) -> Kills:
        """The kills in cgroups that are not there any more."""
        return self.total - sum(self.below.values(), Kills())


@frozen(kw_only=True)
class SeenContainer:
    """A container of a pod, as the runtime shows it. One that was not started has no cgroup."""

    id: str
    name: str
    restart_count: int = 0
    started: bool = True
    ended: bool = False
    exit_code: int = 0
    told_killed: bool = False

    @property
    def was_killed(self) -> bool:
        """True if it ended by KILL, whoever sent that."""
        return self.ended and self.exit_code == KILLED_EXIT_CODE


@frozen(kw_only=True)
class OomLedger:
    """The record of one pod: `verdicts` say of ended containers whether it was the OOM killer.

    `settled` are the kills in cgroups that are gone and whose containers are judged, `cgroup`
    where they were counted. `shared` are cgroups with kills that the last counts had.
    """

    cgroup: str = ""
    settled: Kills = Kills()
    verdicts: Mapping[str, bool] = field(factory=dict)
    shared: frozenset[str] = frozenset()

    @property
    def killed(self) -> frozenset[str]:
        """The ids of the containers that the OOM killer ended."""
        return frozenset(each for each, verdict in self.verdicts.items() if verdict)

    @property
    def record(self) -> tuple[str, Kills, frozenset[str]] | None:
        """The part that has to outlive the agent; None while nothing was killed."""
        if not self.killed and not self.settled.processes:
            return None
        return self.cgroup, self.settled, self.killed

    def with_newest(self, seen: Iterable[SeenContainer]) -> "OomLedger":
        """Return the ledger without old verdicts on containers that are not shown any more.

        Inspections may overlap: one that shows less than the last does not make anything forgotten.
        """
        shown = {each.id for each in seen}
        others = [each for each in self.verdicts if each not in shown]
        old = frozenset(others[: max(0, len(others) - KEPT_VERDICTS)])
        if not old:
            return self
        kept = {each: verdict for each, verdict in self.verdicts.items() if each not in old}
        return evolve(self, verdicts=kept)

    def knows_ends_of(self, seen: Iterable[SeenContainer]) -> bool:
        """True if all that have ended are judged."""
        return all(each.id in self.verdicts for each in seen if each.ended)


def first_ledger(counts: KillCounts, seen: Sequence[SeenContainer]) -> OomLedger:
    """Return what is known of a pod that nothing was recorded of.

    Where the runtime shows all containers that the pod ever had, the counts are theirs. Else they
    may be those of containers that are gone, and say nothing of those that have ended.
    """
    if shows_all(seen):
        return OomLedger(cgroup=counts.cgroup)
    return OomLedger(
        cgroup=counts.cgroup,
        settled=counts.gone,
        verdicts={each.id: each.told_killed for each in seen if each.ended},
    )


def shows_all(seen: Iterable[SeenContainer]) -> bool:
    """True if no container is missing, by the counts of restarts."""
    counts: dict[str, set[int]] = {}
    for each in seen:
        counts.setdefault(each.name, set()).add(each.restart_count)
    return all(found == set(range(max(found) + 1)) for found in counts.values())


def judged(
    ledger: OomLedger, counts: KillCounts, seen: Sequence[SeenContainer], *, whole: bool
) -> OomLedger:
    """Return the ledger with verdicts on containers that ended since, as far as the counts tell.

    `whole`: an OOM kill takes all of a container (`memory.oom.group`). An end is left open while
    it is not known whether the kill was that of another whose end was not seen yet.
    """
    if ledger.cgroup != counts.cgroup:
        ledger = evolve(ledger, cgroup=counts.cgroup, settled=Kills(), shared=frozenset())
    own = {each.id: _own(counts, each.id) for each in seen}
    open_ends = [each for each in seen if each.id not in ledger.verdicts]
    absent = [each for each in open_ends if own[each.id] is None]
    verdicts = dict(ledger.verdicts)
    for each in open_ends:
        kills = own[each.id]
        if each.ended and kills is not None:
            verdicts[each.id] = each.was_killed and kills.processes > 0
    verdicts.update(_verdicts(counts.gone - ledger.settled, ledger, counts, absent, whole=whole))
    is_settled = all(each.id in verdicts for each in absent)
    return evolve(
        ledger,
        settled=counts.gone if is_settled else ledger.settled,
        verdicts=verdicts,
        shared=frozenset(name for name, kills in counts.below.items() if kills.processes),
    )


def _verdicts(
    new: Kills,
    ledger: OomLedger,
    counts: KillCounts,
    absent: Sequence[SeenContainer],
    *,
    whole: bool,
) -> Mapping[str, bool]:
    """Verdicts on containers whose cgroups are gone; `new` are the kills that may be theirs."""
    ended = [each for each in absent if each.ended]
    if new.processes <= 0:
        return {each.id: False for each in ended}
    rivals = [each for each in absent if each.was_killed or not (whole and each.ended)]
    number = len(rivals) + len(ledger.shared - counts.below.keys())
    all_of_them = number == 1 or (whole and new.groups >= number)
    if not all_of_them and any(not each.ended for each in rivals):
        return {}
    return {each.id: each.told_killed or (each.was_killed and all_of_them) for each in ended}


def _own(counts: KillCounts, container_id: str) -> Kills | None:
    """The count of a container's cgroup; None if there is none."""
    for name, kills in counts.below.items():
        if name == container_id:
            return kills
        if name.endswith(f"-{container_id}{_SCOPE}") and _MONITOR not in name:
            return kills
    return None
