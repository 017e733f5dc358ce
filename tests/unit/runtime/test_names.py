import pytest
from attrs import evolve

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import (
    Container,
    ContainerPort,
    ExecAction,
    HTTPGetAction,
    IntOrString,
    Lifecycle,
    LifecycleHandler,
    ObjectMeta,
    Pod,
    PodSpec,
    SleepAction,
    TCPSocketAction,
)
from trio_kubelet.k8s.json_text import go_json
from trio_kubelet.runtime.config.labels import (
    MOST_LABELS_BYTES,
    MOST_PATH_BYTES,
    MOST_RECORDS_BYTES,
    container_annotations,
    container_labels,
    left_out_of_sandbox,
    sandbox_annotations,
    sandbox_labels,
)
from trio_kubelet.runtime.config.names import (
    container_log_directory,
    container_log_path,
    container_log_symlink,
    pod_full_name,
    pod_log_directory,
    termination_message_file,
)

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u-1", labels={"app": "web"}))
IDENTITY = {
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": "u-1",
}


def annotations(container: Container, pod: Pod = POD) -> dict[str, str]:
    return container_annotations(pod, container, 3)


def pre_stop(**action: object) -> str:
    handler = LifecycleHandler(**action)  # type: ignore[arg-type]
    container = Container(name="c", lifecycle=Lifecycle(pre_stop=handler))
    return annotations(container)["io.kubernetes.container.preStopHandler"]


def test_a_pod_is_called_by_name_namespace_and_uid() -> None:
    assert pod_full_name(POD) == "web_shop(u-1)"


def test_logs_are_found_below_the_log_folder() -> None:
    assert pod_log_directory(POD, "/var/log/pods") == "/var/log/pods/shop_web_u-1"
    assert container_log_directory(POD, "c", "/logs") == "/logs/shop_web_u-1/c"
    assert container_log_path("c", 2) == "c/2.log"


def test_the_link_to_a_log_has_the_containers_id() -> None:
    link = container_log_symlink(POD, "c", "abc")
    assert link == "/var/log/containers/web_shop_c-abc.log"


def test_the_link_to_a_log_is_cut_to_what_a_file_system_takes() -> None:
    long = Pod(metadata=ObjectMeta(name="n" * 200, namespace="s"))
    link = container_log_symlink(long, "c" * 60, "0" * 64)
    name = link.removeprefix("/var/log/containers/")
    assert len(name) == 255
    assert name.startswith("n" * 200 + "_s_" + "c" * 48)
    assert name.endswith(".log")


def test_termination_messages_have_a_file_for_each_incarnation() -> None:
    assert (
        termination_message_file("/var/lib/kubelet", "u-1", "c", 0xBEEF)
        == "/var/lib/kubelet/pods/u-1/containers/c/0000beef"
    )


def test_a_sandbox_has_the_pods_labels_and_its_identity_wins() -> None:
    disguised = Pod(
        metadata=ObjectMeta(
            name="web",
            namespace="shop",
            uid="u-1",
            labels={"app": "web", "io.kubernetes.pod.uid": "another"},
        )
    )
    assert sandbox_labels(disguised) == {"app": "web", **IDENTITY}


def test_a_container_has_only_what_identifies_it() -> None:
    assert container_labels(POD, Container(name="c")) == {
        **IDENTITY,
        "io.kubernetes.container.name": "c",
    }


def test_grace_periods_are_kept_where_they_are_set() -> None:
    assert not any("GracePeriod" in name for name in annotations(Container(name="c")))
    ending = Pod(
        metadata=ObjectMeta(name="web", deletion_grace_period_seconds=0),
        spec=PodSpec(termination_grace_period_seconds=30),
    )
    made = annotations(Container(name="c"), ending)
    assert made["io.kubernetes.pod.deletionGracePeriod"] == "0"
    assert made["io.kubernetes.pod.terminationGracePeriod"] == "30"


