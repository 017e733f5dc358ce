"""The command line: pflag's grammar, the units of the wild, precedence over the files."""

import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from trio_kubelet.config import Settings
from trio_kubelet.config.flags import parse_flags
from trio_kubelet.config.parts import MemoryReservation, RegistrationTaint, VModuleItem
from trio_kubelet.config.settings import ConfigurationError, load
from trio_kubelet.k8s.quantity import Quantity

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def fields(*arguments: str) -> dict[str, Any]:
    command_line = parse_flags(arguments)
    assert not command_line.problems
    return dict(command_line.fields)


def problems(*arguments: str) -> tuple[str, ...]:
    return parse_flags(arguments).problems


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-pods=20",),
        ("--max-pods", "20"),
        ("--max_pods=20",),
        ("--max_pods", "20"),
        ("--max-pods=0x14",),
        ("--max-pods=024",),
        ("--max-pods=5", "--max-pods=20"),
    ],
)
def test_a_value_may_be_written_in_many_ways(arguments: tuple[str, ...]) -> None:
    assert fields(*arguments) == {"maxPods": 20}


@pytest.mark.parametrize("arguments", [("-v", "4"), ("-v=4",), ("-v4",), ("--v=4",), ("--v", "4")])
def test_verbosity_has_a_short_form(arguments: tuple[str, ...]) -> None:
    assert fields(*arguments) == {"logging.verbosity": 4}


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_a_boolean_is_true_in_each_of_go_s_spellings(text: str) -> None:
    assert fields(f"--runonce={text}") == {"runOnce": True}


