"""Settings that nothing acts on are named, all in one warning."""

import attrs
from attrs import evolve

from trio_kubelet.config import KubeletConfiguration, NodeOptions, load, not_acted_on
from trio_kubelet.config.fields import wire_of
from trio_kubelet.config.flag_table import OPTION_FLAGS, OWN_FLAGS
from trio_kubelet.config.parts import (
    KubeletAuthentication,
    KubeletX509Authentication,
    LoggingConfiguration,
    VModuleItem,
)
from trio_kubelet.config.support import (
    ACTED_UPON_FIELDS,
    ACTED_UPON_OPTIONS,
    WITHOUT_EFFECT_ANYWHERE,
)


def test_the_defaults_leave_nothing_to_tell() -> None:
    assert not_acted_on(KubeletConfiguration(), NodeOptions()) == ()


def test_what_is_acted_upon_is_not_named() -> None:
    configuration = evolve(KubeletConfiguration(), max_pods=5, static_pod_path="/m", port=10250)
    assert not_acted_on(configuration, NodeOptions(root_dir="/srv", hollow=True)) == ()


def test_a_setting_in_a_part_is_named_by_its_path() -> None:
    configuration = evolve(
        KubeletConfiguration(),
        authentication=KubeletAuthentication(x509=KubeletX509Authentication(client_ca_file="/ca")),
        logging=LoggingConfiguration(verbosity=4, vmodule=(VModuleItem(file_pattern="a"),)),
        system_reserved={"cpu": "1"},
        system_reserved_cgroup="/system",
        eviction_hard={},
    )
    assert set(not_acted_on(configuration, NodeOptions())) == {
        "authentication.x509.clientCAFile",
        "logging.vmodule",
        "systemReservedCgroup",
        "evictionHard",
    }


def test_flags_are_named_with_their_dashes() -> None:
    options = NodeOptions(runtime_cgroups="/k", cadvisor={"storage-driver-password": "hunter2"})
    assert not_acted_on(KubeletConfiguration(), options) == (
        "--runtime-cgroups",
        "--storage-driver-password",
    )


def test_there_is_one_warning_for_all_of_them_without_values() -> None:
    warnings = load(["--runtime-cgroups=/k", "--storage-driver-password=hunter2"]).warnings
    (warning,) = (warning for warning in warnings if "does not act on" in warning)
    assert "--runtime-cgroups, --storage-driver-password" in warning
    assert not any("hunter2" in line for line in warnings)


def test_the_tables_name_fields_and_options_that_exist() -> None:
    fields = {wire_of(attribute).name for attribute in attrs.fields(KubeletConfiguration)}
    tops = {path.partition(".")[0] for path in ACTED_UPON_FIELDS | WITHOUT_EFFECT_ANYWHERE}
    assert tops <= fields
    assert {flag.option for flag in (*OPTION_FLAGS, *OWN_FLAGS)} >= ACTED_UPON_OPTIONS
