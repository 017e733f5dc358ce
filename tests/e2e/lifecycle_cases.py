"""Pods whose containers note when they start and stop, and what they come to on a Go kubelet.

A container notes `+name` as it starts and `-name` as it is told to stop. The pods ran on the Go
kubelet first.
"""

from collections.abc import Mapping

from attrs import field, frozen

from lab.cluster_api import Json
from tests.e2e.cluster import shell

MOUNT = [{"name": "notes", "mountPath": "/notes"}]


@frozen(kw_only=True)
class Lifecycle:
    """One pod: its spec, and what it comes to.

    `phase` and the counts of `restarts` (of containers that have any) are those that it stays
    with; then it is deleted. `notes` are all that its containers have noted in the end.
    `exit_codes` are told at its end.
    """

    spec: Json
    phase: str
    notes: str
    restarts: Mapping[str, int] = field(factory=dict)
    exit_codes: Mapping[str, int] = field(factory=dict)


def note(name: str) -> str:
    """Note something."""
    return f"echo '{name}' >>/notes/all"


def ends(name: str, exit_code: int = 0, **fields: object) -> Json:
    """A container that ends by itself at once."""
    return shell(name, f"{note(f'+{name}')}; exit {exit_code}", volumeMounts=MOUNT, **fields)


def stays(name: str, before: str = ":", **fields: object) -> Json:
    """A container that stays until it is told to stop."""
    script = f"trap '{note(f'-{name}').replace(chr(39), '')}; exit 0' TERM; {note(f'+{name}')}"
    return shell(name, f"{script}; {before}; sleep 1000000 & wait", volumeMounts=MOUNT, **fields)


def first(name: str, then: str) -> str:
    """What a container does the first time that it runs, and never again."""
    return f"if ! test -e /notes/{name}; then touch /notes/{name}; {then}; fi"


def of(*containers: Json, **spec: object) -> Json:
    """A pod's spec."""
    return {"containers": list(containers), "terminationGracePeriodSeconds": 20, **spec}


def once(*containers: Json, **spec: object) -> Json:
    """A pod's spec whose containers run once."""
    return of(*containers, restartPolicy="Never", **spec)


def run(script: str) -> Json:
    """A command, of a probe or a hook."""
    return {"exec": {"command": ["sh", "-c", script]}}


SIDECAR = {"restartPolicy": "Always"}
EACH_SECOND = {"periodSeconds": 1, "failureThreshold": 60}
ON_42 = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}

