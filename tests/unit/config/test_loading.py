"""The file and its drop-ins: what is read, merged, defaulted, warned of and refused."""

import errno
import json
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.settings import LoadedConfiguration, load_files, merge_patch

HEADER = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


@pytest.fixture
def drop_ins(tmp_path: Path) -> Path:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    return folder


def write(path: Path, **content: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({**HEADER, **content}))
    return path


def load(
    file: Path | None = None,
    drop_ins: Path | None = None,
    gates: Mapping[str, bool] | None = None,
) -> LoadedConfiguration:
    """What good files give."""
    loaded = load_files(file, drop_ins, gates or {})
    assert loaded.problems == ()
    return loaded


def problems_of(file: Path | None, drop_ins: Path | None = None) -> tuple[str, ...]:
    return load_files(file, drop_ins, {}).problems


def test_without_files_every_setting_has_its_default() -> None:
    assert load() == LoadedConfiguration(configuration=KubeletConfiguration())


def test_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    content = {**HEADER, "maxPods": 20, "clusterDNS": ["10.96.0.10"], "syncFrequency": "1m30s"}
    as_yaml, as_json = tmp_path / "a.yaml", tmp_path / "a.json"
    as_yaml.write_text(yaml.safe_dump(content))
    as_json.write_text(json.dumps(content, indent="\t"))
    assert load(as_yaml) == load(as_json)
    assert load(as_json).configuration.sync_frequency == timedelta(seconds=90)


def test_zero_means_the_default_unless_the_field_is_nullable(file: Path) -> None:
    write(file, maxPods=0, syncFrequency="0s", address="", healthzPort=0, registryPullQPS=0)
    configuration = load(file).configuration
    assert configuration.max_pods == 110
    assert configuration.sync_frequency == timedelta(seconds=60)
    assert configuration.address == "0.0.0.0"
    assert configuration.healthz_port == 0
    assert configuration.registry_pull_qps == 0


def test_null_means_absent(file: Path) -> None:
    file.write_text(yaml.safe_dump({**HEADER, "maxPods": None, "evictionHard": None}))
    assert load(file).configuration == KubeletConfiguration()


def test_the_report_frequency_follows_an_update_frequency_that_was_set(file: Path) -> None:
    assert load(
        write(file, nodeStatusUpdateFrequency="20s")
    ).configuration.node_status_report_frequency == timedelta(seconds=20)
    assert load(
        write(file, nodeStatusUpdateFrequency="0s")
    ).configuration.node_status_report_frequency == timedelta(seconds=300)
    both = write(file, nodeStatusUpdateFrequency="20s", nodeStatusReportFrequency="1m")
    assert load(both).configuration.node_status_report_frequency == timedelta(seconds=60)


@pytest.mark.parametrize(("pulls", "serialized"), [(1, True), (2, False), (5, False)])
def test_parallel_pulls_switch_serialized_pulls_off(
    file: Path, pulls: int, serialized: bool
) -> None:
    assert (
        load(write(file, maxParallelImagePulls=pulls)).configuration.serialize_image_pulls
        == serialized
    )


def test_given_eviction_thresholds_replace_the_defaults(file: Path) -> None:
    configuration = load(write(file, evictionHard={"memory.available": "1Gi"})).configuration
    assert configuration.eviction_hard == {"memory.available": "1Gi"}
    assert load(write(file, evictionHard={})).configuration.eviction_hard == {}


def test_given_eviction_thresholds_can_be_merged_with_the_defaults(file: Path) -> None:
    write(file, evictionHard={"memory.available": "1Gi"}, mergeDefaultEvictionSettings=True)
    assert load(file).configuration.eviction_hard == {
        "memory.available": "1Gi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
        "imagefs.inodesFree": "5%",
    }


def test_a_gate_that_is_off_takes_its_settings_away(file: Path) -> None:
    write(file, featureGates={"KubeletCrashLoopBackOffMax": False})
    assert load(file).configuration.crash_loop_back_off.max_container_restart_period is None
    off = {"KubeletEnsureSecretPulledImages": False}
    assert load(gates=off).configuration.image_pull_credentials_verification_policy == ""


def test_a_negative_pid_limit_means_the_node_s(file: Path) -> None:
    assert load(write(file, podPidsLimit=-7)).configuration.pod_pids_limit == -1


