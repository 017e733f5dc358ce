"""Writes docs/settings.md out of the declarations of fields, options and gates.

python -m trio_kubelet.config.support_page >docs/settings.md
"""

from collections.abc import Collection, Iterable, Iterator

import attrs

from trio_kubelet.config.changes import DRAIN, LIVE
from trio_kubelet.config.flag_table import COLLECTOR_FLAGS, OPTION_FLAGS
from trio_kubelet.config.gates import KNOWN_GATES, Use
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.config.support import declared_fields, support_of

INTRODUCTION = """# What the agent does with settings and feature gates

All fields of KubeletConfiguration, all flags and all feature gates of Kubernetes 1.36 are read \
and checked. Those that the agent does not act on, or only in part, are below with the reason; all \
others it acts on, or they have no effect in the Go kubelet either.

What is set to other than its default, or than what the agent does, is named in one warning at \
the start. A default is not: **bold** are the fields and gates whose defaults say something else \
than the agent does.

Written by `python -m trio_kubelet.config.support_page`.
"""


def page() -> str:
    """The text of docs/settings.md."""
    sections = (*_fields(), "", *_flags(), "", *_gates(), "", *_changes())
    return "\n".join((INTRODUCTION, *sections)) + "\n"


def _fields() -> Iterator[str]:
    fields = list(declared_fields(KubeletConfiguration()))
    yield "## Fields\n"
    yield "These will not do more than this:\n"
    yield "| fields | why |"
    yield "|---|---|"
    fixed = [each for each in fields if each.support.acts_as_with is not None]
    yield from _rows((each.support.reason, each.path) for each in fields if each not in fixed)
    yield "\nThresholds of the signals `containerfs.*` have no effect, in the Go kubelet neither.\n"
    yield "| field | the agent acts as with | why |"
    yield "|---|---|---|"
    for each in fixed:
        value = each.support.acts_as_with
        shown = str(value).lower() if isinstance(value, bool) else value
        name = _name(each.path, bold=each.default != value)
        yield f"| {name} | `{shown}` | {each.support.reason} |"


def _flags() -> Iterator[str]:
    yield "## Flags that are no fields\n"
    yield "These will do nothing:\n"
    yield "| flags | why |"
    yield "|---|---|"
    reasons = {
        attribute.name: support_of(attribute).reason for attribute in attrs.fields(NodeOptions)
    }
    unheeded = [(reasons.get(flag.option, ""), f"--{flag.name}") for flag in OPTION_FLAGS]
    unheeded += [(reasons["cadvisor"], f"--{flag.name}") for flag in COLLECTOR_FLAGS]
    yield from _rows(unheeded)


def _gates() -> Iterator[str]:
    def used(use: Use) -> list[str]:
        return [name for name, gate in KNOWN_GATES.items() if gate.use is use]

    on = {name for name, gate in KNOWN_GATES.items() if gate.default}
    yield "## Feature gates\n"
    yield f"Asked for: {_listed(used(Use.ASKED), ())}.\n"
    always = used(Use.AS_IF_ON)
    yield f"As if on, whatever is set: {_listed(always, set(always) - on)}.\n"
    yield "As if off, whatever is set, and to stay so:\n"
    yield "| gates | why |"
    yield "|---|---|"
    yield from _rows(((gate.reason, name) for name, gate in KNOWN_GATES.items()), on)
    yield (
        "\nAll others concern the control plane, kube-proxy, Windows or the libraries of the Go "
        "kubelet. They are accepted, because a cluster may share its gates, and have no effect."
    )


def _changes() -> Iterator[str]:
    yield "## Changes while the agent runs\n"
    yield (
        "`systemctl reload` (SIGHUP) has the configuration and its drop-ins read anew. If anything "
        "is wrong with them, the log says so and the last good settings stay; flags stay as they "
        "are. `trio-kubelet check-config --diff RUNNING NEW` tells beforehand what a change "
        "needs, `/configz` what is in force.\n"
    )
    files = "the content of the files that `--image-credential-provider-config` names"
    yield f"Taken over at once: {_listed(LIVE, ())}; {files}.\n"
    yield f"Only to be changed by a restart on a drained node: {_listed(DRAIN, ())}.\n"
    yield "All others need a restart of the agent, which disturbs no pod."


def _rows(explained: Iterable[tuple[str, str]], bold: Collection[str] = ()) -> Iterator[str]:
    """A row for each explanation, with the names that have it; names without one have no row."""
    by_explanation: dict[str, list[str]] = {}
    for explanation, name in explained:
        by_explanation.setdefault(explanation, []).append(name)
    for explanation, names in by_explanation.items():
        if explanation:
            yield f"| {_listed(names, bold)} | {explanation} |"


def _listed(names: Iterable[str], bold: Collection[str]) -> str:
    return ", ".join(_name(name, bold=name in bold) for name in sorted(names))


def _name(name: str, *, bold: bool) -> str:
    return f"**`{name}`**" if bold else f"`{name}`"


if __name__ == "__main__":
    print(page(), end="")
