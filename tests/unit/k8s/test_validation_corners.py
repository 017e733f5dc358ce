"""The rules that few manifests meet: old volumes, Windows, scheduling, projections."""

import pytest

from tests.unit.k8s.invalid_pods import errors_of, first_words


@pytest.mark.parametrize(
    ("source", "errors"),
    [
        (
            "azureDisk: {diskName: a, diskURI: 'http://a', kind: Managed, cachingMode: Some}",
            [
                'azureDisk.cachingMode: Unsupported value: "Some"',
                'azureDisk.diskURI: Unsupported value: "http://a"',
            ],
        ),
        (
            "azureDisk: {diskName: a, diskURI: 'https://a', kind: Small}",
            ['azureDisk.kind: Unsupported value: "Small"'],
        ),
        (
            "awsElasticBlockStore: {volumeID: a, partition: 256}",
            ["awsElasticBlockStore.partition: Invalid value: 256"],
        ),
        (
            "gcePersistentDisk: {partition: -1}",
            [
                "gcePersistentDisk.pdName: Required value",
                "gcePersistentDisk.partition: Invalid value: -1",
            ],
        ),
        ("cinder: {volumeID: a, secretRef: {}}", ["cinder.secretRef.name: Required value"]),
        (
            "fc: {}",
            [
                "fc.targetWWNs: Required value:"
                " must specify either targetWWNs or wwids, but not both"
            ],
        ),
        (
            "fc: {targetWWNs: [a], wwids: [b], lun: 256}",
            ['fc.targetWWNs: Invalid value: ["a"]', "fc.lun: Invalid value: 256"],
        ),
        (
            "flocker: {}",
            ["flocker: Required value: one of datasetName and datasetUUID is required"],
        ),
        (
            "flocker: {datasetName: a/b, datasetUUID: c}",
            ['flocker: Invalid value: "resource"', 'flocker.datasetName: Invalid value: "a/b"'],
        ),
        (
            "iscsi: {targetPortal: a, iqn: eui.1234, initiatorName: x, chapAuthSession: true}",
            [
                'iscsi.iqn: Invalid value: "eui.1234"',
                'iscsi.initiatorName: Invalid value: "x"',
                "iscsi.secretRef: Required value",
            ],
        ),
        (
            f"quobyte: {{registry: a, volume: b, tenant: {'t' * 65}}}",
            [
                "quobyte.tenant: Too long: may not be more than 64 bytes",
                'quobyte.registry: Invalid value: "a"',
            ],
        ),
        ("storageos: {volumeName: A}", ['storageos.volumeName: Invalid value: "A"']),
        (
            "csi: {driver: " + "a" * 64 + "}",
            ["csi.driver: Too long: may not be more than 63 bytes"],
        ),
        (
            "csi: {driver: a, nodePublishSecretRef: {}}",
            ["csi.nodePublishSecretRef.name: Required value"],
        ),
        (
            "image: {reference: a, pullPolicy: Soon}",
            ['image.pullPolicy: Unsupported value: "Soon"'],
        ),
        (
            "ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOncePod, All],"
            " volumeMode: Tape, storageClassName: A, resources: {requests: {storage: 0}},"
            " selector: {matchExpressions: [{key: a, operator: In}]}}}}",
            [
                'ephemeral.volumeClaimTemplate.spec.accessModes: Unsupported value: "All"',
                "ephemeral.volumeClaimTemplate.spec.accessModes: Forbidden:"
                " may not use ReadWriteOncePod with other access modes",
                'ephemeral.volumeClaimTemplate.spec.volumeMode: Unsupported value: "Tape"',
                "ephemeral.volumeClaimTemplate.spec.selector.matchExpressions[0].values:"
                " Required value: must be specified when `operator` is 'In' or 'NotIn'",
                'ephemeral.volumeClaimTemplate.spec.resources[storage]: Invalid value: "0"',
                'ephemeral.volumeClaimTemplate.spec.storageClassName: Invalid value: "A"',
            ],
        ),
    ],
)
def test_a_mistake_in_a_rare_volume_is_reported(source: str, errors: list[str]) -> None:
    found = first_words(errors_of(spec=f"{{volumes: [{{name: a, {source}}}]}}"))
    assert found == [f"spec.volumes[0].{error}" for error in errors]


