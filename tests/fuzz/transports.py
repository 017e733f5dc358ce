"""The agent's ways to the runtime and to the API server, on which other things may arrive.

What is told of the good pods stays true, or becomes unreadable: an agent that is told that a
container has ended is right to start it again.
"""

import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import betterproto
import httpx
import orjson
import trio
from attrs import define, field

from tests.fuzz.values import ValueGenerator, as_json
from tests.simulation.node import ApiTransport
from tests.simulation.transport import WrappedRuntime
from trio_kubelet.rpc import FieldCut, RpcError
from trio_kubelet.rpc.messages import decode
from trio_kubelet.rpc.methods import RequestT, ResponseT, UnaryStub, method_of
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.names import POD_UID_LABEL

STRANGE = "strange-"
"""How ids begin that only this transport knows."""
_LISTS = ("list_pod_sandbox", "list_containers", "list_images")
_STATUSES = ("pod_sandbox_status", "container_status")
_LONGEST_TEXT = 400
_TAG_OF_ENTRIES = b"\x0a"


@define
class Noise:
    """How often something else arrives, and how often it did."""

    share: float = 0.0
    inputs: int = 0

    def comes(self, chance: random.Random, factor: float = 1.0) -> bool:
        """Whether something else arrives now."""
        if chance.random() >= self.share * factor:
            return False
        self.inputs += 1
        return True


MANY_DIGITS = "9" * 5000
"""More than Python makes a number of."""