def test_relative_paths_count_from_the_folder_of_the_file(file: Path) -> None:
    write(
        file,
        staticPodPath="manifests",
        tlsCertFile="../tls.crt",
        resolvConf="/run/resolv.conf",
        authentication={"x509": {"clientCAFile": "pki/ca.crt"}},
    )
    configuration = load(file).configuration
    assert configuration.static_pod_path == str(file.parent / "manifests")
    assert configuration.tls_cert_file == str(file.parent.parent / "tls.crt")
    assert configuration.resolv_conf == "/run/resolv.conf"
    assert configuration.authentication.x509.client_ca_file == str(file.parent / "pki/ca.crt")


def test_unknown_and_doubled_fields_are_warnings(file: Path) -> None:
    file.write_text(
        yaml.safe_dump(HEADER) + "maxPods: 1\nmaxPods: 2\nfuture: 1\nlogging: {colour: blue}\n"
    )
    loaded = load(file)
    assert loaded.configuration.max_pods == 2
    assert loaded.warnings == (
        f"{file}: using lenient decoding as strict decoding failed: "
        'key "maxPods" already set in map, unknown field "future", unknown field "logging.colour"',
    )
    assert loaded.oddities == {
        file: (
            'key "maxPods" already set in map',
            'unknown field "future"',
            'unknown field "logging.colour"',
        )
    }


def test_every_wrong_type_is_reported_at_once(file: Path) -> None:
    write(
        file,
        maxPods="20",
        syncFrequency=60,
        fileCheckFrequency="soon",
        clusterDNS="10.0.0.1",
        port=2**40,
        failSwapOn="no",
        evictionHard={"memory.available": 5},
        registerWithTaints=[{"key": 1}],
    )
    assert problems_of(file) == tuple(
        f"{file}: {problem}"
        for problem in (
            "syncFrequency: Invalid value: 60: must be a duration like 1m30s",
            'fileCheckFrequency: Invalid value: "soon": '
            "'soon' is not a duration such as 1h2m0.5s",
            f"port: Invalid value: {2**40}: must fit into 32 bits",
            'clusterDNS: Invalid value: "10.0.0.1": must be a list',
            'maxPods: Invalid value: "20": must be an integer',
            "evictionHard[memory.available]: Invalid value: 5: must be a string",
            'failSwapOn: Invalid value: "no": must be a boolean',
            "registerWithTaints[0].key: Invalid value: 1: must be a string",
        )
    )


def test_numbers_that_nothing_can_hold_are_refused(file: Path) -> None:
    huge, long = 10**309, 10**23
    write(file, memoryThrottlingFactor=huge, logging={"flushFrequency": long})
    assert problems_of(file) == tuple(
        f"{file}: {path}: Invalid value: {number}: must fit into 64 bits"
        for path, number in (("logging.flushFrequency", long), ("memoryThrottlingFactor", huge))
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("# nothing\n", "it is empty"),
        ("- a\n- b\n", "document 1 must be a mapping with apiVersion and kind"),
        ("a: [", "line 2, column 1: while parsing a flow node"),
        ("{maxPods: 1}", "line 1, column 2: Expecting property name"),
        ("maxPods: !!python/object:os.system {}", "object:os.system is not supported"),
        ('{"a":' * 100_000, "nested more than 100 levels deep"),
        ("a: " + "[" * 100_000, "nested more than 100 levels deep"),
        ("maxPods: 5\n", "found apiVersion none and kind none"),
        ("apiVersion: v1\nkind: Pod\n", "found apiVersion v1 and kind Pod"),
        (
            "apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\n",
            "it must begin with apiVersion: kubelet.config.k8s.io/v1beta1",
        ),
    ],
)
def test_what_is_no_kubelet_configuration_is_refused(file: Path, text: str, reason: str) -> None:
    file.write_text(text)
    (problem,) = problems_of(file)
    assert str(file) in problem
    assert reason in problem
    assert "\n" not in problem


def test_a_file_in_another_encoding_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    (problem,) = problems_of(file)
    assert "failed to decode" in problem


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    assert "No such file" in problems_of(tmp_path / "nothing.yaml")[0]
    assert "No such file" in problems_of(None, tmp_path / "nothing.d")[0]
    assert "Is a directory" in problems_of(tmp_path)[0]


def test_drop_ins_are_merged_in_the_order_of_their_names(file: Path, drop_ins: Path) -> None:
    write(file, maxPods=1, evictionSoft={"memory.available": "1Gi", "nodefs.available": "10%"})
    write(drop_ins / "20.conf", maxPods=20, evictionSoft={"memory.available": "3Gi"})
    write(drop_ins / "10.conf", maxPods=10, podsPerCore=5)
    configuration = load(file, drop_ins).configuration
    assert configuration.max_pods == 20
    assert configuration.pods_per_core == 5
    assert configuration.eviction_soft == {"memory.available": "3Gi", "nodefs.available": "10%"}