def test_a_boolean_needs_no_value_and_takes_no_next_word() -> None:
    assert fields("--runonce", "--max-pods=1") == {"runOnce": True, "maxPods": 1}
    assert problems("--register-node", "false") == ("unknown command false",)
    assert fields("--register-node=false") == {"registerNode": False}


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--cluster-dns=10.0.0.1,10.0.0.2"], "clusterDNS", ("10.0.0.1", "10.0.0.2")),
        (
            ["--cluster-dns=10.0.0.1", "--cluster-dns", "fd00::a"],
            "clusterDNS",
            ("10.0.0.1", "fd00::a"),
        ),
        (['--allowed-unsafe-sysctls="a,b",c'], "allowedUnsafeSysctls", ("a,b", "c")),
        (["--cluster-dns="], "clusterDNS", ()),
        (["--sync-frequency=1h2m3.5s"], "syncFrequency", timedelta(seconds=3723.5)),
        (["--pod-max-pids=9000000000"], "podPidsLimit", 9_000_000_000),
        (
            ["--system-reserved=cpu=200m, memory=1Gi"],
            "systemReserved",
            {"cpu": "200m", "memory": "1Gi"},
        ),
        (
            ["--kube-reserved=cpu=1", "--kube-reserved=memory=1Gi"],
            "kubeReserved",
            {"cpu": "1", "memory": "1Gi"},
        ),
        (
            ["--eviction-hard=memory.available<1Gi,nodefs.available<10%"],
            "evictionHard",
            {"memory.available": "1Gi", "nodefs.available": "10%"},
        ),
        (
            ["--eviction-soft-grace-period=memory.available=1m"],
            "evictionSoftGracePeriod",
            {"memory.available": "1m"},
        ),
        (
            ["--cpu-manager-policy-options=full-pcpus-only=true,x"],
            "cpuManagerPolicyOptions",
            {"full-pcpus-only": "true,x"},
        ),
        (
            [
                "--manifest-url-header=a:hello,b:again,c:world",
                "--manifest-url-header",
                "b:beautiful",
            ],
            "staticPodURLHeader",
            {"a": ("hello",), "b": ("again", "beautiful"), "c": ("world",)},
        ),
        (
            ["--register-with-taints=dedicated=db:NoSchedule,spot:NoExecute"],
            "registerWithTaints",
            (
                RegistrationTaint(key="dedicated", value="db", effect="NoSchedule"),
                RegistrationTaint(key="spot", effect="NoExecute"),
            ),
        ),
        (
            [
                "--reserved-memory",
                "0:memory=1Gi,hugepages-1Gi=2Gi",
                "--reserved-memory=1:memory=2Gi",
            ],
            "reservedMemory",
            (
                MemoryReservation(
                    numa_node=0,
                    limits={"memory": Quantity("1Gi"), "hugepages-1Gi": Quantity("2Gi")},
                ),
                MemoryReservation(numa_node=1, limits={"memory": Quantity("2Gi")}),
            ),
        ),
        (
            ["--vmodule=pod*=5,volume=2"],
            "logging.vmodule",
            (
                VModuleItem(file_pattern="pod*", verbosity=5),
                VModuleItem(file_pattern="volume", verbosity=2),
            ),
        ),
        (
            ["--feature-gates=NodeSwap=true,WatchList=0"],
            "featureGates",
            {"NodeSwap": True, "WatchList": False},
        ),
        (["--address=010.0.0.1"], "address", "010.0.0.1"),
        (
            ["--log-json-info-buffer-size=1Mi"],
            "logging.options.json.infoBufferSize",
            Quantity("1Mi"),
        ),
    ],
)
def test_values_of_every_kind(arguments: list[str], field: str, value: object) -> None:
    assert fields(*arguments) == {field: value}


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("--docker-endpoint=x", "unknown flag: --docker-endpoint"),
        ("--network_plugin=cni", "unknown flag: --network_plugin"),
        ("-x", "unknown shorthand flag: 'x' in -x"),
        ("--=5", "bad flag syntax: --=5"),
        ("---v=5", "bad flag syntax: ---v=5"),
        ("run", "unknown command run"),
        ("--max-pods", "flag needs an argument: --max-pods"),
        ("--max-pods=ten", 'invalid argument "ten" for "--max-pods" flag: must be an integer'),
        (
            "--max-pods=3000000000",
            'invalid argument "3000000000" for "--max-pods" flag: '
            "must be between -2147483648 and 2147483647",
        ),
        ("--v=-1", 'invalid argument "-1" for "--v" flag: must be between 0 and 2147483647'),
        ("--runonce=yes", 'invalid argument "yes" for "--runonce" flag: must be true or false'),
        ("--sync-frequency=10", 'invalid argument "10" for "--sync-frequency" flag: '),
        ("--address=localhost", '"localhost" is not a valid IP address'),
        ("--eviction-hard=memory.available=1Gi", "malformed pair, expect string<string"),
        ("--feature-gates=NodeSwap", "malformed pair, expect string=bool"),
        ("--feature-gates=NodeSwap=on", "invalid value of NodeSwap: on"),
        ("--manifest-url-header=x", "malformed pair, expect string:string"),
        ("--register-with-taints=a=b:Never", "invalid taint effect: Never"),
        ("--register-with-taints=a", "invalid taint effect"),
        ("--reserved-memory=memory=1Gi", "expected numaNodeID:type=quantity"),
        ("--reserved-memory=0:memory=lots", "must be a number"),
        ("--vmodule=x", '"x" does not have the pattern=N format'),
        ('--cluster-dns="10.0.0.1', "unexpected end of data"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_go_kubelet(argument: str, problem: str) -> None:
    (found,) = problems(argument)
    assert problem in found


def test_every_wrong_flag_is_reported() -> None:
    assert len(problems("--foo", "--max-pods=x", "--port", "x", "--bar=1", "orphan")) == 5


def test_after_two_dashes_there_are_no_flags() -> None:
    assert problems("--max-pods=1", "--", "--max-pods=2") == ("unknown command --max-pods=2",)


KUBEADM_UNIT = (
    "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf "
    "--kubeconfig=/etc/kubernetes/kubelet.conf --config={config} "
    "--container-runtime-endpoint=unix:///run/containerd/containerd.sock "
    "--node-ip=192.168.1.10 --hostname-override=node-1"
)
K3S_STYLE_UNIT = (
    "--address=0.0.0.0 --anonymous-auth=false --authentication-token-webhook=true "
    "--authorization-mode=Webhook --cgroup-driver=systemd --client-ca-file=/srv/client-ca.crt "
    "--cloud-provider=external --cluster-dns=10.43.0.10 --cluster-domain=cluster.local "
    "--container-runtime-endpoint=unix:///run/containerd/containerd.sock "
    "--eviction-hard=imagefs.available<5%,nodefs.available<5% "
    "--eviction-minimum-reclaim=imagefs.available=10%,nodefs.available=10% --fail-swap-on=false "
    "--healthz-bind-address=127.0.0.1 --hostname-override=node-2 --kubeconfig=/srv/kubelet.conf "
    "--node-labels=example.com/rack=7,node.kubernetes.io/instance-type=large "
    "--pod-manifest-path=/srv/manifests --read-only-port=0 --resolv-conf=/run/resolv.conf "
    "--serialize-image-pulls=false --tls-cert-file=/srv/a.crt --tls-private-key-file=/srv/a.key"
)


def test_the_unit_of_kubeadm_is_understood(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(HEADER + "staticPodPath: /etc/kubernetes/manifests\ncgroupDriver: systemd\n")
    settings = load(shlex.split(KUBEADM_UNIT.format(config=config)))
    assert settings.options.kubeconfig == "/etc/kubernetes/kubelet.conf"
    assert settings.options.bootstrap_kubeconfig == "/etc/kubernetes/bootstrap-kubelet.conf"
    assert settings.options.node_ip == "192.168.1.10"
    assert settings.options.hostname_override == "node-1"
    assert settings.configuration.static_pod_path == "/etc/kubernetes/manifests"


def test_a_unit_with_flags_only_is_understood() -> None:
    settings = load(shlex.split(K3S_STYLE_UNIT))
    assert settings.configuration.cgroup_driver == "systemd"
    assert settings.configuration.eviction_hard == {
        "imagefs.available": "5%",
        "nodefs.available": "5%",
    }
    assert settings.options.node_labels["node.kubernetes.io/instance-type"] == "large"
    deprecations = [warning for warning in settings.warnings if "deprecated flags" in warning]
    assert len(deprecations) == 1
    assert "--serialize-image-pulls (set serializeImagePulls in the file)" in deprecations[0]
    assert "--kubeconfig" not in deprecations[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def test_a_flag_outweighs_drop_in_and_file(file: Path, tmp_path: Path) -> None:
    file.write_text(HEADER + "maxPods: 1\npodsPerCore: 1\nclusterDNS: [10.0.0.1]\n")
    drop_ins = tmp_path / "conf.d"
    drop_ins.mkdir()
    (drop_ins / "a.conf").write_text(HEADER + "maxPods: 2\npodsPerCore: 2\n")
    flags = [
        f"--config={file}",
        f"--config-dir={drop_ins}",
        "--max-pods=3",
        "--cluster-dns=10.0.0.9",
    ]
    configuration = load(flags).configuration
    assert configuration.max_pods == 3
    assert configuration.pods_per_core == 2
    assert configuration.cluster_dns == ("10.0.0.9",)


def test_feature_gates_of_flags_and_file_are_merged(file: Path) -> None:
    file.write_text(HEADER + "featureGates: {WatchList: false, EventedPLEG: true}\n")
    settings = load([f"--config={file}", "--feature-gates=EventedPLEG=false,SELinuxMount=true"])
    assert settings.configuration.feature_gates == {
        "WatchList": False,
        "EventedPLEG": False,
        "SELinuxMount": True,
    }
    assert not settings.gates["EventedPLEG"]
    assert settings.gates["SELinuxMount"]


def test_a_flag_says_zero_where_the_file_cannot() -> None:
    assert load(["--max-pods=0"]).configuration.max_pods == 0


def test_seccomp_default_is_on_if_flag_or_file_says_so(file: Path) -> None:
    file.write_text(HEADER + "seccompDefault: true\n")
    assert load([f"--config={file}", "--seccomp-default=false"]).configuration.seccomp_default
    assert load(["--seccomp-default"]).configuration.seccomp_default


def test_an_installer_may_set_the_version_that_is_reported() -> None:
    command_line = parse_flags(("--version=v1.35.2",))
    assert not command_line.wants_version
    assert command_line.options.version == "v1.35.2"
    assert parse_flags(("--version",)).wants_version
    assert not parse_flags(("--version=false",)).wants_version


def test_a_flag_that_kubeadm_of_1_34_gives_is_taken_and_has_no_effect() -> None:
    settings = load(("--pod-infra-container-image=registry.k8s.io/pause:3.10.1",))
    assert settings.options.cadvisor == {}
    (warning,) = settings.warnings
    assert "deprecated" in warning
    assert "--pod-infra-container-image" in warning


def test_the_flags_of_the_statistics_collector_are_kept_apart() -> None:
    options = parse_flags(("--housekeeping-interval=5s", "--storage-driver-secure")).options
    assert options.cadvisor == {
        "housekeeping-interval": timedelta(seconds=5),
        "storage-driver-secure": True,
    }


def test_without_flags_there_are_no_warnings() -> None:
    assert load([]) == Settings()


def test_flags_and_configuration_problems_are_errors() -> None:
    with pytest.raises(ConfigurationError) as error:
        load(
            ["--max-pods=-1", "--runonce", "--feature-gates=Fly=true", "--exit-on-lock-contention"]
        )
    assert error.value.problems == (
        "unrecognized feature gate: Fly",
        "invalid configuration: maxPods (--max-pods) -1 must not be a negative number",
        "invalid configuration: runOnce (--runOnce) true, Runonce mode has been deprecated and "
        "should not be set",
        "cannot exit on lock file contention: no lock file specified, set --lock-file",
    )
