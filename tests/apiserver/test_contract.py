"""What the agent can notice of an API server: writes, versions, deletion, lists and watches."""

from collections.abc import Awaitable
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.apiserver.conftest import Api
from tests.apiserver.rules import claims_of
from trio_kubelet.k8s import (
    BoundObjectReference,
    ConfigMap,
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    TokenRequest,
    TokenRequestSpec,
)
from trio_kubelet.k8s.client import ApiError, Frame, FrameType, PatchType
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.kinds import CONFIG_MAPS, NODES, PODS, SERVICE_ACCOUNTS

DEADLINE_SECONDS = 30
NOBODY = "00000000-0000-0000-0000-000000000000"


async def refusal(asking: Awaitable[object]) -> tuple[int, str]:
    """Code and reason with which the server refuses."""
    with pytest.raises(ApiError) as caught:
        await asking
    return caught.value.code, caught.value.reason


async def make_pod(api: Api, name: str = "web", node: str = "n1", **spec: Any) -> Pod:
    pod = Pod(
        metadata=ObjectMeta(name=name, namespace=api.namespace),
        spec=PodSpec(
            containers=(Container(name="c", image="i"),),
            node_name=node,
            automount_service_account_token=False,
            **spec,
        ),
    )
    return await api.client.create(PODS, pod, api.namespace)


async def make_config_map(api: Api, name: str = "web", **metadata: Any) -> ConfigMap:
    meta = ObjectMeta(name=name, namespace=api.namespace, **metadata)
    return await api.client.create(CONFIG_MAPS, ConfigMap(metadata=meta), api.namespace)


async def delete_pod(api: Api, grace_seconds: int | None = None) -> None:
    await api.client.delete(PODS, "web", api.namespace, grace_seconds=grace_seconds)


async def patch_pod(api: Api, body: dict[str, Any], **options: Any) -> Pod:
    return await api.client.patch(PODS, "web", api.namespace, body=body, **options)


async def is_gone(api: Api, kind: Any = PODS) -> bool:
    try:
        await api.client.get(kind, "web", api.namespace)
    except ApiError as error:
        return error.reason == "NotFound"
    return False


# Writes


async def test_a_new_pod_has_its_defaults_and_is_pending(api: Api) -> None:
    made = await make_pod(api)
    assert made.spec.restart_policy == "Always"
    assert made.spec.termination_grace_period_seconds == 30
    assert made.spec.containers[0].image_pull_policy == "Always"
    assert (made.status.phase, made.status.qos_class) == ("Pending", "BestEffort")
    assert made.metadata.generation == 1
    assert await api.client.get(PODS, "web", api.namespace) == made


async def test_a_status_that_comes_with_a_new_pod_is_dropped_and_that_of_a_node_is_kept(
    api: Api,
) -> None:
    node = Node(
        metadata=ObjectMeta(name=f"node-{api.namespace}"), status=NodeStatus(phase="Running")
    )
    made = await api.client.create(NODES, node)
    try:
        assert made.status.phase == "Running"
        assert made.metadata.namespace == ""
    finally:
        await api.client.delete(NODES, made.metadata.name)
    pod = Pod(
        metadata=ObjectMeta(name="web", namespace=api.namespace),
        spec=PodSpec(containers=(Container(name="c", image="i"),), node_name="n1"),
        status=PodStatus(phase="Running"),
    )
    assert (await api.client.create(PODS, pod, api.namespace)).status.phase == "Pending"


async def test_what_cannot_be_created_is_refused(api: Api) -> None:
    made = await make_config_map(api)
    again = ConfigMap(metadata=ObjectMeta(name="web", namespace=api.namespace))
    create = api.client.create
    assert await refusal(create(CONFIG_MAPS, again, api.namespace)) == (409, "AlreadyExists")
    versioned = evolve(made, metadata=evolve(made.metadata, name="new"))
    assert await refusal(create(CONFIG_MAPS, versioned, api.namespace)) == (500, "InternalError")
    elsewhere = ConfigMap(metadata=ObjectMeta(name="new", namespace="elsewhere"))
    assert await refusal(create(CONFIG_MAPS, elsewhere, api.namespace)) == (400, "BadRequest")
    nameless = ConfigMap(metadata=ObjectMeta(namespace=api.namespace))
    assert await refusal(create(CONFIG_MAPS, nameless, api.namespace)) == (422, "Invalid")