class FuzzedRuntime(WrappedRuntime):
    """A transport onto the hollow runtime."""

    def __init__(self, runtime: object, values: ValueGenerator, noise: Noise) -> None:
        super().__init__(runtime)
        self._values = values
        self._chance = values.chance
        self._noise = noise

    async def unary_raw(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> bytes:
        """As `Transport.unary_raw`."""
        name, answer_type = method_of(method).name, method_of(method).response_type
        asked = getattr(request, "pod_sandbox_id", "") or getattr(request, "container_id", "")
        if asked.startswith(STRANGE) and name in _STATUSES:
            await trio.lowlevel.checkpoint()
            return bytes(self._strange_status(name, asked))
        answer = await super().unary_raw(
            method, request, deadline_seconds=deadline_seconds, cut=cut
        )
        if name in _LISTS:
            if not self._noise.comes(self._chance):
                return answer
            is_whole = not betterproto.serialized_on_wire(request)
            return self._with_entries(name, answer) if is_whole else self._unreadable(answer_type)
        if not self._noise.comes(self._chance, 0.2):
            return answer
        if name == "version" and self._chance.random() < 0.5:
            version = self._chance.choice((self._text(), MANY_DIGITS, f"v1.{MANY_DIGITS}-x"))
            return bytes(cri.VersionResponse(runtime_name="containerd", runtime_version=version))
        if name in ("status", "version", "runtime_config", "image_fs_info", "image_status"):
            return self._values.spoiled_bytes(answer)
        return self._unreadable(answer_type)

    async def on_stream(
        self, kind: type[ResponseT], answers: AsyncIterator[ResponseT]
    ) -> AsyncIterator[ResponseT]:
        """Strange events arrive between the runtime's."""
        async for answer in answers:
            yield answer
            if self._noise.comes(self._chance):
                data = self._values.spoiled_bytes(bytes(answer))
                if self._chance.random() < 0.5:
                    status = cri.PodSandboxStatus(metadata=self._metadata(self._uid()))
                    data = bytes(
                        cri.ContainerEventResponse(
                            container_id=self._text(),
                            container_event_type=self._chance.randrange(6),  # type: ignore[arg-type]
                            created_at=self._long(),
                            pod_sandbox_status=status,
                        )
                    )
                yield decode(kind, data)

    def _unreadable(self, answer_type: type[betterproto.Message]) -> bytes:
        while True:
            data = self._values.data(60)
            try:
                decode(answer_type, data)
            except RpcError:
                return data

    def _with_entries(self, name: str, answer: bytes) -> bytes:
        """A list with more in it; those of the runtime stay as they are."""
        for _ in range(self._chance.randint(1, 3)):
            entry = bytes(self._strange_entry(name))
            if self._chance.random() < 0.3:
                entry = self._values.spoiled_bytes(entry)
            if self._chance.random() < 0.2:
                entry = self._values.data(60)
            answer += _TAG_OF_ENTRIES + _varint(len(entry)) + entry
        return answer if self._chance.random() < 0.9 else answer + self._values.data(5)

    def _strange_entry(self, name: str) -> betterproto.Message:
        uid, id_ = self._uid(), f"{STRANGE}{self._chance.randrange(40)}"
        labels = {POD_UID_LABEL: uid, self._text(): self._text()}
        if name == "list_images":
            return cri.Image(id=self._text(), repo_tags=[self._text()], size=abs(self._long()))
        if name == "list_pod_sandbox":
            return cri.PodSandbox(
                id=id_,
                metadata=self._metadata(uid),
                state=self._chance.randrange(4),  # type: ignore[arg-type]
                created_at=self._long(),
                labels=labels,
                annotations={self._text(): self._text()},
            )
        return cri.Container(
            id=id_,
            pod_sandbox_id=f"{STRANGE}{self._chance.randrange(40)}",
            metadata=cri.ContainerMetadata(name=self._text(), attempt=self._int()),
            state=self._chance.randrange(6),  # type: ignore[arg-type]
            created_at=self._long(),
            labels=labels,
        )

    def _strange_status(self, name: str, id_: str) -> betterproto.Message:
        if name == "pod_sandbox_status":
            return cri.PodSandboxStatusResponse(
                status=cri.PodSandboxStatus(
                    id=id_,
                    metadata=self._metadata(self._uid()),
                    state=self._chance.randrange(4),  # type: ignore[arg-type]
                    created_at=self._long(),
                    network=cri.PodSandboxNetworkStatus(ip=self._text()),
                    labels={POD_UID_LABEL: self._uid()},
                )
            )
        return cri.ContainerStatusResponse(
            status=cri.ContainerStatus(
                id=id_ if self._chance.random() < 0.8 else self._text(),
                metadata=cri.ContainerMetadata(name=self._text(), attempt=self._int()),
                state=self._chance.randrange(6),  # type: ignore[arg-type]
                created_at=self._long(),
                started_at=self._long(),
                finished_at=self._long(),
                exit_code=self._chance.choice((0, 1, -1, 2**31 - 1, -(2**31))),
                image=cri.ImageSpec(image=self._text()),
                image_ref=self._text(),
                reason=self._text(),
                message=self._text(),
                log_path=self._text(),
                annotations={
                    "io.kubernetes.container.terminationMessagePath": self._text(),
                    "io.kubernetes.container.terminationMessagePolicy": "FallbackToLogsOnError",
                    "io.kubernetes.container.hash": self._text(),
                },
                mounts=[cri.Mount(container_path=self._text(), host_path=self._text())],
            )
        )

    def _metadata(self, uid: str) -> cri.PodSandboxMetadata:
        return cri.PodSandboxMetadata(
            name=self._text(), namespace=self._text(), uid=uid, attempt=self._int()
        )

    def _uid(self) -> str:
        return self._chance.choice((self._text(), f"{STRANGE}{self._chance.randrange(10)}"))

    def _text(self) -> str:
        return self._values.text().encode(errors="replace").decode()[:_LONGEST_TEXT]

    def _long(self) -> int:
        return self._chance.choice((0, -1, 1, 10**18, 2**63 - 1, -(2**63)))

    def _int(self) -> int:
        return self._chance.choice((0, 1, 5, 2**32 - 1))


def _varint(number: int) -> bytes:
    data = b""
    while number >= 0x80:
        data += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return data + bytes((number,))


@define
class FuzzedApi(httpx.AsyncBaseTransport):
    """The way to the API server. `frame` makes one more frame of a watch of a resource."""

    inner: ApiTransport
    values: ValueGenerator
    noise: Noise
    frame: Callable[[str], bytes]
    failures: list[str] = field(factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            response = await self.inner.handle_async_request(request)
        except (httpx.HTTPError, trio.Cancelled):
            raise
        except Exception as error:  # the server in memory stumbles over what it was given
            self.failures.append(repr(error))
            return httpx.Response(500, content=repr(error).encode())
        is_watch = request.url.params.get("watch") == "true"
        resource = request.url.path.rpartition("/")[2]
        if is_watch and resource in ("pods", "nodes") and response.is_success:
            response.stream = _Stream(response.stream, self, resource)
            return response
        if is_watch or not self.noise.comes(self.values.chance, 0.2):
            return response
        await response.aread()
        return self._other(response)

    def _other(self, response: httpx.Response) -> httpx.Response:
        """Another answer: any bytes, any JSON, any status; or the same list with more in it."""
        chance, values = self.values.chance, self.values
        status = {"kind": "Status", "code": values.value(1), "details": values.value(2)}
        body = chance.choice(
            (values.data(), as_json(values.value()), as_json(values.mutated(status)))
        )
        code = chance.choice((200, response.status_code, 404, 409, 410, 422, 429, 500, 503))
        headers = {}
        if chance.random() < 0.3:
            headers["retry-after"] = chance.choice(("-1", "9" * 400, "x", "Mon, 99 Jan 0000", "1"))
        if code == 404 and response.status_code != 404:
            code = 400  # it would be the end of a good pod's object
        try:
            found = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            found = None
        if isinstance(found, dict) and isinstance(found.get("items"), list):
            items = [orjson.dumps(item) for item in found["items"]]
            items += [as_json(values.value()) for _ in range(3)]
            rest = orjson.dumps({**found, "items": []})
            body = rest.replace(b'"items":[]', b'"items":[' + b",".join(items) + b"]", 1)
            code = 200
        return httpx.Response(code, content=body, headers=headers)


class _Stream(httpx.AsyncByteStream):
    """A watch with more frames than the server sends."""

    def __init__(self, inner: Any, api: FuzzedApi, resource: str) -> None:
        self._inner = inner
        self._api = api
        self._resource = resource

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            yield chunk
            while self._api.noise.comes(self._api.values.chance):
                yield self._api.frame(self._resource) + b"\n"

    async def aclose(self) -> None:
        await self._inner.aclose()
