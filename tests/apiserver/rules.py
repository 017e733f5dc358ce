"""What the API server makes of a write: names, versions, status apart, graceful deletion.

Only what an agent can notice is here. There is no validation beyond the types, no ownership of
fields, no garbage collection, no authorization (faults play it). A namespace need not exist.
"""

import base64
import random
import uuid
from collections.abc import Mapping
from typing import Any

import orjson
from attrs import evolve

from tests.apiserver.answers import (
    already_exists,
    bad_request,
    conflict,
    internal_error,
    invalid,
    not_found,
)
from tests.apiserver.patches import json_merge, strategic_merge
from tests.apiserver.selectors import Matches
from tests.apiserver.storage import Data, Resource, Storage
from trio_kubelet.k8s import PodStatus, Time, ValidationError
from trio_kubelet.k8s.client import PatchType
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.k8s.kinds import KINDS, PODS, SERVICE_ACCOUNTS, Kind
from trio_kubelet.resources import qos_class
from trio_kubelet.tasks.clock import Clock

HAS_STATUS = frozenset({"pods", "nodes", "certificatesigningrequests", "services"})
"""Resources whose status is written through a subresource alone."""

_BORN_WITH_STATUS = frozenset({"nodes"})
"""Of these, the ones that keep the status with which they are created."""

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_DEFAULT_GRACE_SECONDS = 30
_ENDED = frozenset({"Succeeded", "Failed"})
_BY_RESOURCE = {(kind.group, kind.resource): kind for kind in KINDS}


