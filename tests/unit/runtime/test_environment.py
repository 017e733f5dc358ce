import time

import pytest

from tests.turns import is_too_long
from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import (
    ConfigMapEnvSource,
    ConfigMapKeySelector,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ObjectFieldSelector,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceFieldSelector,
    ResourceRequirements,
    SecretEnvSource,
    SecretKeySelector,
)
from trio_kubelet.references.services import MAX_VARIABLES
from trio_kubelet.runtime.config.environment import (
    MAX_WRITTEN_BYTES,
    MAX_WRITTEN_VARIABLES,
    EnvironmentFacts,
    EnvironmentSources,
    blocks_or_is_large,
    environment,
)
from trio_kubelet.runtime.config.expansion import MAX_BYTES
from trio_kubelet.runtime.config.field_refs import PodAddresses, pod_field, resource_field

POD = Pod(
    metadata=ObjectMeta(
        name="web",
        namespace="shop",
        uid="u-1",
        labels={"app": "web", "": "odd"},
        annotations={"example.org/[x]": "it's"},
    ),
    spec=PodSpec(node_name="node-1", service_account_name="robot"),
)
ADDRESSES = PodAddresses(pod_ips=("10.0.0.5", "fd00::5"), host_ips=("192.0.2.1", "2001:db8::1"))


def read_env_file(volume: str, path: str, name: str) -> str:
    if (volume, path, name) != ("config", "app.env", "MODE"):
        raise LookupError("not in the file")
    return "fast"


FETCHED = EnvironmentSources(
    config_maps={"settings": {"b": "2", "a": "1"}},
    secrets={"keys": {"token": b"t", "raw": b"\xff\xfe"}},
    env_file_reader=lambda: read_env_file,
)


def of(*env: EnvVar, env_from: tuple[EnvFromSource, ...] = ()) -> list[tuple[str, str]]:
    facts = EnvironmentFacts(
        addresses=ADDRESSES, sources=FETCHED, services={"SVC_HOST": "10.96.0.1", "TAKEN": "no"}
    )
    container = Container(name="c", env=env, env_from=env_from)
    return list(environment(POD, container, facts).items())[:-2]


def map_key(name: str, key: str, optional: bool | None = None) -> EnvVarSource:
    return EnvVarSource(
        config_map_key_ref=ConfigMapKeySelector(name=name, key=key, optional=optional)
    )


def secret_key(name: str, key: str, optional: bool | None = None) -> EnvVarSource:
    return EnvVarSource(secret_key_ref=SecretKeySelector(name=name, key=key, optional=optional))


def test_services_come_last_and_give_way_to_what_is_declared() -> None:
    facts = EnvironmentFacts(services={"SVC": "1", "TAKEN": "no"})
    container = Container(name="c", env=(EnvVar(name="TAKEN", value="yes $(SVC)"),))
    assert list(environment(POD, container, facts).items()) == [("TAKEN", "yes 1"), ("SVC", "1")]


def test_a_value_sees_only_what_stands_before_it() -> None:
    assert of(
        EnvVar(name="EARLY", value="$(LATE)"),
        EnvVar(name="LATE", value="$(SVC_HOST)"),
        EnvVar(name="LATER", value="$(LATE)$(EARLY)"),
    ) == [("EARLY", "$(LATE)"), ("LATE", "10.96.0.1"), ("LATER", "10.96.0.1$(LATE)")]


def test_a_name_declared_twice_has_its_last_value_and_may_use_its_first() -> None:
    assert of(
        EnvVar(name="P", value="/bin"), EnvVar(name="Q"), EnvVar(name="P", value="$(P):/sbin")
    ) == [("Q", ""), ("P", "/bin:/sbin")]


def test_whole_config_maps_and_secrets_come_first_with_their_prefix() -> None:
    from_map = EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings"), prefix="CM_")
    from_secret = EnvFromSource(secret_ref=SecretEnvSource(name="keys"))
    assert of(EnvVar(name="X", value="$(CM_a)$(token)"), env_from=(from_map, from_secret)) == [
        ("CM_a", "1"),
        ("CM_b", "2"),
        ("raw", "\udcff\udcfe"),
        ("token", "t"),
        ("X", "1t"),
    ]


def test_env_wins_over_env_from() -> None:
    from_map = EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings"))
    assert of(EnvVar(name="a", value="own"), env_from=(from_map,)) == [("b", "2"), ("a", "own")]