async def test_a_name_is_generated(api: Api) -> None:
    made = await make_config_map(api, "", generate_name="web-")
    assert made.metadata.name.startswith("web-")
    assert len(made.metadata.name) == len("web-") + 5


async def test_what_is_not_there_is_not_found(api: Api) -> None:
    with pytest.raises(ApiError) as caught:
        await api.client.get(CONFIG_MAPS, "web", api.namespace)
    assert (caught.value.code, caught.value.reason) == (404, "NotFound")
    assert 'configmaps "web" not found' in str(caught.value)
    assert await refusal(api.client.delete(CONFIG_MAPS, "web", api.namespace)) == (404, "NotFound")


async def test_a_write_that_changes_nothing_makes_no_version(api: Api) -> None:
    made = await make_config_map(api)
    assert await api.client.update(CONFIG_MAPS, made) == made
    changed = await api.client.update(CONFIG_MAPS, evolve(made, data={"a": "1"}))
    assert changed.metadata.resource_version != made.metadata.resource_version


async def test_a_stale_version_is_a_conflict_and_none_replaces_any(api: Api) -> None:
    made = await make_config_map(api)
    await api.client.update(CONFIG_MAPS, evolve(made, data={"a": "1"}))
    stale = api.client.update(CONFIG_MAPS, evolve(made, data={"a": "2"}))
    assert await refusal(stale) == (409, "Conflict")
    blind = evolve(made, metadata=evolve(made.metadata, resource_version=""), data={"a": "3"})
    assert (await api.client.update(CONFIG_MAPS, blind)).data == {"a": "3"}
    old = {"metadata": {"resourceVersion": made.metadata.resource_version}, "data": {"a": "4"}}
    patch = api.client.patch(CONFIG_MAPS, "web", api.namespace, body=old)
    assert await refusal(patch) == (409, "Conflict")


async def test_status_and_spec_are_written_apart(api: Api) -> None:
    made = await make_pod(api)
    both = evolve(
        made,
        spec=evolve(made.spec, containers=(evolve(made.spec.containers[0], image="j"),)),
        status=evolve(made.status, phase="Running"),
    )
    told = await api.client.update(PODS, both, subresource="status")
    assert (told.spec.containers[0].image, told.status.phase) == ("i", "Running")
    assert told.metadata.generation == 1
    back = evolve(both, metadata=told.metadata, status=made.status)
    changed = await api.client.update(PODS, back)
    assert (changed.spec.containers[0].image, changed.status.phase) == ("j", "Running")
    assert changed.metadata.generation == 2


async def test_a_patch_for_another_uid_or_name_is_refused(api: Api) -> None:
    await make_pod(api)
    body = {"metadata": {"uid": NOBODY}, "status": {"phase": "Running"}}
    assert await refusal(patch_pod(api, body, subresource="status")) == (422, "Invalid")
    body = {"metadata": {"name": "another"}, "status": {"phase": "Running"}}
    assert await refusal(patch_pod(api, body, subresource="status")) == (400, "BadRequest")


