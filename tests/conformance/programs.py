"""The programs of a conformance run: upstream's specs, what runs them, and what images need."""

from pathlib import Path

from lab.go_programs import GoModule, Programs
from lab.packages import default_cache

MODULE = Path(__file__).parent / "go" / "go.mod"
SPECS = "e2e.test"
GINKGO = "ginkgo"
AGNHOST = "agnhost"
# Programs of ours, beside the module file.
NNP, NMETER = "nnp", "nmeter"
PACKAGES = {
    GINKGO: "github.com/onsi/ginkgo/v2/ginkgo",
    SPECS: "k8s.io/kubernetes/test/e2e",
    AGNHOST: "k8s.io/kubernetes/test/images/agnhost",
}


def find() -> Programs:
    """Find them all in the cache, or build them, for minutes.

    UnavailableError without a Go toolchain; LabError if the build fails.
    """
    module = GoModule(MODULE, default_cache() / "conformance", PACKAGES)
    return module.folder_with((GINKGO, AGNHOST, NNP, NMETER, SPECS))