@pytest.mark.parametrize(
    ("source", "errors"),
    [
        ("configMap: {}", ["configMap.name: Required value"]),
        (
            "downwardAPI: {items: [{path: a, mode: 512, fieldRef: {fieldPath: metadata.name},"
            " resourceFieldRef: {containerName: app, resource: limits.cpu}}]}",
            [
                "downwardAPI.items[0].mode: Invalid value: 512",
                'downwardAPI.items[0]: Invalid value: "resource"',
            ],
        ),
        (
            "serviceAccountToken: {expirationSeconds: 4294967297}",
            [
                "serviceAccountToken.expirationSeconds: Invalid value: 4294967297",
                "serviceAccountToken.path: Required value",
            ],
        ),
        (
            "clusterTrustBundle: {name: A, path: a, labelSelector: {}}",
            [
                'clusterTrustBundle.name: Invalid value: "A"',
                'clusterTrustBundle.labelSelector: Invalid value: "A"',
            ],
        ),
        (
            "clusterTrustBundle: {name: a, signerName: b, path: a}",
            ['clusterTrustBundle: Invalid value: "a"'],
        ),
        (
            "clusterTrustBundle: {signerName: b, path: /a}",
            [
                'clusterTrustBundle.signerName: Invalid value: "b"',
                'clusterTrustBundle.path: Invalid value: "/a"',
            ],
        ),
        (
            "podCertificate: {keyType: DES, maxExpirationSeconds: 60}",
            [
                "podCertificate.signerName: Required value",
                'podCertificate.keyType: Invalid value: "DES"',
                "podCertificate.maxExpirationSeconds: Invalid value: 60",
                "podCertificate: Required value: one of credentialBundlePath, keyPath"
                " and certificateChainPath is required",
            ],
        ),
        (
            "podCertificate: {signerName: a.b/c, keyType: ED25519, keyPath: ../k}",
            ['podCertificate.keyPath: Invalid value: "../k"'],
        ),
    ],
)
def test_a_mistake_in_a_projection_is_reported(source: str, errors: list[str]) -> None:
    spec = f"{{volumes: [{{name: a, projected: {{sources: [{{{source}}}]}}}}]}}"
    found = first_words(errors_of(spec=spec))
    assert found == [f"spec.volumes[0].projected.sources[0].{error}" for error in errors]


@pytest.mark.parametrize(
    ("name", "problems"),
    [
        ("''", [" cannot be an empty string"]),
        ('"a\\tb"', [" cannot contain control characters"]),
        (r"a\b\c", [" cannot contain more than one backslash"]),
        (r"d.x\user", []),
        (r"d*x\user", ["'s Domain doesn't match the NetBios nor the DNS format"]),
        ("d\\", ["'s User cannot be empty"]),
        ("u" * 105, ["'s User length must not be longer than 104 characters"]),
        ("'. .'", ["'s User cannot contain only periods or spaces"]),
        (
            "d" * 256 + "\\u",
            [
                "'s Domain length must be under 256 characters",
                "'s Domain doesn't match the NetBios nor the DNS format",
            ],
        ),
    ],
)
def test_the_name_of_a_windows_user(name: str, problems: list[str]) -> None:
    errors = errors_of(spec=f"{{securityContext: {{windowsOptions: {{runAsUserName: {name}}}}}}}")
    assert [error.rpartition("runAsUserName")[2] for error in errors] == problems


def test_credentials_of_windows_are_names_and_texts_of_some_size() -> None:
    options = f"{{gmsaCredentialSpecName: A, gmsaCredentialSpec: {'x' * 65537}}}"
    assert first_words(errors_of(spec=f"{{securityContext: {{windowsOptions: {options}}}}}")) == [
        'spec.securityContext.windowsOptions.gmsaCredentialSpecName: Invalid value: "A"',
        f'spec.securityContext.windowsOptions.gmsaCredentialSpec: Invalid value: "{"x" * 199}...',
    ]


def test_a_windows_pod_has_nothing_of_linux() -> None:
    spec = "{os: {name: windows}, hostPID: true, shareProcessNamespace: false}"
    container = "{securityContext: {privileged: false, capabilities: {}}}"
    detail = "Forbidden: cannot be set for a windows pod"
    assert errors_of(spec=spec, container=container) == [
        f"spec.hostPID: {detail}",
        f"spec.shareProcessNamespace: {detail}",
        f"spec.containers[0].securityContext.capabilities: {detail}",
        f"spec.containers[0].securityContext.privileged: {detail}",
    ]


def test_pod_and_container_agree_on_being_host_processes() -> None:
    errors = errors_of(
        spec="{securityContext: {windowsOptions: {hostProcess: true}}}",
        container="{securityContext: {windowsOptions: {hostProcess: false}}}",
    )
    assert errors == [
        "spec.containers[0].securityContext.windowsOptions.hostProcess: Invalid value: false:"
        " pod hostProcess value must be identical if both are specified, was true"
    ]