def conditions(*types: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True"} for kind in types]}


def order(*types: str) -> dict[str, Any]:
    return {"$setElementOrder/conditions": [{"type": kind} for kind in types]}


PATCHES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "null removes a field": (
        {"reason": "Why", "message": "because"},
        {"reason": None},
        {"message": "because"},
    ),
    "others' conditions stay": (
        conditions("Ready", "example.com/mine"),
        {"conditions": [{"type": "Ready", "status": "False"}]},
        {
            "conditions": [
                {"type": "Ready", "status": "False"},
                {"type": "example.com/mine", "status": "True"},
            ]
        },
    ),
    "new conditions come first": (
        conditions("Ready"),
        conditions("New", "Ready"),
        conditions("New", "Ready"),
    ),
    "new conditions that are sent alone come first": (
        conditions("A", "B"),
        conditions("New"),
        conditions("New", "A", "B"),
    ),
    "a wished order is kept": (
        conditions("A", "B"),
        {**conditions("B", "A"), **order("B", "A")},
        conditions("B", "A"),
    ),
    "a wished order of what is not sent is kept": (
        conditions("A", "B", "C"),
        {"conditions": [{"type": "B", "status": "False"}], **order("C", "B", "A")},
        {
            "conditions": [
                {"type": "C", "status": "True"},
                {"type": "B", "status": "False"},
                {"type": "A", "status": "True"},
            ]
        },
    ),
    "others stay where they stood": (
        conditions("A", "Mine", "B"),
        {**conditions("B", "A"), **order("B", "A")},
        conditions("Mine", "B", "A"),
    ),
    "one item is deleted by its key": (
        conditions("A", "B", "C"),
        {"conditions": [{"type": "A", "$patch": "delete"}], **order("B", "C")},
        conditions("B", "C"),
    ),
    "a list is replaced when asked to": (
        conditions("A", "B"),
        {"conditions": [{"$patch": "replace"}, *conditions("C")["conditions"]]},
        conditions("C"),
    ),
    "all is replaced when asked to": (
        {"reason": "Why", "message": "because", **conditions("A")},
        {"$patch": "replace", "message": "so", **conditions("B")},
        {"message": "so", **conditions("B")},
    ),
    "addresses are merged by address": (
        {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]},
        {
            "podIP": "10.0.0.2",
            "podIPs": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1", "$patch": "delete"}],
        },
        {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]},
    ),
}
"""A status, a patch of it, and what comes of it."""


@pytest.mark.parametrize("case", PATCHES)
async def test_a_patch_of_a_status_is_merged_by_keys(api: Api, case: str) -> None:
    before, patch, after = PATCHES[case]
    made = await make_pod(api)
    await patch_pod(api, {"status": before}, subresource="status")
    patched = await patch_pod(api, {"status": patch}, subresource="status")
    shown = encode(patched)["status"]
    assert {name: shown[name] for name in after} == after
    kept_by_the_server = {"phase", "qosClass"}
    assert shown.keys() - kept_by_the_server == after.keys()
    assert patched.metadata.uid == made.metadata.uid


async def test_a_list_without_a_key_is_replaced(api: Api) -> None:
    await make_pod(api)

    def statuses(*names: str) -> dict[str, Any]:
        known = {"image": "i", "imageID": "", "ready": False, "restartCount": 0}
        return {"status": {"containerStatuses": [{"name": name, **known} for name in names]}}

    await patch_pod(api, statuses("c"), subresource="status")
    patched = await patch_pod(api, statuses("d"), subresource="status")
    assert [each.name for each in patched.status.container_statuses] == ["d"]


async def test_maps_are_merged_by_both_kinds_of_patches(api: Api) -> None:
    await make_config_map(api, labels={"a": "1", "b": "2"})
    body = {"metadata": {"labels": {"a": None, "c": "3"}}}
    for kind in PatchType:
        patched = await api.client.patch(CONFIG_MAPS, "web", api.namespace, body=body, type=kind)
        assert patched.metadata.labels == {"b": "2", "c": "3"}