def test_single_keys_are_looked_up() -> None:
    file_key = FileKeySelector(volume_name="config", path="app.env", key="MODE")
    assert of(
        EnvVar(name="A", value_from=map_key("settings", "a")),
        EnvVar(name="T", value_from=secret_key("keys", "token")),
        EnvVar(name="M", value_from=EnvVarSource(file_key_ref=file_key)),
    ) == [("A", "1"), ("T", "t"), ("M", "fast")]


def test_what_is_looked_up_is_not_expanded() -> None:
    fetched = EnvironmentSources(config_maps={"m": {"k": "$(HOME)"}})
    container = Container(
        name="c",
        env=(EnvVar(name="HOME", value="/"), EnvVar(name="K", value_from=map_key("m", "k"))),
    )
    made = environment(POD, container, EnvironmentFacts(sources=fetched))
    assert made["K"] == "$(HOME)"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (map_key("gone", "a"), 'configmap "gone" not found'),
        (map_key("settings", "z"), "couldn't find key z in ConfigMap shop/settings"),
        (secret_key("gone", "a"), 'secret "gone" not found'),
        (secret_key("keys", "z"), "couldn't find key z in Secret shop/keys"),
    ],
)
def test_what_is_missing_is_told_in_the_words_of_the_go_kubelet(
    source: EnvVarSource, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        of(EnvVar(name="X", value_from=source))
    assert caught.value.message == message
    assert caught.value.reason == "CreateContainerConfigError"


def test_whole_sources_that_are_missing_are_told_too() -> None:
    for missing, message in (
        (EnvFromSource(config_map_ref=ConfigMapEnvSource(name="m")), 'configmap "m" not found'),
        (EnvFromSource(secret_ref=SecretEnvSource(name="s")), 'secret "s" not found'),
    ):
        with pytest.raises(ConfigError, match=message):
            of(env_from=(missing,))


def test_what_is_optional_and_missing_leaves_no_variable() -> None:
    file_key = FileKeySelector(volume_name="config", path="no", key="Z", optional=True)
    assert (
        of(
            EnvVar(name="A", value_from=map_key("gone", "a", optional=True)),
            EnvVar(name="B", value_from=map_key("settings", "z", optional=True)),
            EnvVar(name="C", value_from=secret_key("gone", "a", optional=True)),
            EnvVar(name="D", value_from=secret_key("keys", "z", optional=True)),
            EnvVar(name="E", value_from=EnvVarSource(file_key_ref=file_key)),
            env_from=(
                EnvFromSource(config_map_ref=ConfigMapEnvSource(name="gone", optional=True)),
                EnvFromSource(secret_ref=SecretEnvSource(name="gone", optional=True)),
            ),
        )
        == []
    )


def test_without_an_api_server_nothing_is_found() -> None:
    container = Container(name="c", env=(EnvVar(name="X", value_from=map_key("m", "k")),))
    with pytest.raises(ConfigError, match='configmap "m" not found'):
        environment(POD, container, EnvironmentFacts())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['no']", ""),
        ("metadata.annotations['example.org/[x]']", "it's"),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "robot"),
        ("status.podIP", "10.0.0.5"),
        ("status.podIPs", "10.0.0.5,fd00::5"),
        ("status.hostIP", "192.0.2.1"),
        ("status.hostIPs", "192.0.2.1,2001:db8::1"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    assert pod_field(POD, path, ADDRESSES) == value
    source = EnvVarSource(field_ref=ObjectFieldSelector(field_path=path))
    assert of(EnvVar(name="F", value_from=source)) == [("F", value)]


@pytest.mark.parametrize("path", ["", "spec.hostname", "metadata.name['x']", "spec['x']"])
def test_other_fields_are_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="fieldPath"):
        pod_field(POD, path, ADDRESSES)


def test_a_pod_without_an_address_has_an_empty_one() -> None:
    assert pod_field(POD, "status.podIP", PodAddresses()) == ""


def quantities(**amounts: str) -> dict[str, Quantity]:
    return {name.replace("_", "-"): Quantity(amount) for name, amount in amounts.items()}