LIFECYCLES: Mapping[str, Lifecycle] = {
    "inits-come-in-order": Lifecycle(
        spec=once(ends("c"), initContainers=[ends("a"), ends("b")]),
        phase="Succeeded",
        notes="+a +b +c",
        exit_codes={"a": 0, "b": 0, "c": 0},
    ),
    "an-init-fails-for-good": Lifecycle(
        spec=once(ends("c"), initContainers=[ends("a", 2), ends("b")]),
        phase="Failed",
        notes="+a",
        exit_codes={"a": 2},
    ),
    "an-init-is-run-again": Lifecycle(
        spec=of(
            stays("c"),
            initContainers=[
                shell("a", f"{note('+a')}; {first('a', 'exit 3')}", volumeMounts=MOUNT)
            ],
        ),
        phase="Running",
        notes="+a +a +c -c",
        restarts={"a": 1},
        exit_codes={"a": 0, "c": 0},
    ),
    "it-is-deleted-in-its-init": Lifecycle(
        spec=of(ends("c"), initContainers=[stays("a")]), phase="Pending", notes="+a -a"
    ),
    "sidecars-end-after-all-others": Lifecycle(
        spec=of(stays("c"), initContainers=[stays("s", **SIDECAR), stays("t", **SIDECAR)]),
        phase="Running",
        notes="+s +t +c -c -t -s",
    ),
    "a-sidecar-ends-with-a-pod-that-is-through": Lifecycle(
        spec=once(ends("c"), initContainers=[stays("s", **SIDECAR)]),
        phase="Succeeded",
        notes="+s +c -s",
        exit_codes={"c": 0, "s": 0},
    ),
    "a-sidecar-among-inits": Lifecycle(
        spec=of(stays("c"), initContainers=[ends("a"), stays("s", **SIDECAR), ends("b")]),
        phase="Running",
        notes="+a +s +b +c -c -s",
    ),
    "a-sidecar-is-waited-for": Lifecycle(
        spec=of(
            stays("c"),
            initContainers=[
                stays(
                    "s",
                    f"sleep 2; {note('up')}",
                    **SIDECAR,
                    startupProbe={**run("grep up /notes/all"), **EACH_SECOND},
                ),
            ],
        ),
        phase="Running",
        notes="+s up +c -c -s",
    ),
    "a-sidecar-is-restarted": Lifecycle(
        spec=of(
            stays("c"),
            initContainers=[
                stays(
                    "s",
                    first("s", "until grep +c /notes/all; do sleep 0.1; done; exit 1"),
                    **SIDECAR,
                ),
            ],
        ),
        phase="Running",
        notes="+s +c +s -c -s",
        restarts={"s": 1},
    ),
    "it-fails-and-succeeds-then": Lifecycle(
        spec=of(
            shell("c", f"{note('+c')}; {first('c', 'exit 1')}", volumeMounts=MOUNT),
            restartPolicy="OnFailure",
        ),
        phase="Succeeded",
        notes="+c +c",
        restarts={"c": 1},
        exit_codes={"c": 0},
    ),
    "it-is-restarted-whatever-it-ends-with": Lifecycle(
        spec=of(stays("c", first("c", "exit 0"))),
        phase="Running",
        notes="+c +c -c",
        restarts={"c": 1},
    ),
    "one-of-two-fails": Lifecycle(
        spec=once(ends("c", 4)), phase="Failed", notes="+c", exit_codes={"c": 4}
    ),
    "a-rule-restarts-it": Lifecycle(
        spec=once(
            shell(
                "c",
                f"{note('+c')}; {first('c', 'exit 42')}; exit 1",
                volumeMounts=MOUNT,
                restartPolicy="Never",
                restartPolicyRules=[ON_42],
            ),
        ),
        phase="Failed",
        notes="+c +c",
        restarts={"c": 1},
        exit_codes={"c": 1},
    ),
    "a-liveness-probe-restarts-it": Lifecycle(
        spec=of(
            stays(
                "c",
                f"rm -f /notes/sick; {first('c', 'touch /notes/sick')}",
                livenessProbe={
                    **run("test ! -e /notes/sick"),
                    "periodSeconds": 1,
                    "failureThreshold": 1,
                },
            )
        ),
        phase="Running",
        notes="+c -c +c -c",
        restarts={"c": 1},
    ),
    "a-startup-probe-restarts-it": Lifecycle(
        spec=of(
            stays(
                "c",
                f"rm -f /notes/up; {first('c', 'sleep 1000 & wait')}; touch /notes/up",
                startupProbe={
                    **run("test -e /notes/up"),
                    "periodSeconds": 2,
                    "failureThreshold": 2,
                },
            )
        ),
        phase="Running",
        notes="+c -c +c -c",
        restarts={"c": 1},
    ),
    "a-readiness-probe-restarts-nothing": Lifecycle(
        spec=of(stays("c", readinessProbe={**run("exit 1"), "periodSeconds": 1})),
        phase="Running",
        notes="+c -c",
    ),
    "its-hooks-are-run": Lifecycle(
        spec=of(
            stays(
                "c",
                lifecycle={
                    "postStart": run(
                        f"until grep +c /notes/all; do sleep 0.1; done; {note('started')}"
                    ),
                    "preStop": run(note("stops")),
                },
            )
        ),
        phase="Running",
        notes="+c started stops -c",
        exit_codes={"c": 0},
    ),
    "its-grace-is-too-short": Lifecycle(
        spec={
            **of(shell("c", f"trap '' TERM; {note('+c')}; sleep 1000", volumeMounts=MOUNT)),
            "terminationGracePeriodSeconds": 2,
        },
        phase="Running",
        notes="+c",
        exit_codes={"c": 137},
    ),
    "it-is-over-its-deadline": Lifecycle(
        spec=of(stays("c"), activeDeadlineSeconds=15),
        phase="Failed",
        notes="+c -c",
        exit_codes={"c": 0},
    ),
    "its-files-outlive-a-restart": Lifecycle(
        spec=of(
            stays("c", f"{first('c', 'echo kept >/kept/it; exit 1')}; cat /kept/it >>/notes/all")
        ),
        phase="Running",
        notes="+c +c kept -c",
        restarts={"c": 1},
    ),
}
LIFECYCLES["its-files-outlive-a-restart"].spec["containers"][0]["volumeMounts"] = [
    *MOUNT,
    {"name": "kept", "mountPath": "/kept"},
]