async def test_finalizers_are_added_and_taken_away_one_by_one(api: Api) -> None:
    await make_config_map(api, finalizers=("example.com/a",))
    for patch, left in (
        ({"finalizers": ["example.com/b"]}, {"example.com/a", "example.com/b"}),
        ({"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}, {"example.com/b"}),
    ):
        body = {"metadata": patch}
        patched = await api.client.patch(CONFIG_MAPS, "web", api.namespace, body=body)
        assert set(patched.metadata.finalizers) == left
    bare: dict[str, Any] = {"metadata": {"finalizers": None}}
    await api.client.patch(CONFIG_MAPS, "web", api.namespace, body=bare)


async def test_a_token_is_for_its_account_its_pod_and_its_audience(api: Api) -> None:
    pod = await make_pod(api)
    bound = BoundObjectReference(api_version="v1", kind="Pod", name="web", uid=pod.metadata.uid)
    spec = TokenRequestSpec(audiences=("vault",), expiration_seconds=700, bound_object_ref=bound)
    answer = await api.client.create(
        SERVICE_ACCOUNTS,
        TokenRequest(spec=spec),
        api.namespace,
        name="default",
        subresource="token",
        answer_type=TokenRequest,
    )
    assert answer.status.expiration_timestamp is not None
    assert answer.spec.expiration_seconds == 700
    claims = claims_of(answer.status.token)
    assert claims["aud"] == ["vault"]
    assert claims["sub"] == f"system:serviceaccount:{api.namespace}:default"
    assert claims["kubernetes.io"]["pod"] == {"name": "web", "uid": pod.metadata.uid}
    absent = api.client.create(
        SERVICE_ACCOUNTS,
        TokenRequest(spec=spec),
        api.namespace,
        name="nobody",
        subresource="token",
        answer_type=TokenRequest,
    )
    assert await refusal(absent) == (404, "NotFound")


# Deletion


async def test_a_pod_on_a_node_waits_for_its_node(api: Api) -> None:
    await make_pod(api)
    await delete_pod(api)
    marked = (await api.client.get(PODS, "web", api.namespace)).metadata
    assert marked.deletion_timestamp
    assert (marked.deletion_grace_period_seconds, marked.generation) == (30, 2)
    await delete_pod(api, 60)
    same = (await api.client.get(PODS, "web", api.namespace)).metadata
    assert same.deletion_timestamp == marked.deletion_timestamp
    await delete_pod(api, 5)
    sooner = (await api.client.get(PODS, "web", api.namespace)).metadata
    assert sooner.deletion_grace_period_seconds == 5
    assert sooner.deletion_timestamp
    assert sooner.deletion_timestamp < marked.deletion_timestamp
    await delete_pod(api, 0)
    assert await is_gone(api)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_has_ended_goes_at_once(api: Api, phase: str) -> None:
    await make_pod(api)
    await patch_pod(api, {"status": {"phase": phase}}, subresource="status")
    await delete_pod(api)
    assert await is_gone(api)


async def test_a_pod_without_a_node_goes_at_once(api: Api) -> None:
    await make_pod(api, node="", node_selector={"example.com/nobody": "has-this"})
    await delete_pod(api)
    assert await is_gone(api)


async def test_a_pod_with_a_finalizer_stays_until_it_goes(api: Api) -> None:
    await make_pod(api)
    await patch_pod(api, {"metadata": {"finalizers": ["example.com/a"]}})
    await delete_pod(api, 0)
    assert (await api.client.get(PODS, "web", api.namespace)).metadata.deletion_timestamp
    await patch_pod(api, {"metadata": {"finalizers": None}})
    assert await is_gone(api)


async def test_the_last_finalizer_takes_a_deleted_object_with_it(api: Api) -> None:
    await make_config_map(api, finalizers=("example.com/a",))
    await api.client.delete(CONFIG_MAPS, "web", api.namespace)
    marked = await api.client.get(CONFIG_MAPS, "web", api.namespace)
    assert marked.metadata.deletion_timestamp
    body = {"metadata": {"finalizers": None}}
    await api.client.patch(CONFIG_MAPS, "web", api.namespace, body=body)
    assert await is_gone(api, CONFIG_MAPS)


async def test_only_what_is_meant_is_deleted(api: Api) -> None:
    made = await make_config_map(api)
    delete = api.client.delete
    another = delete(CONFIG_MAPS, "web", api.namespace, uid=NOBODY)
    assert await refusal(another) == (409, "Conflict")
    await api.client.update(CONFIG_MAPS, evolve(made, data={"a": "1"}))
    version = made.metadata.resource_version
    older = delete(CONFIG_MAPS, "web", api.namespace, resource_version=version)
    assert await refusal(older) == (409, "Conflict")
    await delete(CONFIG_MAPS, "web", api.namespace, uid=made.metadata.uid)
    assert await is_gone(api, CONFIG_MAPS)


# Lists and watches


async def test_lists_select_and_come_in_pages(api: Api) -> None:
    for name in ("a", "b", "c"):
        await make_config_map(api, name, labels={"app": name})

    async def names(**selected: str) -> list[str]:
        found = await api.client.list(CONFIG_MAPS, api.selection(**selected))
        return [each.metadata.name for each in found.items if each.metadata.labels]

    assert await names() == ["a", "b", "c"]
    assert await names(labels="app in (a, b)") == ["a", "b"]
    assert await names(labels="app,app!=a") == ["b", "c"]
    assert await names(fields="metadata.name=b") == ["b"]
    selected = api.selection(labels="app in (a, b, c)")
    first = await api.client.list(CONFIG_MAPS, selected, limit=2)
    assert (len(first.items), bool(first.continue_)) == (2, True)
    rest = await api.client.list(CONFIG_MAPS, selected, limit=2, continue_=first.continue_)
    assert ([each.metadata.name for each in rest.items], rest.continue_) == (["c"], "")
    assert rest.resource_version == first.resource_version


async def test_what_is_selected_is_deleted_together(api: Api) -> None:
    for name in ("a", "b", "c"):
        await make_config_map(api, name, labels={"app": name})
    selected = api.selection(labels="app", fields="metadata.name!=a,metadata.name!=x")
    assert await api.client.delete_selected(CONFIG_MAPS, selected) == 2
    assert await api.client.delete_selected(CONFIG_MAPS, selected) == 0
    left = await api.client.list(CONFIG_MAPS, api.selection(labels="app"))
    assert [each.metadata.name for each in left.items] == ["a"]


async def test_all_objects_are_not_deleted_together(api: Api) -> None:
    with pytest.raises(ValueError, match="which of them are to be deleted"):
        await api.client.delete_selected(CONFIG_MAPS, api.selection())


async def test_pods_are_selected_by_their_node(api: Api) -> None:
    await make_pod(api)
    for node, found in (("n1", 1), ("n2", 0)):
        listed = await api.client.list(PODS, api.selection(fields=f"spec.nodeName={node}"))
        assert len(listed.items) == found


async def test_a_version_that_is_still_to_come_is_waited_for_in_vain(api: Api) -> None:
    ahead = api.client.list(CONFIG_MAPS, api.selection(), resource_version="999999999")
    assert await refusal(ahead) == (504, "Timeout")


async def test_a_watch_tells_what_changes_and_what_leaves_its_selection(api: Api) -> None:
    made = await make_config_map(api, labels={"a": "1"})
    version = made.metadata.resource_version
    seen: list[Frame[ConfigMap]] = []
    with trio.fail_after(DEADLINE_SECONDS):
        async with api.client.watch(
            CONFIG_MAPS, api.selection(labels="a=1"), resource_version=version
        ) as frames:
            for labels in ({"b": "1"}, {"a": "2"}, {"a": "1"}):
                body = {"metadata": {"labels": labels}}
                await api.client.patch(CONFIG_MAPS, "web", api.namespace, body=body)
            await api.client.delete(CONFIG_MAPS, "web", api.namespace)
            while len(seen) < 4:
                frame = await (await anext(frames)).read()
                if frame.type is not FrameType.BOOKMARK:
                    seen.append(frame)
    changed, left, back, gone = seen
    assert [frame.type for frame in seen] == [
        FrameType.MODIFIED,
        FrameType.DELETED,
        FrameType.ADDED,
        FrameType.DELETED,
    ]
    versions = [int(each.resource_version) for each in (made.metadata, changed, left, back, gone)]
    assert versions == sorted(set(versions))
    assert isinstance(left.object, ConfigMap)
    assert left.object.metadata.labels["a"] == "1"


async def test_a_watch_may_begin_with_all_that_there_is(api: Api) -> None:
    await make_config_map(api, labels={"a": "1"})
    seen: list[Frame[ConfigMap]] = []
    with trio.fail_after(DEADLINE_SECONDS):
        async with api.client.watch(
            CONFIG_MAPS, api.selection(labels="a=1"), send_initial_events=True
        ) as frames:
            while not (seen and seen[-1].initial_events_end):
                seen.append(await (await anext(frames)).read())
    assert [frame.type for frame in seen] == [FrameType.ADDED, FrameType.BOOKMARK]
