"""docs/limits.md against the code: a limit that is changed there is changed on the page, too.

A row is named by the beginning of its first column; its second column names these amounts.
"""

import re
from pathlib import Path

import pytest

from trio_kubelet import server, tls_stream
from trio_kubelet.debugging import deleted_files
from trio_kubelet.devices import client as device_plugins
from trio_kubelet.devices import health as device_health
from trio_kubelet.devices import plugins as device_resources
from trio_kubelet.devices import records as device_records
from trio_kubelet.dra import driver as claim_driver
from trio_kubelet.dra import records as claim_records
from trio_kubelet.k8s import documents, image_reference, service
from trio_kubelet.k8s.client import read_ahead
from trio_kubelet.kernel import state_file
from trio_kubelet.logs import lines as log_lines
from trio_kubelet.logs import partial_lines, query
from trio_kubelet.logs import reader as log_reader
from trio_kubelet.plugins import registry, sockets
from trio_kubelet.pod_clients import http2, http_messages, share
from trio_kubelet.ports import pod_events, pods_api
from trio_kubelet.probes import runner
from trio_kubelet.references import kept_bytes, object_references, tokens, watched
from trio_kubelet.resources import cgroup_tree
from trio_kubelet.rpc import errors
from trio_kubelet.runtime import inspection
from trio_kubelet.runtime.config import environment, expansion, labels
from trio_kubelet.runtime.images import credentials, use_records
from trio_kubelet.server import writers
from trio_kubelet.sources import manifests
from trio_kubelet.stats import cgroup_reader
from trio_kubelet.status import conditions, container_statuses
from trio_kubelet.sync.admission import node_features
from trio_kubelet.tasks import turns
from trio_kubelet.telemetry import event_writer, journal, log
from trio_kubelet.tracing import queue
from trio_kubelet.volumes import disks, env_file, fc, names_in_use, payload, plugin
from trio_kubelet.volumes import iscsi as iscsi_volumes

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
KIB, MIB = 1 << 10, 1 << 20


def number(amount: int) -> str:
    return f"{amount:,}"


def kib(amount_bytes: int) -> str:
    assert amount_bytes % KIB == 0
    return f"{number(amount_bytes // KIB)} KiB"


def mib(amount_bytes: int) -> str:
    assert amount_bytes % MIB == 0
    return f"{number(amount_bytes // MIB)} MiB"