def test_drop_ins_in_subfolders_count_others_are_warned_of(drop_ins: Path) -> None:
    write(drop_ins / "site" / "a.conf", maxPods=7)
    readme = drop_ins / "README"
    readme.write_text("hello")
    loaded = load(drop_ins=drop_ins)
    assert loaded.configuration.max_pods == 7
    assert loaded.warnings == (f"{readme}: ignored, because only *.conf files are drop-ins",)


def test_a_drop_in_of_a_disk_that_fails_is_a_problem(
    drop_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(drop_ins / "10.conf", maxPods=20)

    def fail(_: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "is_dir", fail)
    loaded = load_files(None, drop_ins, {})
    assert loaded.problems == (
        f"{drop_ins}: failed to read the kubelet drop-in directory: Input/output error",
    )
    assert not loaded.is_whole


def test_a_list_of_a_drop_in_replaces_the_file_s(file: Path, drop_ins: Path) -> None:
    write(file, clusterDNS=["10.0.0.1", "10.0.0.2"], enforceNodeAllocatable=[])
    write(drop_ins / "a.conf", clusterDNS=["10.0.0.3"])
    configuration = load(file, drop_ins).configuration
    assert configuration.cluster_dns == ("10.0.0.3",)
    assert configuration.enforce_node_allocatable == ()


def test_null_in_a_drop_in_takes_back_what_the_file_said(file: Path, drop_ins: Path) -> None:
    write(file, maxPods=5, evictionSoft={"memory.available": "1Gi"})
    (drop_ins / "a.conf").write_text(
        yaml.safe_dump({**HEADER, "maxPods": None, "evictionSoft": {"memory.available": None}})
    )
    configuration = load(file, drop_ins).configuration
    assert configuration.max_pods == 110
    assert configuration.eviction_soft == {}


def test_a_drop_in_meets_a_file_that_has_its_defaults_already(file: Path, drop_ins: Path) -> None:
    write(drop_ins / "a.conf", nodeStatusUpdateFrequency="20s")
    assert load(write(file), drop_ins).configuration.node_status_report_frequency == timedelta(
        seconds=300
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "maxPods: 5\n",
        yaml.safe_dump({**HEADER, "maxPods": "x"}),
        yaml.safe_dump(HEADER) + "a: 1\na: 2\n",
    ],
)
def test_a_bad_drop_in_is_refused_by_name(drop_ins: Path, text: str) -> None:
    (drop_ins / "a.conf").write_text(text)
    (problem,) = problems_of(None, drop_ins)
    assert problem.startswith(f"{drop_ins / 'a.conf'}: ")


def test_merge_patch_changes_neither_side() -> None:
    target, patch = {"a": {"b": 1, "c": 2}}, {"a": {"b": None, "d": 3}}
    assert merge_patch(target, patch) == {"a": {"c": 2, "d": 3}}
    assert target == {"a": {"b": 1, "c": 2}}
    assert patch == {"a": {"b": None, "d": 3}}


def test_scalars_are_read_as_the_go_kubelet_reads_them(file: Path) -> None:
    file.write_text(
        yaml.safe_dump(HEADER)
        + "failSwapOn: off\nregisterNode: n\nrunOnce: Y\nmaxPods: 0x10\n"
        + "memoryThrottlingFactor: 1\nproviderID: 2020-01-01\n"
        + "systemReserved: {on: '1', 5: '2'}\nlogging: {flushFrequency: 2000000000}\n"
    )
    configuration = load(file).configuration
    assert not configuration.fail_swap_on
    assert not configuration.register_node
    assert configuration.run_once
    assert configuration.system_reserved == {"true": "1", "5": "2"}
    assert configuration.max_pods == 16
    assert configuration.memory_throttling_factor == 1.0
    assert configuration.provider_id == "2020-01-01"
    assert configuration.logging.flush_frequency == timedelta(seconds=2)


def test_a_file_without_end_is_a_problem(drop_ins: Path) -> None:
    (drop_ins / "endless.conf").symlink_to("/dev/zero")
    (problem,) = problems_of(None, drop_ins)
    words = "failed to read kubelet config file: it has more than 1048576 bytes"
    assert problem == f"{drop_ins}/endless.conf: {words}"
