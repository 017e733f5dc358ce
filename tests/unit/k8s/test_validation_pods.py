"""What concerns the whole pod: its names, volumes, security, resolver and scheduling."""

import pytest

from tests.unit.k8s.invalid_pods import errors_of, first_words, pod_with
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.validation import validate_pod


def test_everything_that_an_empty_pod_lacks_is_reported() -> None:
    assert [str(error) for error in validate_pod(Pod())] == [
        "metadata.name: Required value: name or generateName is required",
        "metadata.namespace: Required value",
        "spec.restartPolicy: Required value",
        "spec.terminationGracePeriodSeconds: Required value",
        "spec.containers: Required value",
        "spec.dnsPolicy: Required value",
    ]


@pytest.mark.parametrize(
    ("metadata", "errors"),
    [
        ("{name: Pod}", ['metadata.name: Invalid value: "Pod"']),
        (f"{{name: {'a' * 254}}}", [f'metadata.name: Invalid value: "{"a" * 199}...']),
        ("{namespace: a.b}", ['metadata.namespace: Invalid value: "a.b"']),
        ("{labels: {-a: b}}", ['metadata.labels: Invalid value: "-a"']),
        ("{labels: {a/b/c: d}}", ['metadata.labels: Invalid value: "a/b/c"']),
        ("{labels: {/a: b}}", ['metadata.labels: Invalid value: "/a"']),
        ("{labels: {a: 'b c'}}", ['metadata.labels[a]: Invalid value: "b c"']),
        (f"{{labels: {{a: {'b' * 64}}}}}", [f'metadata.labels[a]: Invalid value: "{"b" * 64}"']),
        ("{annotations: {UPPER/key: 'any thing'}}", []),
        ("{annotations: {'a b': c}}", ['metadata.annotations: Invalid value: "a b"']),
        (
            f"{{annotations: {{a: {'b' * 256 * 1024}}}}}",
            ["metadata.annotations: Too long: may not be more than 262144 bytes"],
        ),
        (
            "{ownerReferences: [{apiVersion: v1, kind: A, name: b}]}",
            ['metadata.ownerReferences[0].uid: Invalid value: ""'],
        ),
        ("{finalizers: ['a b']}", ['metadata.finalizers[0]: Invalid value: "a b"']),
        ("{generation: -1}", ["metadata.generation: Invalid value: -1"]),
    ],
)
def test_a_mistake_in_the_metadata_is_reported(metadata: str, errors: list[str]) -> None:
    assert first_words(errors_of(metadata=metadata)) == errors


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (
            "{restartPolicy: Sometimes}",
            'restartPolicy: Unsupported value: "Sometimes":'
            ' supported values: "Always", "Never", "OnFailure"',
        ),
        (
            "{terminationGracePeriodSeconds: -1}",
            "terminationGracePeriodSeconds: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            "{activeDeadlineSeconds: 0}",
            "activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
        (
            "{preemptionPolicy: Often}",
            'preemptionPolicy: Unsupported value: "Often":'
            ' supported values: "Never", "PreemptLowerPriority"',
        ),
        ("{hostname: a.b}", 'hostname: Invalid value: "a.b": must not contain dots'),
        (
            "{hostNetwork: true, hostnameOverride: a}",
            "hostnameOverride: Forbidden: may not be set when `hostNetwork` is true",
        ),
        (
            "{hostAliases: [{ip: 1.2.3}]}",
            'hostAliases[0].ip: Invalid value: "1.2.3": must be a valid IP address,'
            " (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            "{dnsPolicy: Mine}",
            'dnsPolicy: Unsupported value: "Mine": supported values: "ClusterFirst",'
            ' "ClusterFirstWithHostNet", "Default", "None"',
        ),
        (
            "{dnsPolicy: None}",
            "dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
        ),
        (
            "{dnsPolicy: None, dnsConfig: {searches: [a]}}",
            "dnsConfig.nameservers: Required value:"
            " must provide at least one DNS nameserver when `dnsPolicy` is None",
        ),
        (
            "{dnsConfig: {nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]}}",
            'dnsConfig.nameservers: Invalid value: ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]:'
            " must not have more than 3 nameservers",
        ),
        (
            "{dnsConfig: {nameservers: ['fe80::1%eth0']}}",
            'dnsConfig.nameservers[0]: Invalid value: "fe80::1%eth0": must be a valid IP address,'
            " (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            "{dnsConfig: {options: [{value: a}]}}",
            "dnsConfig.options[0]: Required value: must not be empty",
        ),
        (
            "{shareProcessNamespace: true, hostPID: true}",
            "shareProcessNamespace: Invalid value: true:"
            " ShareProcessNamespace and HostPID cannot both be enabled",
        ),
        (
            "{hostUsers: false, hostIPC: true}",
            "hostIPC: Forbidden: when `hostUsers` is false",
        ),
        (
            "{securityContext: {runAsUser: -1}}",
            "securityContext.runAsUser: Invalid value: -1:"
            " must be between 0 and 4294967295, inclusive",
        ),
        (
            "{securityContext: {supplementalGroups: [1, 4294967296]}}",
            "securityContext.supplementalGroups[1]: Invalid value: 4294967296:"
            " must be between 0 and 4294967295, inclusive",
        ),
        (
            "{securityContext: {fsGroupChangePolicy: Never}}",
            'securityContext.fsGroupChangePolicy: Unsupported value: "Never":'
            ' supported values: "Always", "OnRootMismatch"',
        ),
        (
            "{securityContext: {sysctls: [{name: net.a, value: '1'}, {name: net/a, value: '2'}]}}",
            'securityContext.sysctls[1].name: Duplicate value: "net/a"',
        ),
        (
            "{hostNetwork: true, securityContext: {sysctls: [{name: net.core.a, value: '1'}]}}",
            'securityContext.sysctls[0].name: Invalid value: "net.core.a":'
            " may not be specified when 'hostNetwork' is true",
        ),
        (
            "{hostIPC: true, securityContext: {sysctls: [{name: kernel.sem, value: '1'}]}}",
            'securityContext.sysctls[0].name: Invalid value: "kernel.sem":'
            " may not be specified when 'hostIPC' is true",
        ),
        (
            "{securityContext: {seccompProfile: {}}}",
            "securityContext.seccompProfile.type: Required value:"
            " type is required when seccompProfile is set",
        ),
        (
            "{securityContext: {seccompProfile: {type: Localhost}}}",
            "securityContext.seccompProfile.localhostProfile: Required value:"
            " must be set when seccomp type is Localhost",
        ),
        (
            "{securityContext: {seccompProfile: {type: Unconfined, localhostProfile: a}}}",
            'securityContext.seccompProfile.localhostProfile: Invalid value: "a":'
            " can only be set when seccomp type is Localhost",
        ),
        (
            "{securityContext: {seccompProfile: {type: Localhost, localhostProfile: ../a}}}",
            'securityContext.seccompProfile.localhostProfile: Invalid value: "../a":'
            " must not contain '..'",
        ),
        (
            "{securityContext: {appArmorProfile: {type: Localhost, localhostProfile: ' a'}}}",
            'securityContext.appArmorProfile.localhostProfile: Invalid value: " a":'
            " must not be padded with whitespace",
        ),
        (
            "{hostNetwork: true,"
            " containers: [{name: a, image: b, ports: [{containerPort: 1, hostPort: 2}]}]}",
            "containers[0].ports[0].hostPort: Invalid value: 2:"
            " must match `containerPort` when `hostNetwork` is true",
        ),
        ("{os: {}}", "os.name: Required value: cannot be empty"),
        (
            "{os: {name: plan9}}",
            'os.name: Unsupported value: "plan9": supported values: "linux", "windows"',
        ),
        (
            "{os: {name: linux}, securityContext: {windowsOptions: {hostProcess: false}}}",
            "securityContext.windowsOptions: Forbidden:"
            " windows options cannot be set for a linux pod",
        ),
        (
            "{os: {name: windows}, securityContext: {fsGroup: 1}}",
            "securityContext.fsGroup: Forbidden: cannot be set for a windows pod",
        ),
        (
            "{securityContext: {windowsOptions: {runAsUserName: 'a/b'}}}",
            'securityContext.windowsOptions.runAsUserName: Invalid value: "a/b": runAsUserName\'s'
            ' User cannot contain the following characters: "/\\:;|=,+*?<>@[]',
        ),
        ("{readinessGates: [{}]}", None),
        ("{schedulingGates: [{name: a}, {name: a}]}", 'schedulingGates[1]: Duplicate value: "a"'),
        (
            "{tolerations: [{value: a}]}",
            'tolerations[0].operator: Invalid value: "": operator must be Exists when `key` is'
            ' empty, which means "match all values and all keys"',
        ),
        (
            "{tolerations: [{key: a, operator: Exists, value: b}]}",
            'tolerations[0].value: Invalid value: "b":'
            " value must be empty when `operator` is 'Exists'",
        ),
        (
            "{tolerations: [{key: a, operator: Gt, value: b}]}",
            'tolerations[0].value: Invalid value: "b":'
            " must be an integer when `operator` is 'Lt' or 'Gt'",
        ),
        (
            "{tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 1}]}",
            'tolerations[0].effect: Invalid value: "NoSchedule":'
            " effect must be 'NoExecute' when `tolerationSeconds` is set",
        ),
        (
            "{topologySpreadConstraints: [{whenUnsatisfiable: DoNotSchedule, topologyKey: a}]}",
            "topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
        ),
        (
            "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:"
            " {nodeSelectorTerms: []}}}}",
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
            ".nodeSelectorTerms: Required value: must have at least one node selector term",
        ),
        (
            "{affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{}]}}}",
            "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"
            ".topologyKey: Required value: can not be empty",
        ),
        (
            "{resourceClaims: [{name: a}]}",
            'resourceClaims[0]: Invalid value: "a":'
            " must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
        ),
        (
            "{resources: {limits: {ephemeral-storage: 1Gi}}}",
            'resources.limits[ephemeral-storage]: Unsupported value: "ephemeral-storage":'
            ' supported values: "cpu", "hugepages-", "memory"',
        ),
        (
            "{resources: {requests: {cpu: 1}, limits: {cpu: 1}},"
            " containers: [{name: a, image: b, resources: {limits: {cpu: 2}}}]}",
            'resources.requests[cpu]: Invalid value: "1":'
            " must be greater than or equal to aggregate container requests of 2",
        ),
        (
            "{overhead: {cpu: -1}}",
            'overhead[cpu]: Invalid value: "-1": must be greater than or equal to 0',
        ),
        (
            "{serviceAccountName: '',"
            " volumes: [{name: t, projected: {sources: [{serviceAccountToken: {path: a}}]}}]}",
            "volumes[0].projected.sources[0].serviceAccountToken: Forbidden:"
            " must not be specified when serviceAccountName is not set",
        ),
    ],
)
def test_a_mistake_in_the_spec_is_reported(spec: str, error: str | None) -> None:
    errors = errors_of(spec=spec)
    if error is None:
        assert errors
    else:
        assert f"spec.{error}" in errors


