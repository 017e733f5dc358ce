"""What decodes to what, and which errors come of it."""

from typing import Any

import pytest

from trio_kubelet.k8s import (
    Container,
    ContainerStatus,
    EphemeralContainer,
    FieldError,
    Pod,
    PodList,
    PodSpec,
    Quantity,
    ValidationError,
)
from trio_kubelet.k8s.codec import decode, encode, unknown_fields
from trio_kubelet.k8s.errors import ErrorKind


def errors_of(data: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        decode(Pod, data)
    return [str(error) for error in caught.value.errors]


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (
            {"containers": [{"image": 7}]},
            "spec.containers[0].image: Invalid value: 7: must be a string",
        ),
        (
            {"containers": [{}, {"ports": [{"containerPort": "http"}]}]},
            'spec.containers[1].ports[0].containerPort: Invalid value: "http": must be an integer',
        ),
        (
            {"containers": [{"ports": [{"containerPort": 1.5}]}]},
            "spec.containers[0].ports[0].containerPort: Invalid value: 1.5: must be an integer",
        ),
        (
            {"priority": 2**31},
            "spec.priority: Invalid value: 2147483648: must be an integer of 32 bits",
        ),
        (
            {"activeDeadlineSeconds": -(2**63) - 1},
            "spec.activeDeadlineSeconds: Invalid value: -9223372036854775809:"
            " must be an integer of 64 bits",
        ),
        ({"priority": True}, "spec.priority: Invalid value: true: must be an integer"),
        ({"hostPID": "yes"}, 'spec.hostPID: Invalid value: "yes": must be true or false'),
        ({"hostPID": 1}, "spec.hostPID: Invalid value: 1: must be true or false"),
        ({"containers": {}}, "spec.containers: Invalid value: {}: must be a list"),
        ({"containers": [3]}, "spec.containers[0]: Invalid value: 3: must be an object"),
        ({"nodeSelector": ["a"]}, 'spec.nodeSelector: Invalid value: ["a"]: must be an object'),
        (
            {"nodeSelector": {"ssd": True}},
            "spec.nodeSelector[ssd]: Invalid value: true: must be a string",
        ),
        (
            {"overhead": {"cpu": "lots"}},
            'spec.overhead[cpu]: Invalid value: "lots": must be a number with an optional suffix'
            " (n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei) or exponent",
        ),
        (
            {"overhead": {"cpu": []}},
            "spec.overhead[cpu]: Invalid value: []: must be a quantity such as 100m or 1Gi",
        ),
        (
            {"containers": [{"livenessProbe": {"httpGet": {"port": 1.5}}}]},
            "spec.containers[0].livenessProbe.httpGet.port: Invalid value: 1.5:"
            " must be an integer or a string",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_with_its_path(
    spec: dict[str, Any], error: str
) -> None:
    assert errors_of({"spec": spec}) == [error]


def test_a_time_must_be_one() -> None:
    assert errors_of({"metadata": {"creationTimestamp": "yesterday"}}) == [
        'metadata.creationTimestamp: Invalid value: "yesterday":'
        " must be a time such as 2026-01-31T12:00:00Z"
    ]


def test_all_errors_of_an_object_come_at_once() -> None:
    data = {
        "metadata": {"name": 1, "labels": {"a": 2}},
        "spec": {"containers": [{"name": 3}, {"name": "b", "env": [{"value": 4}]}]},
        "status": 5,
    }
    assert [error.split(":")[0] for error in errors_of(data)] == [
        "metadata.name",
        "metadata.labels[a]",
        "spec.containers[0].name",
        "spec.containers[1].env[0].value",
        "status",
    ]


@pytest.mark.parametrize("data", [None, {}])
def test_an_empty_object_decodes_to_defaults(data: object) -> None:
    assert decode(Pod, data) == Pod()


def test_data_that_is_no_object_is_an_error() -> None:
    assert errors_of([]) == ["Invalid value: []: must be an object"]


def test_null_means_absent_everywhere() -> None:
    data: dict[str, Any] = {
        "metadata": {"labels": None, "name": None, "creationTimestamp": None},
        "spec": {"containers": [{"name": "a", "command": None}], "hostNetwork": None},
        "status": None,
    }
    assert decode(Pod, data) == Pod(spec=PodSpec(containers=(Container(name="a"),)))


def test_unknown_fields_are_skipped_and_listed() -> None:
    data = {
        "spce": {},
        "metadata": {"labels": {"any": "key"}, "uuid": "x"},
        "spec": {
            "containers": [{"name": "a"}, {"imagePullpolicy": "Always", "env": [{"nam": "b"}]}],
            "securityContext": {"runAsUsr": 1},
        },
    }
    assert decode(Pod, data).spec.containers[0].name == "a"
    assert unknown_fields(Pod, data) == (
        "spce",
        "metadata.uuid",
        "spec.containers[1].imagePullpolicy",
        "spec.containers[1].env[0].nam",
        "spec.securityContext.runAsUsr",
    )


def test_content_of_free_form_objects_is_never_unknown() -> None:
    entry: dict[str, Any] = {"fieldsV1": {"f:spec": {"f:whatever": {}}}}
    data = {"metadata": {"managedFields": [entry]}}
    assert unknown_fields(Pod, data) == ()


def test_numbers_are_quantities_too() -> None:
    spec = decode(PodSpec, {"overhead": {"cpu": 2, "memory": 0.5}})
    assert spec.overhead == {"cpu": Quantity("2"), "memory": Quantity("500m")}
    assert encode(spec) == {"overhead": {"cpu": "2", "memory": "0.5"}}


def test_what_is_absent_is_not_encoded() -> None:
    assert encode(Pod()) == {}
    assert encode(Pod(spec=PodSpec(hostname="", host_network=False, priority=0))) == {
        "spec": {"hostNetwork": False, "priority": 0}
    }


def test_what_the_api_requires_is_encoded_even_when_empty() -> None:
    assert encode(PodList()) == {"items": []}
    assert encode(ContainerStatus(name="a")) == {
        "name": "a",
        "ready": False,
        "restartCount": 0,
        "image": "",
        "imageID": "",
    }


def test_unknown_values_of_enums_are_kept() -> None:
    assert encode(decode(PodSpec, {"dnsPolicy": "Later"})) == {"dnsPolicy": "Later"}


def test_an_ephemeral_container_is_a_container_with_a_target() -> None:
    data = {"name": "debug", "image": "busybox", "targetContainerName": "app"}
    container = decode(EphemeralContainer, data)
    assert isinstance(container, Container)
    assert container.target_container_name == "app"
    assert encode(container) == data


def test_objects_of_different_classes_are_never_equal() -> None:
    assert EphemeralContainer(name="a") != Container(name="a")
    assert Container(name="a") == Container(name="a")


def test_the_repr_shows_only_what_is_set() -> None:
    pod = Pod(spec=PodSpec(containers=(Container(name="a", tty=False),), priority=0))
    assert repr(pod.spec) == "PodSpec(containers=(Container(name='a', tty=False),), priority=0)"


def test_long_values_are_cut_in_errors() -> None:
    error = FieldError("spec.x", ErrorKind.INVALID, "y" * 10_000, "is too much")
    assert len(str(error)) < 300
    assert str(error).endswith("...: is too much")


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"metadata": {"name": "\ud800x"}}, "metadata.name"),
        ({"metadata": {"labels": {"a": "\udcff"}}}, "metadata.labels[a]"),
        ({"metadata": {"labels": {"\ud800": "a"}}}, r"metadata.labels[\ud800]"),
        ({"spec": {"containers": [{"image": "\ud800x"}]}}, "spec.containers[0].image"),
        ({"spec": {"containers": [{"args": ["\ud800"]}]}}, "spec.containers[0].args[0]"),
        (
            {"spec": {"containers": [{"livenessProbe": {"httpGet": {"port": "\ud800"}}}]}},
            "spec.containers[0].livenessProbe.httpGet.port",
        ),
    ],
)
def test_text_with_lone_surrogates_is_refused_with_its_field(
    document: dict[str, Any], path: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        decode(Pod, document)
    text = str(caught.value)
    assert text.startswith(f"{path}: Invalid value: ")
    assert "must be valid Unicode, without lone surrogates" in text
    assert text.encode()


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_no_calendar_has_in_utc_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="must be a time"):
        decode(Pod, {"metadata": {"creationTimestamp": text}})