class Rules:
    """Carries writes out, each on one object."""

    def __init__(self, storage: Storage, clock: Clock, seed: int) -> None:
        self._storage = storage
        self._clock = clock
        self._random = random.Random(seed)

    def get(self, resource: Resource, namespace: str, name: str) -> Data:
        """Return an object that must be there."""
        found = self._storage.get(resource, (namespace, name))
        if found is None:
            raise not_found(resource[1], name)
        return found

    def create(self, resource: Resource, namespace: str, data: Data) -> Data:
        """Store a new object."""
        metadata = dict(data.get("metadata") or {})
        if metadata.get("resourceVersion"):
            raise internal_error("resourceVersion should not be set on objects to be created")
        if metadata.get("namespace", namespace) != namespace:
            raise bad_request(
                f"the namespace of the provided object ({metadata['namespace']}) does not match "
                f"the namespace sent on the request ({namespace})"
            )
        name = metadata.get("name") or self._generated(metadata.get("generateName", ""))
        if self._storage.get(resource, (namespace, name)) is not None:
            raise already_exists(resource[1], name)
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(field, None)
        metadata |= {
            "name": name,
            "uid": str(uuid.UUID(int=self._random.getrandbits(128), version=4)),
            "creationTimestamp": self._now(),
            **({"namespace": namespace} if namespace else {}),
        }
        return self._storage.put(resource, _prepared(resource, {**data, "metadata": metadata}))

    def update(
        self, resource: Resource, namespace: str, name: str, subresource: str, data: Data
    ) -> Data:
        """Store another version of an object, or of its status."""
        current = self.get(resource, namespace, name)
        asked, there = data.get("metadata") or {}, current["metadata"]
        if asked.get("name", name) != name:
            raise bad_request("the name of the object does not match the name on the URL")
        self._check_same(resource, asked, there)
        if subresource == "status":
            _check_ends(current, data)
            return self._storage.put(resource, _with_status(current, data))
        return self._settle(resource, current, self._merged(resource, current, data))

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        subresource: str,
        body: Mapping[str, Any],
        patch_type: str,
    ) -> Data:
        """Change parts of an object, or of its status."""
        current = self.get(resource, namespace, name)
        asked = body.get("metadata") or {}
        uid = current["metadata"]["uid"]
        if asked.get("uid", uid) != uid:
            raise invalid(
                f"{current.get('kind')} {name!r} is invalid: metadata.uid: Invalid value: "
                f"{asked['uid']!r}: field is immutable"
            )
        if patch_type == PatchType.STRATEGIC:
            data = strategic_merge(current.get("kind", ""), current, body)
        elif patch_type == PatchType.MERGE:
            data = json_merge(current, body)
        else:
            raise bad_request(f"patches of type {patch_type} are not known here")
        if data["metadata"].get("resourceVersion") != current["metadata"]["resourceVersion"]:
            self._check_same(resource, data["metadata"], current["metadata"])
        return self.update(resource, namespace, name, subresource, data)

    def delete(
        self, resource: Resource, namespace: str, name: str, options: Mapping[str, Any]
    ) -> Data:
        """Remove an object; a pod on a node is only marked until its node deletes it at last."""
        current = self.get(resource, namespace, name)
        self._check_same(resource, options.get("preconditions") or {}, current["metadata"])
        grace = self._grace_seconds(current, options) if resource[1] == "pods" else 0
        metadata = current["metadata"]
        if not grace and not metadata.get("finalizers"):
            return self._storage.remove(resource, (namespace, name))
        if metadata.get("deletionTimestamp") and grace >= metadata["deletionGracePeriodSeconds"]:
            return current
        marked = {
            **metadata,
            "deletionTimestamp": self._now(grace),
            "deletionGracePeriodSeconds": grace,
        }
        if "generation" in metadata and "deletionTimestamp" not in metadata:
            marked["generation"] = metadata["generation"] + 1
        return self._storage.put(resource, {**current, "metadata": marked})

    def delete_selected(self, resource: Resource, namespace: str, matches: Matches) -> Data:
        """Delete each object that is selected; returns the list of them."""
        found = [data for data in self._storage.all(resource, namespace) if matches(data)]
        for data in found:
            metadata = data["metadata"]
            self.delete(resource, metadata.get("namespace", ""), metadata["name"], {})
        return {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": found}

    def bind(self, namespace: str, name: str, node: str) -> Data:
        """Give a pod to a node, as the scheduler does."""
        current = self.get(("", "pods"), namespace, name)
        if current["spec"].get("nodeName"):
            raise conflict("pods/binding", name, f"pod {name} is already assigned to node {node!r}")
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": self._now(),
        }
        status = current.get("status", {})
        others = [one for one in status.get("conditions", ()) if one["type"] != "PodScheduled"]
        return self._storage.put(
            ("", "pods"),
            {
                **current,
                "spec": {**current["spec"], "nodeName": node},
                "status": {**status, "conditions": [*others, scheduled]},
            },
        )

    def token(self, namespace: str, name: str, request: Mapping[str, Any]) -> Data:
        """Answer a TokenRequest of a service account; the token is no real one."""
        account = self.get((SERVICE_ACCOUNTS.group, SERVICE_ACCOUNTS.resource), namespace, name)
        spec = {"expirationSeconds": 3600, **(request.get("spec") or {})}
        expires = self._now(spec["expirationSeconds"])
        bound = spec.get("boundObjectRef") or {}
        claims = {
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "aud": spec.get("audiences") or ["https://kubernetes.default.svc"],
            "exp": Time.parse(expires).ns // 1_000_000_000,
            "jti": f"{self._random.getrandbits(64):016x}",
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]},
                "pod": {"name": bound.get("name", ""), "uid": bound.get("uid", "")},
            },
        }
        body = base64.urlsafe_b64encode(orjson.dumps(claims)).decode().rstrip("=")
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
            "status": {"token": f"header.{body}.signature", "expirationTimestamp": expires},
        }

    def _merged(self, resource: Resource, current: Data, data: Data) -> dict[str, Any]:
        """Return the new version with what a client cannot change taken from the current one."""
        metadata = {**(data.get("metadata") or {})}
        for field in ("uid", "creationTimestamp", "namespace", "name", "resourceVersion"):
            if field in current["metadata"]:
                metadata[field] = current["metadata"][field]
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            metadata.pop(field, None)
            if field in current["metadata"]:
                metadata[field] = current["metadata"][field]
        if "generation" in metadata and data.get("spec") != current.get("spec"):
            metadata["generation"] += 1
        merged = {**data, "metadata": metadata}
        if resource[1] in HAS_STATUS:
            merged.pop("status", None)
            if "status" in current:
                merged["status"] = current["status"]
        for field in ("apiVersion", "kind"):
            if field in current:
                merged.setdefault(field, current[field])
        return merged

    def _settle(self, resource: Resource, current: Data, data: Data) -> Data:
        """Store an update; the last finalizer that goes takes a deleted object with it."""
        stored = self._storage.put(resource, data)
        metadata = stored["metadata"]
        if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
            return stored
        if not current["metadata"].get("finalizers") or metadata["deletionGracePeriodSeconds"]:
            return stored
        return self._storage.remove(resource, (metadata.get("namespace", ""), metadata["name"]))

    def _check_same(
        self, resource: Resource, asked: Mapping[str, Any], there: Mapping[str, Any]
    ) -> None:
        version = asked.get("resourceVersion")
        if version and version != there["resourceVersion"]:
            raise conflict(
                resource[1],
                there["name"],
                "the object has been modified; please apply your changes to the latest version "
                "and try again",
            )
        uid = asked.get("uid")
        if uid and uid != there["uid"]:
            raise conflict(
                resource[1],
                there["name"],
                f"Precondition failed: UID in precondition: {uid}, "
                f"UID in object meta: {there['uid']}",
            )

    def _grace_seconds(self, pod: Data, options: Mapping[str, Any]) -> int:
        asked = options.get("gracePeriodSeconds")
        spec = pod.get("spec", {})
        if asked is None:
            asked = spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
        unbound = not spec.get("nodeName")
        ended = pod.get("status", {}).get("phase") in _ENDED
        return 0 if unbound or ended else max(int(asked), 0)

    def _generated(self, prefix: str) -> str:
        if not prefix:
            raise invalid("metadata.name: Required value: name or generateName is required")
        return prefix + "".join(self._random.choices(_SUFFIX_LETTERS, k=5))

    def _now(self, ahead_seconds: int = 0) -> str:
        return str(Time.from_ns(self._clock.now_ns() + ahead_seconds * 1_000_000_000))