@pytest.mark.parametrize(
    ("context", "error"),
    [
        (
            "{allowPrivilegeEscalation: false, privileged: true}",
            "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ),
        (
            "{allowPrivilegeEscalation: false, capabilities: {add: [CAP_SYS_ADMIN]}}",
            "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
        ),
    ],
)
def test_a_container_cannot_both_have_and_not_have_privileges(context: str, error: str) -> None:
    assert errors_of(container=f"{{securityContext: {context}}}") == [
        "spec.containers[0].securityContext.allowPrivilegeEscalation: Invalid value: false:"
        f" {error}"
    ]


def test_the_whole_of_proc_needs_a_user_namespace() -> None:
    container = "{securityContext: {procMount: Unmasked}}"
    assert errors_of(container=container) == [
        'spec.containers[0].securityContext.procMount: Invalid value: "Unmasked":'
        " `hostUsers` must be false to use `Unmasked`"
    ]
    assert errors_of(spec="{hostUsers: false}", container=container) == []


@pytest.mark.parametrize(
    ("volume", "errors"),
    [
        ("{emptyDir: {}}", [".name: Required value"]),
        ("{name: A, emptyDir: {}}", ['.name: Invalid value: "A"']),
        (
            "{name: a, emptyDir: {}, hostPath: {path: /a}}",
            [".hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            "{name: a, emptyDir: {sizeLimit: -1}}",
            [".emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity"],
        ),
        ("{name: a, hostPath: {}}", [".hostPath.path: Required value"]),
        ("{name: a, hostPath: {path: /a/../b}}", ['.hostPath.path: Invalid value: "/a/../b"']),
        (
            "{name: a, hostPath: {path: /a, type: Pipe}}",
            ['.hostPath.type: Unsupported value: "Pipe"'],
        ),
        ("{name: a, configMap: {}}", [".configMap.name: Required value"]),
        (
            "{name: a, configMap: {name: a, defaultMode: 512}}",
            [".configMap.defaultMode: Invalid value: 512"],
        ),
        (
            "{name: a, secret: {secretName: a, items: [{path: a}]}}",
            [".secret.items[0].key: Required value"],
        ),
        (
            "{name: a, secret: {secretName: a, items: [{key: a, path: ..a}]}}",
            ['.secret.items[0].path: Invalid value: "..a"'],
        ),
        (
            "{name: a, downwardAPI: {items: [{path: a}]}}",
            [
                ".downwardAPI.items[0]: Required value:"
                " one of fieldRef and resourceFieldRef is required"
            ],
        ),
        (
            "{name: a, downwardAPI: {items: [{path: a, fieldRef: {fieldPath: status.podIP}}]}}",
            ['.downwardAPI.items[0].fieldRef.fieldPath: Unsupported value: "status.podIP"'],
        ),
        (
            "{name: a, downwardAPI: {items: [{path: a,"
            " resourceFieldRef: {resource: limits.cpu}}]}}",
            [".downwardAPI.items[0].resourceFieldRef.containerName: Required value"],
        ),
        (
            "{name: a, projected: {sources: [{secret: {name: a}, configMap: {name: b}}]}}",
            [
                ".projected.sources[0]: Forbidden:"
                " may not specify more than 1 volume type per source"
            ],
        ),
        (
            "{name: a, projected: {sources: ["
            "{secret: {name: a, items: [{key: a, path: x}]}},"
            " {configMap: {name: b, items: [{key: a, path: x}]}}]}}",
            ['.projected.sources[1]: Invalid value: "x"'],
        ),
        (
            "{name: a, projected: {sources: [{serviceAccountToken: {path: t,"
            " expirationSeconds: 60}}]}}",
            [".projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 60"],
        ),
        (
            "{name: a, projected: {sources: [{clusterTrustBundle: {path: t}}]}}",
            [
                ".projected.sources[0].clusterTrustBundle: Required value:"
                " either name or signerName must be specified"
            ],
        ),
        (
            "{name: a, persistentVolumeClaim: {}}",
            [".persistentVolumeClaim.claimName: Required value"],
        ),
        ("{name: a, nfs: {server: a, path: b}}", ['.nfs.path: Invalid value: "b"']),
        ("{name: a, csi: {driver: 'a b'}}", ['.csi.driver: Invalid value: "a b"']),
        ("{name: a, ephemeral: {}}", [".ephemeral.volumeClaimTemplate: Required value"]),
        (
            "{name: a, ephemeral: {volumeClaimTemplate: {metadata: {name: x}, spec: {}}}}",
            [
                ".ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set",
                ".ephemeral.volumeClaimTemplate.spec.accessModes: Required value:"
                " at least 1 access mode is required",
                ".ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value",
            ],
        ),
        ("{name: a, image: {}}", [".image.reference: Required value"]),
        (
            "{name: a, iscsi: {targetPortal: a, iqn: b, lun: 256}}",
            ['.iscsi.iqn: Invalid value: "b"', ".iscsi.lun: Invalid value: 256"],
        ),
        (
            "{name: a, fc: {targetWWNs: [a]}}",
            [".fc.lun: Required value: lun is required if targetWWNs is specified"],
        ),
        ("{name: a, rbd: {}}", [".rbd.monitors: Required value", ".rbd.image: Required value"]),
        (
            "{name: a, flexVolume: {driver: a, options: {kubernetes.io/a: b}}}",
            ['.flexVolume.options[kubernetes.io/a]: Invalid value: "kubernetes.io/a"'],
        ),
        (
            "{name: a, gitRepo: {repository: a, directory: /b}}",
            ['.gitRepo.directory: Invalid value: "/b"'],
        ),
    ],
)
def test_a_mistake_in_a_volume_is_reported(volume: str, errors: list[str]) -> None:
    found = first_words(errors_of(spec=f"{{volumes: [{volume}]}}"))
    assert found == [f"spec.volumes[0]{error}" for error in errors]


def test_names_of_volumes_are_unique() -> None:
    spec = "{volumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]}"
    assert errors_of(spec=spec) == ['spec.volumes[1].name: Duplicate value: "a"']


def test_a_claim_made_for_the_pod_is_not_claimed_again() -> None:
    template = "{spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}"
    spec = f"""
        volumes:
        - {{name: scratch, ephemeral: {{volumeClaimTemplate: {template}}}}}
        - {{name: again, persistentVolumeClaim: {{claimName: pod-scratch}}}}
    """
    assert errors_of(spec=spec) == [
        'spec.volumes[1].persistentVolumeClaim.claimName: Invalid value: "pod-scratch":'
        " must not reference a PVC that gets created for an ephemeral volume"
    ]


def test_a_new_pod_has_no_ephemeral_containers_and_waits_for_its_gates() -> None:
    pod = pod_with(spec="{nodeName: node, schedulingGates: [{name: a}]}", ephemeral="{}")
    assert [str(error) for error in validate_pod(pod)] == [
        "spec.ephemeralContainers: Forbidden: cannot be set on create",
        "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
    ]
    assert validate_pod(pod, is_new=False) == ()


def test_all_containers_of_a_host_process_pod_are_host_processes() -> None:
    spec = """
        containers:
        - {name: a, image: b, securityContext: {windowsOptions: {hostProcess: true}}}
        - {name: c, image: d}
    """
    assert errors_of(spec=spec) == [
        'spec: Invalid value: "": If pod contains any hostProcess containers then all containers'
        " must be HostProcess containers",
        "spec.hostNetwork: Invalid value: false:"
        " hostNetwork must be true if pod contains any hostProcess containers",
    ]
