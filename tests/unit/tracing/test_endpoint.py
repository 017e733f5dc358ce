"""The endpoints of collectors, in the forms of gRPC for Go."""

import pytest

from trio_kubelet.config.trace_endpoint import trace_endpoint


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [
        (None, ("localhost", 4317)),
        ("", ("localhost", 4317)),
        ("collector:4317", ("collector", 4317)),
        ("collector", ("collector", 443)),
        ("dns:///collector:4317", ("collector", 4317)),
        ("dns://1.1.1.1/collector:4317", ("collector", 4317)),
        ("dns:collector:4317", ("collector", 4317)),
        ("[::1]:4317", ("::1", 4317)),
        ("[::1]", ("::1", 443)),
        ("unix:///run/c.sock", "unix:///run/c.sock"),
        ("unix:/run/c.sock", "unix:///run/c.sock"),
        ("unix:c.sock", None),
        ("unix:///run/", None),
        (f"unix:///{'c' * 107}", None),
        ("unix-abstract:c", None),
        ("collector:0", None),
        ("collector:65536", None),
        ("collector:x", None),
        (":4317", None),
    ],
)
def test_endpoints_are_read_as_grpc_for_go_reads_them(
    endpoint: str | None, found: str | tuple[str, int] | None
) -> None:
    if found is not None:
        assert trace_endpoint(endpoint) == found
        return
    with pytest.raises(ValueError, match=r"."):
        trace_endpoint(endpoint)