TLS_RECORDS = [
    number(tls_stream.MOST_RECORDS_WITHOUT_DATA),
    kib(tls_stream.MOST_BYTES_WITHOUT_DATA),
    number(tls_stream.RECORDS_IN_A_TURN),
]
NAMED = {
    "Containers of a pod |": [number(node_features.MAX_CONTAINERS)],
    "Volumes of a pod, volume mounts": [number(node_features.MAX_ITEMS)],
    "Volumes of a pod with disks": [number(node_features.MAX_DISKS)],
    "Resource claims of a pod;": [
        number(node_features.MAX_CLAIMS),
        number(node_features.MAX_CLAIM_USES),
    ],
    "Resources in `requests` and `limits`": [
        number(node_features.MAX_AMOUNTS),
        number(node_features.MAX_RESOURCES),
    ],
    "The environment of a container": [mib(expansion.MAX_BYTES)],
    "All that is written while an environment": [
        mib(environment.MAX_WRITTEN_BYTES),
        number(environment.MAX_WRITTEN_VARIABLES),
    ],
    "`command` and `args` of a container": [mib(expansion.MAX_BYTES)],
    "The command of an exec probe": [mib(expansion.MAX_BYTES)],
    "Commands of exec probes with more": [number(runner.LARGE_COMMANDS)],
    "Messages of the runtime": [number(errors.MOST_MESSAGE_CHARACTERS)],
    "Termination messages of a pod": [kib(container_statuses.POD_MESSAGES_LIMIT_BYTES)],
    "Labels of a pod that its sandbox": [
        kib(labels.MOST_LABELS_BYTES),
        kib(labels.MOST_RECORDS_BYTES),
    ],
    "Spans that wait": [number(queue.MOST_SPANS)],
    "`terminationMessagePath`": [number(labels.MOST_PATH_BYTES)],
    "Readiness gates": [number(conditions.MOST_GATES_NAMED)],
    "An env file": [mib(env_file.MAX_BYTES), mib(env_file.MAX_BYTES_OF_CONTAINER)],
    "The name of an image": [number(image_reference.MAX_NAME_BYTES)],
    "Logins in one pull secret": [number(credentials.MAX_LOGINS)],
    "Records of when images were used": [mib(use_records.MAX_BYTES)],
    "Files of one volume of configuration": [number(payload.MAX_FILES), mib(payload.MAX_BYTES)],
    "Threads that prepare volumes, remove them": [
        f"{plugin.MAX_THREADS} of each kind",
        f"one namespace has {plugin.MAX_THREADS_OF_NAMESPACE} and",
        f"one pod {plugin.MAX_THREADS_OF_POD} at",
        f"{plugin.STUCK_SECONDS:.0f} s counts",
        f"up to {plugin.MAX_THREADS_WITH_STUCK}",
    ],
    "Service account tokens of a pod": [number(tokens.MAX_TOKENS_OF_POD)],
    "Supplemental groups of a container": [number(inspection.MAX_GROUPS_KEPT)],
    "Cgroups that the containers": [
        number(cgroup_reader.MAX_WITHIN_CONTAINERS),
        number(cgroup_tree.FOLDERS_IN_A_PIECE),
    ],
    "Portals of an `iscsi` volume": [number(iscsi_volumes.MAX_PORTALS)],
    "A portal or an interface": [number(fc.MAX_WWN_BYTES), number(disks.MAX_NAME_BYTES)],
    "Devices that a plugin lists": [
        number(device_plugins.MAX_DEVICES),
        number(device_plugins.MAX_ID_BYTES),
    ],
    "Resources of device plugins": [number(device_resources.MAX_RESOURCES)],
    "What is recorded of devices": [
        mib(device_records.MAX_RECORDED_BYTES),
        mib(device_records.MAX_RECORDED_BYTES_OF_RESOURCE),
    ],
    "Connections to the pods socket": [number(pods_api.CALLS)],
    "Lists and single pods": [
        f"{pods_api.RATE.qps:.0f} in a second",
        f"{pods_api.RATE.burst} at once",
        f"{pods_api.MAX_WAITING} that wait",
        mib(pods_api.MAX_LIST_BYTES),
    ],
    "Events that a client of the pods socket": [
        number(pod_events.MAX_EVENTS),
        mib(pod_events.MAX_EVENT_BYTES),
    ],
    "Resource claims that pods of the node use": [
        number(claim_records.MAX_CLAIMS),
        number(claim_records.MAX_CLAIMS_OF_NAMESPACE),
        mib(claim_records.MAX_RECORDED_BYTES),
        mib(claim_records.MAX_RECORDED_BYTES_OF_NAMESPACE),
    ],
    "Devices in the `allocatedResourcesStatus`": [
        number(device_health.MAX_SHOWN_DEVICES_OF_POD),
        number(device_health.MAX_SHOWN_WORDS_OF_POD),
    ],
    "Devices of a claim that a driver": [
        number(claim_driver.MAX_DEVICES),
        number(claim_driver.MAX_NAME_BYTES),
        number(claim_driver.MAX_NAMES),
        mib(claim_driver.MAX_ANSWER_BYTES),
    ],
    "The files of devices, of CPUs": [mib(state_file.MAX_BYTES)],
    "The search for deleted files": [
        number(deleted_files.MAX_PROCESSES),
        number(deleted_files.MAX_DESCRIPTORS),
        number(deleted_files.MAX_FILES),
    ],
    "What all readers of logs hold": [
        mib(partial_lines.MAX_HELD_BYTES),
        mib(log_lines.MAX_LINE_BYTES),
    ],
    "What clients have not taken yet": [mib(server.Limits().unsent_bytes)],
    "Long answers that are written": [
        number(writers.WRITERS),
        f"one path has {writers.WRITERS_OF_PATH}",
    ],
    "The pieces in which logs are read": [
        kib(log_reader.MOST_PIECE_BYTES),
        mib(log_reader.ALL_PIECES_BYTES),
        kib(log_reader.LEAST_PIECE_BYTES),
        kib(log_lines.MAX_HELD_BYTES),
    ],
    "Names of volumes in use": [
        kib(names_in_use.MOST_BYTES_OF_NAMESPACE),
        kib(names_in_use.SURE_BYTES_OF_NAMESPACE),
        kib(names_in_use.MOST_BYTES),
    ],
    "A pattern of a log query": [number(query.MAX_PATTERN_CHARACTERS)],
    "Sockets below": [
        number(sockets.MAX_SOCKETS),
        number(sockets.MAX_ENTRIES),
        number(sockets.MAX_DEPTH),
    ],
    "Versions that a plugin names": [number(registry.MAX_VERSIONS)],
    "An answer of a plugin": [mib(registry.MAX_ANSWER_BYTES)],
    "Values in one file of YAML": [number(documents.MAX_NODES)],
    "Text in one file": [number(documents.MAX_CHARACTERS // MIB)],
    "Config maps of one pod": [number(object_references.MAX_OBJECTS)],
    "Memory of the config maps": [mib(kept_bytes.MOST_BYTES_OF_NAMESPACE)],
    "What comes for probes and hooks and is taken": [number(turns.TURNS_IN_A_ROUND)],
    "Probes over the network that run": [
        number(share.CONNECTIONS),
        number(share.CONNECTIONS_OF_A_NAMESPACE),
        number(share.CONNECTIONS_OF_A_POD),
    ],
    "Heads of all responses": [
        kib(http_messages.HEAD_LIMIT_BYTES),
        number(http_messages.MOST_HEADER_LINES),
    ],
    "Informational (1xx) responses": [number(http_messages.MOST_INFORMATIONAL)],
    "Frames of HTTP/2 and gRPC": [
        number(http2.MOST_FRAMES),
        number(http2.BYTES_OF_SETTINGS),
        kib(http2.ANSWER_LIMIT_BYTES),
        kib(http2.PIECE_BYTES),
    ],
    "Records of TLS without data that a server": TLS_RECORDS,
    "Records of TLS without data that a client": TLS_RECORDS,
    "What the server of `staticPodURL`": [mib(manifests.MAX_MANIFEST_BYTES)],
    "Watches of config maps": [
        number(watched.MOST_WATCHES),
        number(watched.MOST_WATCHES_OF_NAMESPACE),
    ],
    "Ports of a service": [number(service.MOST_PORTS)],
    "Versions that were read and wait": [mib(read_ahead.MOST_BYTES)],
    "A text of an entry of the journal": [number(journal.MOST_CHARACTERS)],
    "A value of an entry of the log": [
        number(log.MOST_CHARACTERS),
        number(log.MOST_TRACEBACK_CHARACTERS),
    ],
    "Tries of an event": [
        number(event_writer.MOST_TRIES),
        f"{event_writer.MOST_RETRY_AFTER_SECONDS:.0f} s",
    ],
}


def limits() -> list[tuple[str, str]]:
    """The first and the second column of each row."""
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [(row[0].removeprefix("| "), row[1]) for row in rows if len(row) > 1]


@pytest.mark.parametrize("beginning", NAMED)
def test_the_limit_of_the_code_is_that_of_the_page(beginning: str) -> None:
    (limit,) = (limit for what, limit in limits() if f"{what} |".startswith(beginning))
    missing = [
        amount
        for amount in NAMED[beginning]
        if not re.search(rf"(?<![\d,]){amount}(?![\d,]*\d)", limit)
    ]
    assert missing == [], f"the page says: {limit}"
