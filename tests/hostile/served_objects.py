"""Objects of the API server in memory that attackers and their victims have."""

from lab.agent import Json, pod_manifest
from tests.apiserver.served import ServedApi
from tests.apiserver.server import ApiServer
from trio_kubelet.k8s.kinds import KINDS, PODS

NODE = "hostile-node"
KIND = {kind.kind: kind for kind in KINDS}


def pod(name: str, namespace: str, env: tuple[Json, ...] = (), **spec: object) -> Json:
    container = {"name": "c", "image": "c", "env": list(env)}
    manifest = pod_manifest(name, container, nodeName=NODE, **spec)
    manifest["metadata"]["namespace"] = namespace
    return manifest


def put(api: ServedApi, manifest: Json) -> None:
    """Store an object, as it is, with the UID of its name."""
    manifest["metadata"].setdefault("uid", f"uid-of-{manifest['metadata']['name']}")

    async def work(server: ApiServer) -> None:
        server.put_raw(KIND[manifest["kind"]], manifest)

    api.do(work)


async def delete_all_pods(server: ApiServer) -> None:
    for each in server.all(PODS):
        server.delete(PODS, each.metadata.name, each.metadata.namespace, grace_seconds=0)