@pytest.mark.parametrize(
    ("term", "errors"),
    [
        (
            "matchExpressions: [{key: a, operator: Gt, values: [a b, '2']}]",
            [
                "matchExpressions[0].values: Required value:"
                " must be specified single value when `operator` is 'Lt' or 'Gt'",
                'matchExpressions[0].values[0]: Invalid value: "a b"',
            ],
        ),
        (
            "matchExpressions: [{key: a, operator: Exists, values: [b]}]",
            ['matchExpressions[0].values: Invalid value: ["b"]'],
        ),
        (
            "matchExpressions: [{key: '', operator: Near}]",
            [
                'matchExpressions[0].operator: Invalid value: "Near"',
                'matchExpressions[0].key: Invalid value: ""',
                'matchExpressions[0].key: Invalid value: ""',
            ],
        ),
        (
            "matchFields: [{key: metadata.name, operator: In, values: [a, B]}]",
            [
                "matchFields[0].values: Required value: must be only one value when `operator`"
                " is 'In' or 'NotIn' for node field selector",
                'matchFields[0].values[1]: Invalid value: "B"',
            ],
        ),
        (
            "matchFields: [{key: metadata.uid, operator: Exists}]",
            [
                'matchFields[0].operator: Invalid value: "Exists"',
                'matchFields[0].key: Invalid value: "metadata.uid"',
            ],
        ),
    ],
)
def test_a_mistake_in_node_affinity_is_reported(term: str, errors: list[str]) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    spec = f"{{affinity: {{nodeAffinity: {{{required}: {{nodeSelectorTerms: [{{{term}}}]}}}}}}}}"
    path = f"spec.affinity.nodeAffinity.{required}.nodeSelectorTerms[0]"
    assert first_words(errors_of(spec=spec)) == [f"{path}.{error}" for error in errors]


def test_a_wish_has_a_weight() -> None:
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    wish = "{weight: 0, preference: {matchExpressions: [{key: a, operator: In, values: [b c]}]}}"
    spec = f"{{affinity: {{nodeAffinity: {{{preferred}: [{wish}]}}}}}}"
    assert errors_of(spec=spec) == [
        f"spec.affinity.nodeAffinity.{preferred}[0].weight: Invalid value: 0:"
        " must be in the range 1-100"
    ]


def test_mistakes_in_pod_affinity_are_reported() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    term = "{topologyKey: a b, namespaces: [A], matchLabelKeys: [x], mismatchLabelKeys: [x]}"
    path = f"spec.affinity.podAntiAffinity.{required}[0]"
    spec = f"{{affinity: {{podAntiAffinity: {{{required}: [{term}]}}}}}}"
    assert first_words(errors_of(spec=spec)) == [
        f'{path}.namespaces[0]: Invalid value: "A"',
        f"{path}.matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
        f"{path}.mismatchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
        f'{path}.matchLabelKeys[0]: Invalid value: "x"',
        f'{path}.topologyKey: Invalid value: "a b"',
    ]


def test_mistakes_in_spreading_are_reported() -> None:
    constraint = """
        maxSkew: 1
        whenUnsatisfiable: ScheduleAnyway
        topologyKey: zone
        minDomains: 0
        nodeTaintsPolicy: Maybe
        matchLabelKeys: [app]
        labelSelector: {matchLabels: {app: a}}
    """
    spec = f"topologySpreadConstraints: [{{{', '.join(constraint.strip().splitlines())}}}, "
    spec += "{maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, topologyKey: zone}]"
    path = "spec.topologySpreadConstraints"
    assert first_words(errors_of(spec=spec)) == [
        f"{path}[0].minDomains: Invalid value: 0",
        f"{path}[0].minDomains: Invalid value: 0",
        f'{path}[0].nodeTaintsPolicy: Unsupported value: "Maybe"',
        f'{path}[0].matchLabelKeys[0]: Invalid value: "app"',
        f"{path}[1].{{topologyKey, whenUnsatisfiable}}: Duplicate value:"
        ' "{zone, ScheduleAnyway}"',
    ]


def test_search_lists_of_the_resolver_have_their_limits() -> None:
    names = [f"{'a' * 60}{index}.example.com" for index in range(33)]
    found = errors_of(spec=f"{{dnsConfig: {{searches: {names}}}}}".replace("'", ""))
    assert [error.rpartition(": ")[2] for error in found] == [
        "must not have more than 32 search paths",
        "must not have more than 2048 characters (including spaces) in the search list",
    ]
    assert first_words(errors_of(spec="{dnsConfig: {searches: [a.b., ., A]}}")) == [
        'spec.dnsConfig.searches[2]: Invalid value: "A"'
    ]


