"""Which files a volume is to hold, with which modes and owners."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import (
    ConfigMap,
    Container,
    DownwardAPIVolumeFile,
    KeyToPath,
    ObjectFieldSelector,
    ObjectMeta,
    Pod,
    PodSecurityContext,
    PodSpec,
    Quantity,
    ResourceFieldSelector,
    ResourceRequirements,
    Secret,
    SecurityContext,
)
from trio_kubelet.volumes.collect import add_downward_files, go_quoted, map_text
from trio_kubelet.volumes.payload import (
    MAX_BYTES,
    MAX_FILES,
    ObjectSource,
    Payload,
    PayloadBuilder,
    VolumeFile,
    VolumeTooLargeError,
    add_config_map,
    add_secret,
    common_user,
    for_group,
    with_checked_paths,
)

MAP = ConfigMap(data={"a": "1", "text": "grüß"}, binary_data={"raw": b"\xff\x00"})
SECRET = Secret(data={"token": b"t"})


def config_map_payload(
    found: ConfigMap, items: tuple[KeyToPath, ...], mode: int, *, optional: bool
) -> Payload:
    builder = PayloadBuilder()
    add_config_map(builder, found, ObjectSource(items=items, mode=mode, optional=optional))
    return builder.files


def downward_payload(
    pod: Pod,
    items: tuple[DownwardAPIVolumeFile, ...],
    mode: int,
    allocatable: Mapping[str, Quantity],
) -> Payload:
    builder = PayloadBuilder()
    add_downward_files(builder, pod, items, mode, allocatable)
    return builder.files


def test_without_items_every_key_is_a_file() -> None:
    assert config_map_payload(MAP, (), 0o640, optional=False) == {
        "a": VolumeFile(content=b"1", mode=0o640),
        "text": VolumeFile(content="grüß".encode(), mode=0o640),
        "raw": VolumeFile(content=b"\xff\x00", mode=0o640),
    }


def test_items_choose_keys_and_have_paths_and_modes_of_their_own() -> None:
    items = (KeyToPath(key="raw", path="deep/er/file", mode=0o400), KeyToPath(key="a", path="b"))
    assert config_map_payload(MAP, items, 0o644, optional=False) == {
        "deep/er/file": VolumeFile(content=b"\xff\x00", mode=0o400),
        "b": VolumeFile(content=b"1", mode=0o644),
    }


def test_an_item_without_its_key_is_an_error_unless_the_source_is_optional() -> None:
    items = (KeyToPath(key="no", path="no"),)
    with pytest.raises(ValueError, match=r"^configmap references non-existent config key: no$"):
        config_map_payload(MAP, items, 0o644, optional=False)
    with pytest.raises(ValueError, match=r"^references non-existent secret key: no$"):
        add_secret(PayloadBuilder(), SECRET, ObjectSource(items=items, mode=0o644, optional=False))
    assert config_map_payload(MAP, items, 0o644, optional=True) == {}


def test_a_volume_has_not_more_files_than_the_agent_can_write() -> None:
    keys = ConfigMap(data={f"k{number}": "" for number in range(MAX_FILES + 1)})
    with pytest.raises(VolumeTooLargeError, match="the volume has more than 10000 files"):
        config_map_payload(keys, (), 0o644, optional=False)


def test_what_one_volume_holds_is_bounded_also_where_files_replace_each_other() -> None:
    text = ConfigMap(data={"a": "x" * (1 << 20)})
    items = tuple(KeyToPath(key="a", path="same") for _ in range(1 + MAX_BYTES // (1 << 20)))
    with pytest.raises(VolumeTooLargeError, match="have more than 8388608 bytes"):
        config_map_payload(text, items, 0o644, optional=False)
    assert len(config_map_payload(text, items[:-1], 0o644, optional=False)) == 1


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "must not be empty"),
        ("/etc/passwd", "must be relative path"),
        ("../x", "must not contain '..'"),
        ("a/../../x", "must not contain '..'"),
        ("..data", "must not start with '..'"),
        ("./..data/x", "must not start with '..'"),
        ("x" * 300, "too long"),
        ("a/" * 3000, "too long"),
        ("a\0b", "zero byte"),
    ],
)
def test_no_path_leaves_the_volume_or_meets_the_writers_own_names(path: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        with_checked_paths({path: VolumeFile(content=b"")})


@given(st.text(alphabet="./ab", max_size=12))
def test_a_path_that_is_accepted_stays_inside(path: str) -> None:
    try:
        (clean,) = with_checked_paths({path: VolumeFile(content=b"")})
    except ValueError:
        return
    parts = clean.split("/")
    assert not clean.startswith(("/", ".."))
    assert all(part not in ("", ".", "..") for part in parts)


def test_the_group_may_read_what_it_owns() -> None:
    files = for_group({"f": VolumeFile(content=b"", mode=0o600)}, 99)
    assert files == {"f": VolumeFile(content=b"", mode=0o640, group=99)}
    assert for_group(files, None) == files


def pod_of_users(own: int | None, *users: int | None) -> Pod:
    containers = tuple(
        Container(name=f"c{number}", security_context=SecurityContext(run_as_user=user))
        for number, user in enumerate(users)
    )
    context = PodSecurityContext(run_as_user=own)
    return Pod(spec=PodSpec(containers=containers, security_context=context))


@pytest.mark.parametrize(
    ("own", "users", "common"),
    [
        (None, (5, 5), 5),
        (7, (None, 7), 7),
        (7, (None,), 7),
        (None, (5, None), None),
        (None, (5, 6), None),
        (None, (None,), None),
    ],
)
def test_the_user_of_a_pod_is_that_of_all_its_containers(
    own: int | None, users: tuple[int | None, ...], common: int | None
) -> None:
    assert common_user(pod_of_users(own, *users)) == common


POD = Pod(
    metadata=ObjectMeta(
        name="web",
        namespace="shop",
        labels={"b": "2", "a": "1"},
        annotations={"note": 'a "b"\nc\\d\x01é\u200b\U000e0001'},
    ),
    spec=PodSpec(
        containers=(
            Container(name="c", resources=ResourceRequirements(limits={"cpu": Quantity("1500m")})),
        )
    ),
)


def field_file(path: str, field: str, mode: int | None = None) -> DownwardAPIVolumeFile:
    return DownwardAPIVolumeFile(
        path=path, field_ref=ObjectFieldSelector(field_path=field), mode=mode
    )


def resource_file(path: str, resource: str) -> DownwardAPIVolumeFile:
    selector = ResourceFieldSelector(container_name="c", resource=resource)
    return DownwardAPIVolumeFile(path=path, resource_field_ref=selector)


def test_fields_and_amounts_of_the_pod_are_files() -> None:
    items = (
        field_file("name", "metadata.name", mode=0o400),
        field_file("labels", "metadata.labels"),
        field_file("one", "metadata.labels['b']"),
        resource_file("cpu", "limits.cpu"),
        resource_file("memory", "limits.memory"),
    )
    assert downward_payload(POD, items, 0o644, {"memory": Quantity("1Ki")}) == {
        "name": VolumeFile(content=b"web", mode=0o400),
        "labels": VolumeFile(content=b'a="1"\nb="2"', mode=0o644),
        "one": VolumeFile(content=b"2", mode=0o644),
        "cpu": VolumeFile(content=b"2", mode=0o644),
        "memory": VolumeFile(content=b"1024", mode=0o644),
    }


def test_annotations_are_quoted_as_go_does_it() -> None:
    expected = 'note="a \\"b\\"\\nc\\\\d\\x01é\\u200b\\U000e0001"'
    assert map_text(POD.metadata.annotations) == expected
    assert go_quoted("\u00a0 \x7f") == '"\\u00a0 \\x7f"'


def test_all_that_is_wrong_is_told_at_once() -> None:
    items = (field_file("a", "spec.nonsense"), field_file("b", "metadata.nonsense"))
    expected = r"^\[unsupported fieldPath: spec.nonsense, unsupported fieldPath: metadata.nonsense"
    with pytest.raises(ValueError, match=expected):
        downward_payload(POD, items, 0o644, {})