def test_ports_are_written_in_the_order_of_the_api() -> None:
    ports = (
        ContainerPort(
            protocol="UDP", host_ip="127.0.0.1", container_port=53, host_port=5353, name="dns"
        ),
        ContainerPort(container_port=80),
    )
    assert annotations(Container(name="c", ports=ports))["io.kubernetes.container.ports"] == (
        '[{"name":"dns","hostPort":5353,"containerPort":53,"protocol":"UDP","hostIP":"127.0.0.1"},'
        '{"containerPort":80}]'
    )


def test_handlers_are_written_in_the_order_of_the_api() -> None:
    assert pre_stop(exec=ExecAction(command=("sh", "-c", "a<b"))) == (
        '{"exec":{"command":["sh","-c","a\\u003cb"]}}'
    )
    assert pre_stop(http_get=HTTPGetAction(path="/", port=IntOrString("web"), scheme="HTTP")) == (
        '{"httpGet":{"path":"/","port":"web","scheme":"HTTP"}}'
    )
    assert pre_stop(tcp_socket=TCPSocketAction(port=IntOrString(80), host="h")) == (
        '{"tcpSocket":{"port":80,"host":"h"}}'
    )
    assert pre_stop(sleep=SleepAction(seconds=0)) == '{"sleep":{"seconds":0}}'


def test_json_is_written_as_go_writes_it() -> None:
    text = '"\\<>&\u2028\u2029é\n'
    assert go_json({"a": text, "b": [1, True]}) == (
        '{"a":"\\"\\\\\\u003c\\u003e\\u0026\\u2028\\u2029é\\n","b":[1,true]}'
    )


def with_annotations(annotations: dict[str, str]) -> Pod:
    return evolve(POD, metadata=evolve(POD.metadata, annotations=annotations))


def test_short_labels_and_annotations_are_all_told() -> None:
    pod = with_annotations({"a": "x" * (MOST_LABELS_BYTES - 1)})
    assert sandbox_annotations(pod) == pod.metadata.annotations
    assert left_out_of_sandbox(pod) == ""


def test_the_longest_annotations_are_left_out() -> None:
    pod = with_annotations({"long": "é" * MOST_LABELS_BYTES, "short": "x"})
    assert sandbox_annotations(pod) == {"short": "x"}
    assert left_out_of_sandbox(pod) == (
        'The container runtime is not told of annotation "long": labels, and annotations, must '
        "have at most 16384 bytes together"
    )


def test_of_many_labels_those_are_told_that_have_the_room() -> None:
    many = {f"l{n:04}": "v" * 59 for n in range(9000)}
    pod = evolve(POD, metadata=evolve(POD.metadata, labels=many))
    labels = sandbox_labels(pod)
    assert len(labels) == MOST_LABELS_BYTES // 64 + len(IDENTITY)
    assert labels.items() >= IDENTITY.items()
    words = '"l0256", label "l0257", label "l0258" and 8741 more: '
    assert words in left_out_of_sandbox(pod)


def test_hooks_and_ports_of_all_containers_of_a_pod_have_a_bounded_room() -> None:
    ports = tuple(ContainerPort(container_port=1 + n) for n in range(4))
    hook = LifecycleHandler(exec=ExecAction(command=("<" * 1000,)))
    container = Container(name="c", ports=ports, lifecycle=Lifecycle(pre_stop=hook))
    records = {"io.kubernetes.container.preStopHandler", "io.kubernetes.container.ports"}
    for count, told in ((1, records), (30, {"io.kubernetes.container.ports"}), (500, set())):
        pod = evolve(POD, spec=PodSpec(containers=(container,) * count))
        made = annotations(container, pod)
        assert made.keys() & records == told
        assert count * sum(len(made[name]) for name in told) <= MOST_RECORDS_BYTES


def test_a_long_path_of_termination_messages_is_refused() -> None:
    long = Container(name="c", termination_message_path="/" + "x" * MOST_PATH_BYTES)
    with pytest.raises(ConfigError, match="must have at most 1024 bytes"):
        annotations(long)