@pytest.mark.parametrize(
    ("container", "errors"),
    [
        (
            "{volumeDevices: [{name: disk, devicePath: /a}, {name: disk, devicePath: /a}],"
            " volumeMounts: [{name: disk, mountPath: /a}]}",
            [
                'volumeMounts[0].name: Invalid value: "disk"',
                'volumeMounts[0].mountPath: Invalid value: "/a"',
                'volumeDevices[0].name: Invalid value: "disk"',
                'volumeDevices[0].devicePath: Invalid value: "/a"',
                'volumeDevices[1].name: Invalid value: "disk"',
                'volumeDevices[1].name: Invalid value: "disk"',
                'volumeDevices[1].devicePath: Invalid value: "/a"',
                'volumeDevices[1].devicePath: Invalid value: "/a"',
            ],
        ),
        (
            "{volumeDevices: [{devicePath: /a}, {name: absent, devicePath: /b}]}",
            [
                "volumeDevices[0].name: Required value",
                'volumeDevices[1].name: Not found: "absent"',
            ],
        ),
        (
            "{volumeMounts: [{name: data, mountPath: /a, readOnly: true, recursiveReadOnly:"
            " Enabled, mountPropagation: HostToContainer}, {mountPath: /b, recursiveReadOnly: X}]}",
            [
                "volumeMounts[0].recursiveReadOnly: Forbidden:"
                " may only be specified when mountPropagation is None or not specified",
                "volumeMounts[1].name: Required value",
                'volumeMounts[1].recursiveReadOnly: Unsupported value: "X"',
            ],
        ),
        (
            "{env: [{name: a, valueFrom: {fileKeyRef: {}}},"
            " {name: b, valueFrom: {fieldRef: {apiVersion: v2}}},"
            " {name: c, valueFrom: {resourceFieldRef: {}}},"
            " {name: d, valueFrom: {resourceFieldRef: {resource: limits.gpu}}},"
            " {name: e, valueFrom: {configMapKeyRef: {name: A}}}]}",
            [
                "env[0].valueFrom.fileKeyRef.volumeName: Required value",
                "env[0].valueFrom.fileKeyRef.key: Required value",
                "env[0].valueFrom.fileKeyRef.path: Required value",
                'env[1].valueFrom.fieldRef.apiVersion: Unsupported value: "v2"',
                "env[1].valueFrom.fieldRef.fieldPath: Required value",
                "env[2].valueFrom.resourceFieldRef.resource: Required value",
                'env[3].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.gpu"',
                'env[4].valueFrom.configMapKeyRef.name: Invalid value: "A"',
                "env[4].valueFrom.configMapKeyRef.key: Required value",
            ],
        ),
        (
            "{restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes:"
            f" {{operator: Above, values: {list(range(256))}}}}}{', {action: Restart}' * 20}]}}",
            [
                "restartPolicyRules: Too many: 21",
                'restartPolicyRules[0].exitCodes.operator: Unsupported value: "Above"',
                "restartPolicyRules[0].exitCodes.values: Too many: 256",
                *(
                    f"restartPolicyRules[{index}].exitCodes: Required value: must be specified"
                    for index in range(1, 21)
                ),
            ],
        ),
        (
            "{resizePolicy: [{}, {resourceName: gpu, restartPolicy: NotRequired}]}",
            [
                "resizePolicy[0].resourceName: Required value",
                "resizePolicy[0].restartPolicy: Required value",
                'resizePolicy[1].resourceName: Unsupported value: "gpu"',
            ],
        ),
    ],
)
def test_several_mistakes_in_one_container_are_all_reported(
    container: str, errors: list[str]
) -> None:
    found = first_words(errors_of(container=container))
    assert found == [f"spec.containers[0].{error}" for error in errors]


def test_claims_of_the_pod_are_named_once_and_by_one_source() -> None:
    spec = """
        resourceClaims:
        - {name: a, resourceClaimName: x, resourceClaimTemplateName: y}
        - {name: a, resourceClaimName: X}
        - {resourceClaimName: x}
    """
    assert first_words(errors_of(spec=spec)) == [
        'spec.resourceClaims[0]: Invalid value: "a"',
        'spec.resourceClaims[1].name: Duplicate value: "a"',
        'spec.resourceClaims[1].resourceClaimName: Invalid value: "X"',
        "spec.resourceClaims[2].name: Required value",
    ]


def test_one_owner_is_the_controller() -> None:
    owner = "{apiVersion: v1, kind: A, name: %s, uid: u, controller: true}"
    metadata = f"{{ownerReferences: [{owner % 'a'}, {owner % 'b'}]}}"
    assert errors_of(metadata=metadata) == [
        'metadata.ownerReferences: Invalid value: ["a", "b"]:'
        " Only one reference can have Controller set to true: a and b"
    ]