def claims_of(token: str) -> Mapping[str, Any]:
    """Return what a token of `Rules.token` says."""
    body = token.split(".")[1]
    claims: Mapping[str, Any] = orjson.loads(
        base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    )
    return claims


def _prepared(resource: Resource, data: Data) -> Data:
    """Return what is stored of a new object: checked, with defaults, mostly without a status."""
    kind = _BY_RESOURCE.get(resource)
    if kind is None:
        return data
    data = {"apiVersion": kind.api_version, "kind": kind.kind, **data}
    try:
        decoded = decode(kind.type, data)
    except ValidationError as error:
        raise invalid(str(error)) from None
    if resource[1] in HAS_STATUS - _BORN_WITH_STATUS:
        data = {name: value for name, value in data.items() if name != "status"}
    if kind is PODS:
        metadata = {**data["metadata"], "generation": 1}
        complete = with_defaults(evolve(decoded, status=PodStatus()))
        spec = encode(complete).get("spec", {})
        status = {"phase": "Pending", "qosClass": qos_class(complete).value}
        return {**data, "metadata": metadata, "spec": spec, "status": status}
    return data


def _check_ends(current: Data, data: Data) -> None:
    """Refuse what the API server calls invalid: a way back from an end that is final."""
    if current.get("kind") != "Pod":
        return
    name = current["metadata"]["name"]
    problems = [
        f"status.{statuses}[{position}].state: Forbidden: may not be transitioned to "
        "non-terminated state"
        for statuses, containers in (
            ("containerStatuses", "containers"),
            ("initContainerStatuses", "initContainers"),
            ("ephemeralContainerStatuses", "ephemeralContainers"),
        )
        for position, before in enumerate(current.get("status", {}).get(statuses, ()))
        if "terminated" in before.get("state", {})
        and not _may_restart(current["spec"], containers, before)
        and any(
            after["name"] == before["name"] and "terminated" not in after.get("state", {})
            for after in data.get("status", {}).get(statuses, ())
        )
    ]
    if problems:
        text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
        raise invalid(f'Pod "{name}" is invalid: {text}')


def _may_restart(spec: Data, containers: str, status: Data) -> bool:
    """True if the policies of a pod let a container run again after this end.

    Ephemeral containers never do, and nothing is known of one that the pod does not have.
    """
    if containers == "ephemeralContainers":
        return False
    every = (*spec.get("containers", ()), *spec.get("initContainers", ()))
    rules = [rule for each in every for rule in each.get("restartPolicyRules", ())]
    if any(rule.get("action") == "RestartAllContainers" for rule in rules):
        return True
    own = (each for each in spec.get(containers, ()) if each["name"] == status["name"])
    container = next(own, None)
    if container is None:
        return False
    exit_code = status["state"]["terminated"].get("exitCode", 0)
    policy = container.get("restartPolicy")
    if policy and _deciding_rule(container, exit_code) == "Restart":
        return True
    policy = policy or spec.get("restartPolicy", "Always")
    return bool(policy == "Always" or (policy == "OnFailure" and exit_code != 0))


def _deciding_rule(container: Data, exit_code: int) -> str | None:
    """Return the action of the first of a container's rules that an exit code matches."""
    for rule in container.get("restartPolicyRules", ()):
        codes = rule.get("exitCodes") or {}
        matching = {"In": True, "NotIn": False}.get(codes.get("operator", ""))
        if (exit_code in codes.get("values", ())) is matching:
            return str(rule.get("action"))
    return None


def _with_status(current: Data, data: Data) -> Data:
    written = data.get("metadata") or {}
    changeable = {name: written[name] for name in ("annotations", "labels") if name in written}
    metadata = {**current["metadata"], **changeable}
    return {**current, "metadata": metadata, "status": data.get("status", {})}


def kind_of(resource: Resource) -> Kind[Any] | None:
    """Return the kind whose objects live there, if it is one of the agent's."""
    return _BY_RESOURCE.get(resource)
