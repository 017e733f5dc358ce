"""The documents of a manifest: one for each pod that it asks for.

A manifest is YAML or JSON; several YAML documents stand for several pods, and so do the items of
a PodList or a List.
"""

from collections.abc import Iterable, Iterator, Mapping

from trio_kubelet.k8s.documents import DocumentError, load_documents
from trio_kubelet.k8s.errors import ErrorKind, FieldError

_LISTS = ("PodList", "List")  # compared, not hashed: a kind may be anything


class InvalidManifest(ValueError):  # noqa: N818 - the field's word, as in the API's "invalid pod"
    """A manifest, or one document of it, is no pod that can run; `problems` says all of why."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def load_pod_documents(data: bytes) -> tuple[Mapping[str, object], ...]:
    """Return the document of each pod; raises InvalidManifest when the text is not readable.

    A text without any document is an error, too: a file that was truncated to be written again
    looks like that.
    """
    try:
        documents = load_documents(data)
    except DocumentError as error:
        raise InvalidManifest((str(error),)) from error
    if not documents:
        raise InvalidManifest(("there is no pod in it",))
    return tuple(pod for document in documents for pod in _pods(document))


def _pods(document: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    if document.get("kind") not in _LISTS:
        yield document
        return
    items = document.get("items")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            detail = "must be a pod"
            raise InvalidManifest(
                (str(FieldError(f"items[{index}]", ErrorKind.INVALID, item, detail)),)
            )
        # Items of a PodList often leave out what the list says of all of them.
        yield {"apiVersion": "v1", "kind": "Pod", **item}