SIZED = Container(
    name="sized",
    resources=ResourceRequirements(
        requests=quantities(cpu="150m", memory="20Mi"),
        limits=quantities(cpu="1500m", hugepages_2Mi="4Mi"),
    ),
)
ALLOCATABLE = quantities(cpu="4", memory="1000000001", ephemeral_storage="1Gi")


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("requests.cpu", None, "1"),
        ("requests.cpu", "1m", "150"),
        ("requests.cpu", "100m", "2"),
        ("requests.memory", "1Mi", "20"),
        ("requests.memory", "16Mi", "2"),
        ("requests.ephemeral-storage", None, "0"),
        ("limits.cpu", None, "2"),
        ("limits.cpu", "0", "2"),
        ("limits.memory", None, "1000000001"),
        ("limits.memory", "1M", "1001"),
        ("limits.ephemeral-storage", "1Mi", "1024"),
        ("limits.hugepages-2Mi", "1Mi", "4"),
        ("limits.hugepages-1Gi", None, "0"),
    ],
)
def test_amounts_are_counted_in_divisors_and_rounded_up(
    resource: str, divisor: str | None, value: str
) -> None:
    selector = ResourceFieldSelector(
        resource=resource, divisor=None if divisor is None else Quantity(divisor)
    )
    assert resource_field(POD, SIZED, selector, ALLOCATABLE) == value


@pytest.mark.parametrize(
    ("resource", "value"),
    [
        ("limits.cpu", "2"),
        ("limits.memory", "52428800"),
        ("limits.ephemeral-storage", "1073741824"),
        ("requests.memory", "20971520"),
    ],
)
def test_a_container_without_a_limit_of_its_own_has_that_of_its_pod(
    resource: str, value: str
) -> None:
    limits = quantities(cpu="3", memory="50Mi")
    pod = Pod(spec=PodSpec(resources=ResourceRequirements(requests=limits, limits=limits)))
    selector = ResourceFieldSelector(resource=resource)
    assert resource_field(pod, SIZED, selector, ALLOCATABLE) == value


def test_amounts_of_another_container_are_found_by_its_name() -> None:
    pod = Pod(spec=PodSpec(containers=(SIZED,)))
    selector = ResourceFieldSelector(resource="requests.cpu", container_name="sized")
    assert resource_field(pod, Container(name="other"), selector, {}) == "1"
    with pytest.raises(ConfigError, match="container sized not found"):
        resource_field(POD, SIZED, selector, {})


@pytest.mark.parametrize("resource", ["", "cpu", "limits", "limits.gpu", "used.cpu"])
def test_other_resources_are_refused(resource: str) -> None:
    with pytest.raises(ConfigError, match="unsupported container resource : "):
        resource_field(POD, SIZED, ResourceFieldSelector(resource=resource), {})


class TestEnvironmentSources:
    def test_an_object_that_could_not_be_had_is_a_problem_of_its_readers_alone(self) -> None:
        sources = EnvironmentSources(
            config_maps={"settings": {"a": "1"}},
            problems={("configmap", "late"): "failed to sync configmap cache"},
        )
        facts = EnvironmentFacts(sources=sources)
        late = Container(name="c", env=(EnvVar(name="X", value_from=map_key("late", "k")),))
        fine = Container(name="d", env=(EnvVar(name="X", value_from=map_key("settings", "a")),))
        with pytest.raises(ConfigError, match="failed to sync configmap cache"):
            environment(POD, late, facts)
        assert environment(POD, fine, facts) == {"X": "1"}

    @pytest.mark.parametrize(
        ("error", "optional", "message"),
        [
            (OSError("is a pipe"), True, "couldn't parse env file"),
            (ValueError("at line 3"), True, "couldn't parse env file"),
            (FileNotFoundError("no"), False, "couldn't parse env file"),
            (FileNotFoundError("no"), True, None),
            (LookupError('key "k" not found'), False, 'key "k" not found'),
            (LookupError('key "k" not found'), True, None),
        ],
    )
    def test_what_is_wrong_with_a_file_is_told_unless_it_is_optional(
        self, error: Exception, optional: bool, message: str | None
    ) -> None:
        def fail(_volume: str, _path: str, _name: str) -> str:
            raise error

        reference = FileKeySelector(volume_name="v", path="p", key="k", optional=optional)
        variable = EnvVar(name="X", value_from=EnvVarSource(file_key_ref=reference))
        container = Container(name="c", env=(variable,))
        facts = EnvironmentFacts(sources=EnvironmentSources(env_file_reader=lambda: fail))
        assert blocks_or_is_large(container, facts)
        if message is None:
            assert environment(POD, container, facts) == {}
        else:
            with pytest.raises(ConfigError) as caught:
                environment(POD, container, facts)
            assert caught.value.message == message


