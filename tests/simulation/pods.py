"""Makes the pods of a simulated day by chance: documents of many shapes, each with its fate."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from attrs import evolve

from state_machines.probe import ProbeKind
from tests.simulation.health import COMMAND, HEALTH_ANNOTATION
from tests.simulation.shapes import (
    ACCOUNT,
    CLAIMS,
    CSI_DRIVER,
    DEVICE,
    LOGIN,
    NAMESPACE,
    PASSWORDS,
    POD_RESOURCES,
    PRIVATE_IMAGES,
    REGISTRY,
    RESOURCE_CLAIM_NAMES,
    RESTARTS_ALL,
    RETRIED,
    SETTINGS,
    STORAGE,
    TOKEN_SECONDS,
    TOO_MUCH_CPU,
    UNREACHABLE,
    Document,
    Fate,
    Shape,
)
from trio_kubelet.hollow import BEHAVIOUR_ANNOTATION
from trio_kubelet.pod_source import SYSTEM_CRITICAL_PRIORITY

Behaviour = dict[str, Any]

PRIORITIES = (-5, 7, 1000, SYSTEM_CRITICAL_PRIORITY)
PULL_POLICIES = ("IfNotPresent", "IfNotPresent", "Never", "Always")

CLAIMING_RESOURCES = {
    "requests": {"cpu": "4m", "memory": "8Mi"},
    "limits": {"memory": "40Mi"},
}
"""Of a container that asked for nothing else: amounts of those that others have."""

CHANGE_IMAGES = frozenset({Fate.RUNS, Fate.SUCCEEDS, Fate.FAILS})
"""Of such pods owners change images too, under all restart policies."""


class PodMaker:
    """Makes pods out of one source of chance. UIDs are never repeated."""

    def __init__(
        self, chance: random.Random, host_folder: str, may_have_devices: Callable[[], bool]
    ) -> None:
        self._chance = chance
        self._host_folder = host_folder
        self._may_have_devices = may_have_devices
        # Of its own, so that whatever else happens on a day stays what it was.
        self._claim_chance = random.Random(str(chance.getstate()))
        self._made = 0
        self._is_modest = False
        """Most containers of the pod that is being made ask for what they use."""
        self._kinds: Sequence[tuple[int, Callable[[], Shape]]] = (
            (10, self._steady),
            (4, self._crashing),
            (4, self._job),
            (2, self._failing_job),
            (3, self._initialized),
            (2, self._initialized_job),
            (1, self._failing_init),
            (1, self._crashing_init),
            (1, self._imageless),
            (2, self._uninvited),
            (1, self._overdue),
            (1, self._unstartable),
            (1, self._ailing),
            (2, self._restarting_all),
            (3, self._retried_job),
        )

    def make(self, *, is_static: bool) -> Shape:
        """A new pod of a random kind; a static one has nothing that only an API server gives.

        Nor has it a port: after a restart static pods come first, and nobody knows that they had
        ended.
        """
        weights = [weight for weight, _ in self._kinds]
        kind = self._chance.choices([make for _, make in self._kinds], weights)[0]
        shape = self._with_extras(self._with_probes(kind()))
        return shape if is_static else self._with_extras_of_api(shape)

    def new_uid(self) -> str:
        """A UID that no pod has had."""
        first, last = self._chance.getrandbits(32), self._chance.getrandbits(48)
        return f"{first:08x}-0000-4000-8000-{last:012x}"

    def changed(self, shape: Shape) -> Shape:
        """The pod with another label; a steady one or a job perhaps with another image.

        One that asks for cpu and memory may ask for other amounts: a static pod in vain.
        """
        document = deepcopy(dict(shape.document))
        document["metadata"].setdefault("labels", {})["turn"] = str(self._chance.getrandbits(20))
        if shape.fate in CHANGE_IMAGES and self._chance.random() < 0.5:
            container = self._chance.choice(document["spec"]["containers"])
            container["image"] = self._image()
        return self.resized(evolve(shape, document=document), may_be_refused=False)

    def resized(self, shape: Shape, *, may_be_refused: bool) -> Shape:
        """The pod with other amounts of cpu and memory, perhaps with more than there is.

        One that has CPUs for itself stays as it is.
        """
        if shape.cpu_limits:
            return shape
        document = deepcopy(dict(shape.document))
        for container in document["spec"]["containers"]:
            if "resources" in container:
                given = container["resources"]
                container["resources"] = self._requests(is_limited=shape.has_limits)
                if "claims" in given:
                    container["resources"]["claims"] = given["claims"]
                for kind in ("requests", "limits"):
                    amounts = given[kind]
                    kept = {k: v for k, v in amounts.items() if k in (STORAGE, DEVICE)}
                    container["resources"][kind].update(kept)
                if may_be_refused and self._chance.random() < 0.3:
                    container["resources"]["requests"]["cpu"] = TOO_MUCH_CPU
        return evolve(shape, document=document)

    def renamed(self, shape: Shape) -> Shape:
        """The same pod under a new UID: its manifest was replaced."""
        return shape.with_uid(self.new_uid())

    def _steady(self) -> Shape:
        count = self._chance.choice((1, 1, 2, 3))
        return self._pod(Fate.RUNS, regular=[self._runs_for_ever() for _ in range(count)])

    def _crashing(self) -> Shape:
        regular = [self._ends(self._chance.choice((0, 1, 1)), longest=40)]
        if self._chance.random() < 0.4:
            regular.append(self._runs_for_ever())
        return self._pod(Fate.CRASHES, regular=regular)

    def _job(self) -> Shape:
        policy = self._chance.choice(("Never", "OnFailure"))
        regular = [self._ends(0, longest=300) for _ in range(self._chance.choice((1, 2)))]
        if policy == "OnFailure" and self._chance.random() < 0.5:
            failure = {"runSeconds": self._seconds(10), "exitCode": 3}
            regular[0] = {"attempts": [failure, failure, {**regular[0]}]}
        return self._pod(Fate.SUCCEEDS, policy=policy, regular=regular)

    def _failing_job(self) -> Shape:
        regular = [self._ends(0, longest=100), self._ends(7, longest=100)]
        return self._pod(Fate.FAILS, policy="Never", regular=regular)

    def _initialized(self) -> Shape:
        return self._pod(Fate.RUNS, init=self._some_init(), regular=[self._runs_for_ever()])

    def _initialized_job(self) -> Shape:
        regular = [self._ends(0, longest=100)]
        policy = self._chance.choice(("Never", "OnFailure"))
        return self._pod(Fate.SUCCEEDS, policy=policy, init=self._some_init(), regular=regular)

    def _failing_init(self) -> Shape:
        init = [*self._some_init(), self._ends(4, longest=10)]
        return self._pod(Fate.FAILS, policy="Never", init=init, regular=[self._runs_for_ever()])

    def _crashing_init(self) -> Shape:
        init = [*self._some_init(), self._ends(4, longest=10)]
        return self._pod(Fate.WAITS, init=init, regular=[self._runs_for_ever()])

    def _imageless(self) -> Shape:
        shape = self._pod(Fate.WAITS, regular=[self._runs_for_ever()])
        document = deepcopy(dict(shape.document))
        image, policy = self._chance.choice(
            (
                (f"{UNREACHABLE}/app:1", "IfNotPresent"),
                (f"{REGISTRY}/absent:1", "Never"),
                ("NOT/An Image", "IfNotPresent"),
            )
        )
        document["spec"]["containers"][0].update(image=image, imagePullPolicy=policy)
        return evolve(shape, document=document)

    def _uninvited(self) -> Shape:
        """A pod that names a private image, and has no login for it."""
        shape = self._pod(Fate.WAITS, regular=[self._runs_for_ever()])
        document = deepcopy(dict(shape.document))
        image, policy = self._chance.choice(PRIVATE_IMAGES), self._chance.choice(PULL_POLICIES)
        document["spec"]["containers"][0].update(image=image, imagePullPolicy=policy)
        return evolve(shape, document=document)

    def _overdue(self) -> Shape:
        deadline = self._chance.randint(20, 400)
        return self._pod(
            Fate.FAILS, regular=[self._runs_for_ever()], activeDeadlineSeconds=deadline
        )

    def _unstartable(self) -> Shape:
        behaviour = {"startError": "exec: no such file or directory"}
        return self._pod(Fate.CRASHES, regular=[behaviour])

    def _ailing(self) -> Shape:
        """A pod whose container never is well."""
        shape = self._pod(Fate.CRASHES, regular=[self._runs_for_ever()])
        document = deepcopy(dict(shape.document))
        kind = self._chance.choice((ProbeKind.LIVENESS, ProbeKind.STARTUP))
        self._give_probes(document, document["spec"]["containers"][0], {kind: None})
        return evolve(shape, document=document)

    def _restarting_all(self) -> Shape:
        """A pod whose first container restarts all of them whenever it ends."""
        init = self._some_init() if self._chance.random() < 0.7 else []
        regular = [self._ends(RESTARTS_ALL, longest=60), self._runs_for_ever()]
        shape = self._pod(Fate.CRASHES, init=init, regular=regular)
        document = deepcopy(dict(shape.document))
        exits = {"operator": "In", "values": [RESTARTS_ALL]}
        rule = {"action": "RestartAllContainers", "exitCodes": exits}
        document["spec"]["containers"][0].update(restartPolicy="Always", restartPolicyRules=[rule])
        return evolve(shape, document=document)

    def _retried_job(self) -> Shape:
        """A pod whose containers end for good, but for exits that a rule lets them retry.

        A first rule that matches no exit of theirs decides nothing.
        """
        policy = self._chance.choice(("Always", "OnFailure", "Never"))
        fate, exit_code = self._chance.choice(((Fate.SUCCEEDS, 0), (Fate.FAILS, 4)))
        retries = [self._ends(RETRIED, longest=20) for _ in range(self._chance.choice((0, 1, 2)))]
        regular: list[Behaviour] = [{"attempts": [*retries, self._ends(exit_code, longest=60)]}]
        if self._chance.random() < 0.5:
            regular.append(self._ends(0, longest=100))
        shape = self._pod(fate, policy=policy, regular=regular)
        document = deepcopy(dict(shape.document))
        rules = [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [code]}}
            for code in (RETRIED + 1, RETRIED)
        ]
        for container in document["spec"]["containers"]:
            container.update(restartPolicy="Never", restartPolicyRules=rules)
        return evolve(shape, document=document)

    def _with_probes(self, shape: Shape) -> Shape:
        """The pod with probes, now and then; a container may take its time to be well.

        Only where nothing else ends a container: what would it have been?
        """
        if shape.fate is not Fate.RUNS:
            return shape
        document = deepcopy(dict(shape.document))
        spec = document["spec"]
        sidecars = [c for c in spec.get("initContainers", ()) if "restartPolicy" in c]
        for container in (*sidecars, *spec["containers"]):
            if self._chance.random() < 0.5:
                some = [kind for kind in ProbeKind if self._chance.random() < 0.6]
                well_after: dict[ProbeKind, float | None]
                well_after = {kind: self._seconds(30) for kind in some}
                well_after.pop(ProbeKind.LIVENESS, None)
                if ProbeKind.LIVENESS in some:
                    well_after[ProbeKind.LIVENESS] = 0.0
                if ProbeKind.STARTUP in some:
                    well_after[ProbeKind.STARTUP] = self._seconds(4)
                if ProbeKind.READINESS in some and self._chance.random() < 0.1:
                    well_after[ProbeKind.READINESS] = None
                self._give_probes(document, container, well_after)
        return evolve(shape, document=document)

    def _give_probes(
        self,
        document: dict[str, Any],
        container: dict[str, Any],
        well_after: Mapping[ProbeKind, float | None],
    ) -> None:
        if not well_after:
            return
        natures: dict[str, Document] = {}
        for kind, seconds in well_after.items():
            probe: dict[str, Any] = {
                "initialDelaySeconds": self._chance.choice((0, 0, 7, 30)),
                "periodSeconds": self._chance.choice((5, 10, 20)),
                "timeoutSeconds": self._chance.choice((1, 2)),
                "successThreshold": 1,
                "failureThreshold": self._chance.choice((1, 2, 3)),
            }
            if kind is ProbeKind.READINESS:
                probe["successThreshold"] = self._chance.choice((1, 1, 3))
            natures[kind] = {
                "well_after": seconds,
                "delay": probe["initialDelaySeconds"],
                "period": probe["periodSeconds"],
                "timeout": probe["timeoutSeconds"],
                "success_threshold": probe["successThreshold"],
                "failure_threshold": probe["failureThreshold"],
            }
            if kind is not ProbeKind.READINESS and self._chance.random() < 0.3:
                probe["terminationGracePeriodSeconds"] = self._chance.choice((1, 5))
            way: Document = self._chance.choice(
                (
                    {"exec": {"command": [COMMAND, str(kind)]}},
                    {"httpGet": {"path": "/", "port": 80}},
                    {"tcpSocket": {"port": 80}},
                    {"grpc": {"port": 80}},
                )
            )
            container[f"{kind.lower()}Probe"] = {**probe, **way}
        annotations = document["metadata"]["annotations"]
        annotations[f"{HEALTH_ANNOTATION}.{container['name']}"] = json.dumps(natures)

    def _some_init(self) -> list[Behaviour]:
        init: list[Behaviour] = []
        for _ in range(self._chance.choice((1, 1, 2, 3))):
            if self._chance.random() < 0.35:
                init.append({**self._runs_for_ever(), "sidecar": True})
            else:
                init.append(self._ends(0, longest=15))
        return init

    def _runs_for_ever(self) -> Behaviour:
        obeys: float | None = self._chance.choice((0, 0, 0.5, 3, None))
        return {"runSeconds": None, "obeysTerm": obeys, "startLatency": self._seconds(0.5)}

    def _ends(self, exit_code: int, *, longest: float) -> Behaviour:
        return {"runSeconds": self._seconds(longest), "exitCode": exit_code}

    def _seconds(self, longest: float) -> float:
        return round(self._chance.choice((0.0, self._chance.uniform(0, longest))), 2)

    def _requests(
        self, *, is_limited: bool = False, is_modest: bool = False
    ) -> dict[str, dict[str, str]]:
        """Amounts that differ in the runtime's shares, and of which there is enough for all.

        Half of a memory limit is used: each of them can be lowered to any other. Those of a pod
        with resources of its own are to fit into these.
        """
        memory = "8Mi" if is_limited else self._chance.choice(("8Mi", "36Mi"))
        if is_modest:
            memory = "36Mi"
        return {
            "requests": {"cpu": f"{self._chance.choice((4, 8, 12))}m", "memory": memory},
            "limits": {"memory": f"{self._chance.choice((40, 48, 64))}Mi"},
        }

    def _image(self) -> str:
        return f"{REGISTRY}/app:{self._chance.randint(1, 8)}"

    def _pod(
        self,
        fate: Fate,
        *,
        regular: Sequence[Behaviour],
        init: Sequence[Behaviour] = (),
        policy: str = "Always",
        **spec: object,
    ) -> Shape:
        self._made += 1
        self._is_modest = self._chance.random() < 0.4
        annotations: dict[str, str] = {}
        init_containers = [self._container(f"init-{i}", b, annotations) for i, b in enumerate(init)]
        containers = [self._container(f"main-{i}", b, annotations) for i, b in enumerate(regular)]
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{fate}-{self._made}",
                "namespace": NAMESPACE,
                "uid": self.new_uid(),
                "annotations": annotations,
            },
            "spec": {
                "restartPolicy": policy,
                "terminationGracePeriodSeconds": self._chance.choice((0, 1, 2, 5, 30, 45)),
                "containers": containers,
                **({"initContainers": init_containers} if init else {}),
                **spec,
            },
        }
        return Shape(document=document, fate=fate)

    def _container(
        self, name: str, behaviour: Behaviour, annotations: dict[str, str]
    ) -> dict[str, Any]:
        script = dict(behaviour)
        container: dict[str, Any] = {"name": name, "image": self._image()}
        if script.pop("sidecar", False):
            container["restartPolicy"] = "Always"
        if self._chance.random() < 0.15:
            container["imagePullPolicy"] = "Always"
        if self._chance.random() < (0.95 if self._is_modest else 0.2):
            container["resources"] = self._requests(is_modest=self._is_modest)
            if self._is_modest or self._chance.random() < 0.3:
                container["resources"]["requests"][STORAGE] = "1Mi"
                container["resources"]["limits"][STORAGE] = "1Mi"
        annotations[f"{BEHAVIOUR_ANNOTATION}.{name}"] = json.dumps(script.get("attempts", script))
        return container

    def _with_extras(self, shape: Shape) -> Shape:
        """The pod with more, now and then: volumes, limits, hooks, the host's network, own ids."""
        document = deepcopy(dict(shape.document))
        spec = document["spec"]
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        if self._chance.random() < 0.3:
            source: Document = {"emptyDir": {}}
            if self._chance.random() < 0.5:
                source = {"hostPath": {"path": self._host_folder, "type": "DirectoryOrCreate"}}
            _mount(spec, "data", source)
        if self._chance.random() < 0.15:
            spec["hostNetwork"] = True
        elif self._chance.random() < 0.3:
            spec["hostUsers"] = False
        asked = sum(
            int(c["resources"]["requests"]["memory"][:-2]) for c in containers if "resources" in c
        )
        if asked <= 16 and self._chance.random() < 0.2:
            spec["resources"] = POD_RESOURCES
        grace = spec["terminationGracePeriodSeconds"]
        if grace > 1 and self._chance.random() < 0.2:
            seconds = self._chance.randint(0, grace - 1)
            spec["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": seconds}}}
        elif grace > 1 and self._chance.random() < 0.15:
            hook = {"postStart": {"sleep": {"seconds": self._chance.randint(0, grace - 1)}}}
            spec["containers"][0]["lifecycle"] = hook
        return evolve(shape, document=document)

    def _with_extras_of_api(self, shape: Shape) -> Shape:
        """The pod with what only an API server gives, and a port of the host, each now and then."""
        document = deepcopy(dict(shape.document))
        spec = document["spec"]
        if shape.fate is Fate.RUNS and self._chance.random() < 0.4:
            spec["imagePullSecrets"] = [{"name": LOGIN}]
            spec["containers"][0]["image"] = self._chance.choice(PRIVATE_IMAGES)
        if self._chance.random() < 0.4:
            self._give_shared(spec)
        if self._chance.random() < 0.3:
            token = {"path": "token", "expirationSeconds": TOKEN_SECONDS}
            spec["serviceAccountName"] = ACCOUNT
            _mount(spec, "access", {"projected": {"sources": [{"serviceAccountToken": token}]}})
        if self._chance.random() < 0.7:
            claim = {"claimName": self._chance.choice(CLAIMS)}
            _mount(spec, "claimed", {"persistentVolumeClaim": claim})
        if self._chance.random() < 0.4:
            _mount(spec, "inline", {"csi": {"driver": CSI_DRIVER}})
        if self._chance.random() < 0.7 and self._may_have_devices():
            self._give_devices(spec)
        if self._claim_chance.random() < 0.9 and "resources" not in spec:
            self._give_claim(spec)
        if self._chance.random() < 0.4:
            spec["priority"] = self._chance.choice(PRIORITIES)
        if self._chance.random() < 0.2:
            spec["containers"][0]["ports"] = [{"containerPort": 7000, "hostPort": 7000}]
        return evolve(shape, document=document)

    def _give_devices(self, spec: dict[str, Any]) -> None:
        """Have containers ask for devices, with the other resources that pods of days ask for."""
        for container in spec["containers"]:
            if "resources" not in spec:
                container.setdefault("resources", self._requests())
            if "resources" in container:
                count = str(self._chance.choice((1, 1, 2)))
                for amounts in container["resources"].values():
                    amounts[DEVICE] = count

    def _give_claim(self, spec: dict[str, Any]) -> None:
        """Have all containers use the devices of a resource claim."""
        name = self._claim_chance.choice(RESOURCE_CLAIM_NAMES)
        spec["resourceClaims"] = [{"name": "claimed", "resourceClaimName": name}]
        for container in spec["containers"]:
            container.setdefault("resources", CLAIMING_RESOURCES)
            container["resources"] = {
                **container["resources"],
                "claims": [{"name": "claimed"}],
            }

    def _give_shared(self, spec: dict[str, Any]) -> None:
        """Give the pod what is in a config map or secret, as files and perhaps a variable."""
        name = self._chance.choice((*SETTINGS, *PASSWORDS))
        source, reference = {"configMap": {"name": name}}, "configMapKeyRef"
        if name in PASSWORDS:
            source, reference = {"secret": {"secretName": name}}, "secretKeyRef"
        _mount(spec, "shared", source)
        if self._chance.random() < 0.5:
            value = {reference: {"name": name, "key": "turn"}}
            spec["containers"][0]["env"] = [{"name": "TURN", "valueFrom": value}]


def _mount(spec: dict[str, Any], name: str, source: Document) -> None:
    """Give the first container a volume."""
    spec.setdefault("volumes", []).append({"name": name, **source})
    mounts = spec["containers"][0].setdefault("volumeMounts", [])
    mounts.append({"name": name, "mountPath": f"/{name}"})
