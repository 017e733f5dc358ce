"""Containers, their ports, environment, mounts, probes and resources."""

import pytest

from tests.unit.k8s.invalid_pods import errors_of

LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-',"
    " and must start and end with an alphanumeric character (e.g. 'my-name', or '123-abc',"
    " regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SIZES = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei"


def test_the_pod_that_the_tests_change_is_valid() -> None:
    assert errors_of() == []


@pytest.mark.parametrize(
    ("container", "error"),
    [
        ("{name: ''}", "name: Required value"),
        ("{name: App}", f'name: Invalid value: "App": {LABEL}'),
        ("{name: a.b}", 'name: Invalid value: "a.b": must not contain dots'),
        ("{image: ''}", "image: Required value"),
        (
            "{image: ' busybox'}",
            'image: Invalid value: " busybox": must not have leading or trailing whitespace',
        ),
        (
            "{imagePullPolicy: Sometimes}",
            'imagePullPolicy: Unsupported value: "Sometimes":'
            ' supported values: "Always", "IfNotPresent", "Never"',
        ),
        (
            "{terminationMessagePolicy: Log}",
            'terminationMessagePolicy: Unsupported value: "Log":'
            ' supported values: "FallbackToLogsOnError", "File"',
        ),
        (
            "{ports: [{containerPort: 70000}]}",
            "ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        ("{ports: [{}]}", "ports[0].containerPort: Required value"),
        (
            "{ports: [{containerPort: 80, hostPort: -1}]}",
            "ports[0].hostPort: Invalid value: -1: must be between 1 and 65535, inclusive",
        ),
        (
            "{ports: [{containerPort: 80, protocol: tcp}]}",
            'ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP"',
        ),
        (
            "{ports: [{containerPort: 80, hostPort: 80, hostIP: node}]}",
            'ports[0].hostIP: Invalid value: "node": must be a valid IP address,'
            " (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            "{ports: [{containerPort: 80, name: a-name-far-too-long}]}",
            'ports[0].name: Invalid value: "a-name-far-too-long": must be no more than 15 bytes',
        ),
        (
            "{ports: [{containerPort: 80, name: '80'}]}",
            'ports[0].name: Invalid value: "80": must contain at least one letter (a-z)',
        ),
        (
            "{ports: [{containerPort: 80, name: a--b}]}",
            'ports[0].name: Invalid value: "a--b": must not contain consecutive hyphens',
        ),
        (
            "{ports: [{containerPort: 80, name: a-}]}",
            'ports[0].name: Invalid value: "a-": must not begin or end with a hyphen',
        ),
        (
            "{ports: [{containerPort: 80, name: a}, {containerPort: 81, name: a}]}",
            'ports[1].name: Duplicate value: "a"',
        ),
        (
            "{ports: [{containerPort: 80, hostPort: 9}, {containerPort: 81, hostPort: 9}]}",
            'ports[1].hostPort: Duplicate value: "TCP//9"',
        ),
        ("{env: [{value: a}]}", "env[0].name: Required value"),
        (
            "{env: [{name: a=b}]}",
            'env[0].name: Invalid value: "a=b": a valid environment variable name must consist'
            " only of printable ASCII characters other than '='",
        ),
        (
            "{env: [{name: a, valueFrom: {}}]}",
            'env[0].valueFrom: Invalid value: "": must specify one of: `configMapKeyRef`,'
            " `fieldRef`, `fileKeyRef`, `resourceFieldRef`, `secretKeyRef`",
        ),
        (
            "{env: [{name: a, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}",
            'env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty',
        ),
        (
            "{env: [{name: a, valueFrom: {fieldRef: {fieldPath: metadata.name},"
            " secretKeyRef: {name: s, key: k}}}]}",
            'env[0].valueFrom: Invalid value: "":'
            " may not have more than one field specified at a time",
        ),
        (
            "{env: [{name: a, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}]}",
            'env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.labels":'
            ' supported values: "metadata.name", "metadata.namespace", "metadata.uid",'
            ' "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs",'
            ' "status.podIP", "status.podIPs"',
        ),
        (
            "{env: [{name: a, valueFrom: {fieldRef: {fieldPath: \"metadata.name['a']\"}}}]}",
            'env[0].valueFrom.fieldRef.fieldPath: Invalid value: "metadata.name":'
            " does not support subscript",
        ),
        (
            "{env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 2}}}]}",
            'env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "2":'
            " only divisor's values 1m, 1 are supported with the cpu resource",
        ),
        (
            "{env: [{name: a, valueFrom:"
            " {resourceFieldRef: {resource: limits.memory, divisor: 1m}}}]}",
            'env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "1m":'
            f" only divisor's values {SIZES} are supported with the memory resource",
        ),
        (
            "{env: [{name: a, valueFrom: {secretKeyRef: {name: s, key: a/b}}}]}",
            'env[0].valueFrom.secretKeyRef.key: Invalid value: "a/b": a valid config key must'
            " consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name', or 'KEY_NAME',"
            " or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        ),
        (
            "{env: [{name: a, valueFrom: {fileKeyRef: {volumeName: absent, path: e, key: a}}}]}",
            'env[0].valueFrom.fileKeyRef.volumeName: Not found: "absent"',
        ),
        (
            "{envFrom: [{}]}",
            'envFrom[0]: Invalid value: "": must specify one of: `configMapRef` or `secretRef`',
        ),
        ("{envFrom: [{secretRef: {}}]}", "envFrom[0].secretRef.name: Required value"),
        (
            "{volumeMounts: [{name: absent, mountPath: /a}]}",
            'volumeMounts[0].name: Not found: "absent"',
        ),
        ("{volumeMounts: [{name: data}]}", "volumeMounts[0].mountPath: Required value"),
        (
            "{volumeMounts: [{name: data, mountPath: /a}, {name: data, mountPath: /a}]}",
            'volumeMounts[1].mountPath: Invalid value: "/a": must be unique',
        ),
        (
            "{volumeMounts: [{name: data, mountPath: '/a:b'}]}",
            "volumeMounts[0].mountPath: Invalid value: \"/a:b\": must not contain ':'",
        ),
        (
            "{volumeMounts: [{name: data, mountPath: /a, subPath: /b}]}",
            'volumeMounts[0].subPath: Invalid value: "/b": must be a relative path',
        ),
        (
            "{volumeMounts: [{name: data, mountPath: /a, subPath: b/../../c}]}",
            "volumeMounts[0].subPath: Invalid value: \"b/../../c\": must not contain '..'",
        ),
        (
            "{volumeMounts: [{name: data, mountPath: /a, subPath: b, subPathExpr: c}]}",
            'volumeMounts[0].subPathExpr: Invalid value: "c":'
            " subPathExpr and subPath are mutually exclusive",
        ),
        (
            "{volumeMounts: [{name: picture, mountPath: /a, subPathExpr: b}]}",
            'volumeMounts[0].subPathExpr: Invalid value: "b": not allowed in image volume sources',
        ),
        (
            "{volumeMounts: [{name: data, mountPath: /a, mountPropagation: Bidirectional}]}",
            "volumeMounts[0].mountPropagation: Forbidden: Bidirectional mount propagation is"
            " available only to privileged containers",
        ),
        (
            "{volumeMounts: [{name: data, mountPath: /a, mountPropagation: Both}]}",
            'volumeMounts[0].mountPropagation: Unsupported value: "Both":'
            ' supported values: "Bidirectional", "HostToContainer", "None"',
        ),
        (
            "{volumeMounts: [{name: data, mountPath: /a, recursiveReadOnly: Enabled}]}",
            "volumeMounts[0].recursiveReadOnly: Forbidden:"
            " may only be specified when readOnly is true",
        ),
        (
            "{volumeDevices: [{name: data, devicePath: /dev/a}]}",
            'volumeDevices[0].name: Invalid value: "data": can only use volume source type of'
            " PersistentVolumeClaim or Ephemeral for block mode",
        ),
        ("{volumeDevices: [{name: disk}]}", "volumeDevices[0].devicePath: Required value"),
        (
            "{volumeDevices: [{name: disk, devicePath: /dev/../a}]}",
            'volumeDevices[0].devicePath: Invalid value: "/dev/../a":'
            " can not contain backsteps ('..')",
        ),
        (
            "{resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired},"
            " {resourceName: cpu, restartPolicy: NotRequired}]}",
            'resizePolicy[1]: Duplicate value: "cpu"',
        ),
        (
            "{resizePolicy: [{resourceName: cpu, restartPolicy: Always}]}",
            'resizePolicy[0].restartPolicy: Unsupported value: "Always":'
            ' supported values: "NotRequired", "RestartContainer"',
        ),
        (
            "{restartPolicy: Sometimes}",
            'restartPolicy: Unsupported value: "Sometimes":'
            ' supported values: "Always", "Never", "OnFailure"',
        ),
        (
            "{restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]}",
            "restartPolicy: Required value: must specify restartPolicy when restart rules are used",
        ),
        (
            "{restartPolicy: Never, restartPolicyRules: [{action: Stop}]}",
            'restartPolicyRules[0].action: Unsupported value: "Stop":'
            ' supported values: "Restart", "RestartAllContainers"',
        ),
    ],
)
def test_a_mistake_in_a_container_is_reported_where_it_is(container: str, error: str) -> None:
    assert f"spec.containers[0].{error}" in errors_of(container=container)


@pytest.mark.parametrize(
    ("probe", "errors"),
    [
        ("{}", [": Required value: must specify a handler type"]),
        ("{exec: {}}", [".exec.command: Required value"]),
        (
            "{exec: {command: [a]}, tcpSocket: {port: 80}}",
            [".tcpSocket: Forbidden: may not specify more than 1 handler type"],
        ),
        (
            "{tcpSocket: {port: 0}}",
            [".tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive"],
        ),
        (
            "{tcpSocket: {port: HTTP}}",
            [
                '.tcpSocket.port: Invalid value: "HTTP": must contain only alpha-numeric'
                " characters (a-z, 0-9), and hyphens (-)",
                '.tcpSocket.port: Invalid value: "HTTP": must contain at least one letter (a-z)',
            ],
        ),
        (
            "{grpc: {port: 99999}}",
            [".grpc.port: Invalid value: 99999: must be between 1 and 65535, inclusive"],
        ),
        (
            "{httpGet: {port: 80, scheme: ftp}}",
            [
                '.httpGet.scheme: Unsupported value: "ftp": supported values: "HTTP", "HTTPS"',
            ],
        ),
        (
            "{httpGet: {port: 80, httpHeaders: [{name: 'a b', value: c}]}}",
            [
                '.httpGet.httpHeaders[0].name: Invalid value: "a b": a valid HTTP header must'
                " consist of alphanumeric characters or '-' (e.g. 'X-Header-Name',"
                " regex used for validation is '[-A-Za-z0-9]+')"
            ],
        ),
        (
            "{tcpSocket: {port: 80}, periodSeconds: -1, initialDelaySeconds: -2}",
            [
                ".initialDelaySeconds: Invalid value: -2: must be greater than or equal to 0",
                ".periodSeconds: Invalid value: -1: must be greater than or equal to 0",
            ],
        ),
        (
            "{tcpSocket: {port: 80}, successThreshold: 2}",
            [".successThreshold: Invalid value: 2: must be 1"],
        ),
        (
            "{tcpSocket: {port: 80}, terminationGracePeriodSeconds: 0}",
            [".terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0"],
        ),
    ],
)
def test_a_mistake_in_a_probe_is_reported(probe: str, errors: list[str]) -> None:
    found = errors_of(container=f"{{livenessProbe: {probe}}}")
    assert found == [f"spec.containers[0].livenessProbe{error}" for error in errors]


def test_a_readiness_probe_may_need_several_successes_but_has_no_grace_period() -> None:
    probe = "{tcpSocket: {port: 80}, successThreshold: 2, terminationGracePeriodSeconds: 5}"
    assert errors_of(container=f"{{readinessProbe: {probe}}}") == [
        "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 5:"
        " must not be set for readinessProbes"
    ]


@pytest.mark.parametrize(
    ("lifecycle", "error"),
    [
        ("{postStart: {}}", "postStart: Required value: must specify a handler type"),
        (
            "{preStop: {sleep: {seconds: 31}}}",
            "preStop.sleep: Invalid value: 31: must be non-negative and less than"
            " terminationGracePeriodSeconds (30)",
        ),
        (
            "{stopSignal: SIGTERM}",
            "stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`",
        ),
    ],
)
def test_a_mistake_in_a_hook_is_reported(lifecycle: str, error: str) -> None:
    found = errors_of(container=f"{{lifecycle: {lifecycle}}}")
    assert found == [f"spec.containers[0].lifecycle.{error}"]


def test_a_stop_signal_must_exist_on_the_operating_system() -> None:
    for signal, errors in (("SIGUSR1", 0), ("SIGRTMIN+15", 0), ("SIGNONE", 1)):
        container = f"{{lifecycle: {{stopSignal: {signal}}}}}"
        assert len(errors_of(spec="{os: {name: linux}}", container=container)) == errors


@pytest.mark.parametrize(
    ("resources", "errors"),
    [
        (
            "{limits: {cpu: -1}}",
            [
                'limits[cpu]: Invalid value: "-1": must be greater than or equal to 0',
                'requests[cpu]: Invalid value: "-1": must be greater than or equal to 0',
            ],
        ),
        (
            "{requests: {memory: 2Gi}, limits: {memory: 1Gi}}",
            ['requests: Invalid value: "2Gi": must be less than or equal to memory limit of 1Gi'],
        ),
        (
            "{limits: {gpu: 1}, requests: {gpu: 1}}",
            [
                'limits[gpu]: Invalid value: "gpu": must be a standard resource for containers',
                'requests[gpu]: Invalid value: "gpu": must be a standard resource for containers',
            ],
        ),
        (
            "{requests: {example.com/gpu: 1}}",
            ["limits: Required value: Limit must be set for non overcommitable resources"],
        ),
        (
            "{requests: {example.com/gpu: 1}, limits: {example.com/gpu: 2}}",
            ['requests: Invalid value: "1": must be equal to example.com/gpu limit of 2'],
        ),
        (
            "{limits: {example.com/gpu: 500m}, requests: {example.com/gpu: 500m}}",
            [
                'limits[example.com/gpu]: Invalid value: "500m": must be an integer',
                'requests[example.com/gpu]: Invalid value: "500m": must be an integer',
            ],
        ),
        (
            "{limits: {cpu: 1, hugepages-2Mi: 3Mi}, requests: {hugepages-2Mi: 3Mi}}",
            [
                'limits[hugepages-2Mi]: Invalid value: "3Mi":'
                " 3Mi is not positive integer multiple of hugepages-2Mi",
                'requests[hugepages-2Mi]: Invalid value: "3Mi":'
                " 3Mi is not positive integer multiple of hugepages-2Mi",
            ],
        ),
        ("{limits: {hugepages-1Gi: 1Gi}}", [": Forbidden: HugePages require cpu or memory"]),
        (
            "{claims: [{name: gpu}]}",
            [
                'claims[0]: Not found: "gpu": must be one of the names in pod.spec.resourceClaims'
                " which is empty"
            ],
        ),
    ],
)
def test_a_mistake_in_resources_is_reported(resources: str, errors: list[str]) -> None:
    found = errors_of(container=f"{{resources: {resources}}}")
    path = "spec.containers[0].resources"
    assert found == [path + (error if error[0] == ":" else f".{error}") for error in errors]


def test_a_claim_is_named_once_as_a_whole_or_by_its_requests() -> None:
    claims = "[{name: gpu, request: a}, {name: gpu, request: b}, {name: gpu, request: a}]"
    spec = "{resourceClaims: [{name: gpu, resourceClaimName: shared}]}"
    assert errors_of(spec=spec, container=f"{{resources: {{claims: {claims}}}}}") == [
        'spec.containers[0].resources.claims[2]: Duplicate value: "gpu/a"'
    ]
    claims = "[{name: gpu, request: a}, {name: gpu}]"
    assert errors_of(spec=spec, container=f"{{resources: {{claims: {claims}}}}}") == [
        'spec.containers[0].resources.claims[1]: Duplicate value: "gpu"'
    ]


def test_names_of_containers_are_unique_over_all_kinds() -> None:
    spec = "{containers: [{name: a, image: b}, {name: a, image: b}]}"
    assert errors_of(spec=spec, init="{name: a}", ephemeral="{name: a}") == [
        'spec.containers[1].name: Duplicate value: "a"',
        'spec.initContainers[0].name: Duplicate value: "a"',
        'spec.ephemeralContainers[0].name: Duplicate value: "a"',
    ]


def test_a_pod_needs_a_container() -> None:
    assert errors_of(spec="{containers: []}") == ["spec.containers: Required value"]


def test_host_ports_collide_over_containers_but_not_over_protocols() -> None:
    spec = """
        containers:
        - {name: a, image: b, ports: [{containerPort: 1, hostPort: 53}]}
        - {name: c, image: d, ports: [{containerPort: 2, hostPort: 53, protocol: UDP}]}
        - {name: e, image: f, ports: [{containerPort: 3, hostPort: 53}]}
    """
    assert errors_of(spec=spec) == [
        'spec.containers[2].ports[0].hostPort: Duplicate value: "TCP//53"'
    ]


def test_an_init_container_has_no_probes_and_hooks() -> None:
    init = """
        livenessProbe: {tcpSocket: {port: 80}}
        readinessProbe: {tcpSocket: {port: 80}}
        startupProbe: {tcpSocket: {port: 80}}
        lifecycle: {preStop: {sleep: {seconds: 1}}}
    """
    detail = "Forbidden: may not be set for init containers without restartPolicy=Always"
    assert errors_of(init=init) == [
        f"spec.initContainers[0].{name}: {detail}"
        for name in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
    ]
    assert errors_of(init=init + "\n        restartPolicy: Always") == []


def test_probes_of_a_sidecar_are_checked() -> None:
    init = "{restartPolicy: Always, startupProbe: {}}"
    assert errors_of(init=init) == [
        "spec.initContainers[0].startupProbe: Required value: must specify a handler type"
    ]


def test_an_ephemeral_container_is_for_debugging_only() -> None:
    ephemeral = """
        ports: [{containerPort: 80}]
        resources: {limits: {cpu: 1}}
        livenessProbe: {tcpSocket: {port: 80}}
        restartPolicy: Always
        targetContainerName: nobody
        volumeMounts: [{name: data, mountPath: /a, subPath: b}]
    """
    path, detail = "spec.ephemeralContainers[0]", "cannot be set for an Ephemeral Container"
    assert errors_of(ephemeral=ephemeral) == [
        f"{path}.livenessProbe: Forbidden: {detail}",
        f"{path}.ports: Forbidden: {detail}",
        f"{path}.resources: Forbidden: {detail}",
        f"{path}.restartPolicy: Forbidden: {detail}",
        f'{path}.targetContainerName: Not found: "nobody"',
        f"{path}.volumeMounts[0].subPath: Forbidden: {detail}",
    ]


def test_a_pod_that_never_restarts_is_not_restarted_for_a_resize() -> None:
    policy = "{resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]}"
    assert errors_of(spec="{restartPolicy: Never}", container=policy) == [
        "spec.containers[0].resizePolicy[0].restartPolicy: Invalid value: "
        "\"RestartContainer\": must be 'NotRequired' when `restartPolicy` is 'Never'"
    ]