class TestSize:
    """What has no bound in a spec: it is refused before it is made."""

    def test_values_that_double_are_refused_with_the_first_that_is_too_large(self) -> None:
        doubling = (EnvVar(name=f"V{n}", value=f"$(V{n - 1})$(V{n - 1})") for n in range(1, 41))
        began = time.thread_time()
        with pytest.raises(ConfigError) as caught:
            of(EnvVar(name="V0", value="x" * 10), *doubling)
        assert not is_too_long(time.thread_time() - began)
        assert caught.value.reason == "CreateContainerConfigError"
        assert caught.value.message == (
            'environment of container "c" is too large: with variable "V19" it would have more '
            "than 6291456 bytes"
        )

    def test_one_config_map_under_many_prefixes_is_refused(self) -> None:
        data = {f"k{n}": "" for n in range(100_000)}
        sources = EnvironmentSources(config_maps={"large": data})
        refer = (
            EnvFromSource(prefix=f"p{n}", config_map_ref=ConfigMapEnvSource(name="large"))
            for n in range(60)
        )
        container = Container(name="c", env_from=tuple(refer))
        facts = EnvironmentFacts(sources=sources)
        assert blocks_or_is_large(container, facts)
        began = time.thread_time()
        with pytest.raises(ConfigError, match=f"more than {MAX_VARIABLES} variables"):
            environment(POD, container, facts)
        assert not is_too_long((time.thread_time() - began) / 5)  # In a thread of its own.

    def test_as_much_as_a_process_can_have_is_made(self) -> None:
        services = len("SVC_HOST=10.96.0.1") + len("TAKEN=no") + 2 * 9
        most = MAX_BYTES - services - len("A=") - 9
        assert ("A", "x" * most) in of(EnvVar(name="A", value="x" * most))
        with pytest.raises(ConfigError, match="too large"):
            of(EnvVar(name="A", value="x" * (most + 1)))

    def test_what_is_declared_again_counts_once(self) -> None:
        value = "x" * (MAX_BYTES - 1000)
        again = [EnvVar(name="A", value=value) for _ in range(4)]
        assert dict(of(*again))["A"] == value

    def test_bytes_count_and_not_characters(self) -> None:
        with pytest.raises(ConfigError, match="too large"):
            of(EnvVar(name="A", value="\N{GRINNING FACE}" * (MAX_BYTES // 4)))


def test_values_that_are_overridden_count_as_work() -> None:
    many = {f"k{number}": "v" for number in range(10_000)}
    sources = EnvironmentSources(config_maps={"settings": many})
    whole = EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings"))
    again = Container(name="app", env_from=(whole,) * 1000)
    with pytest.raises(ConfigError, match=f"than {MAX_WRITTEN_VARIABLES} variables with those"):
        environment(POD, again, EnvironmentFacts(sources=sources))
    twice = Container(name="app", env_from=(whole,) * 2)
    assert len(environment(POD, twice, EnvironmentFacts(sources=sources))) == 10_000

    long = (EnvVar(name="A", value="é" * 100_000), *(EnvVar(name="B", value="$(A)"),) * 1000)
    with pytest.raises(ConfigError, match=f"than {MAX_WRITTEN_BYTES} bytes with those"):
        environment(POD, Container(name="app", env=long), EnvironmentFacts())


def test_a_container_may_know_five_thousand_services_with_short_names() -> None:
    services = {f"S{number}_PORT": "tcp://10.0.0.1:80" for number in range(40_008)}
    made = environment(POD, Container(name="app"), EnvironmentFacts(services=services))
    assert len(made) == 40_008


@pytest.mark.parametrize(
    "values", [("$$" * 100_000,), ("x" * 5000, *("$(V)$(V)",) * 8), ("$(A)",) * 600]
)
def test_what_may_become_large_is_work_for_a_thread(values: tuple[str, ...]) -> None:
    variables = tuple(EnvVar(name="V", value=value) for value in values)
    assert blocks_or_is_large(Container(name="app", env=variables), EnvironmentFacts())
    one = Container(name="app", env=(EnvVar(name="V", value="$(A)/$(B)"),))
    assert not blocks_or_is_large(one, EnvironmentFacts())


def test_a_few_long_values_of_a_config_map_are_work_for_a_thread() -> None:
    sources = EnvironmentSources(config_maps={"settings": {"a": "a" * 500_000}})
    whole = EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings"))
    container = Container(name="app", env_from=(whole,))
    assert blocks_or_is_large(container, EnvironmentFacts(sources=sources))
