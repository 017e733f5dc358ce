"""The project's checks, each a session: `nox -s tests`, `nox -s lint types`, ...

`test.sh` runs them in one environment of its own; here each has one, kept between runs. What
follows `--` goes to the program: `nox -s tests -- tests/unit/sync -x`.
"""

import os
from functools import partial

import nox
import nox.command

nox.needs_version = ">=2024.10"
nox.options.sessions = ["lint", "types", "tests", "integration"]
nox.options.reuse_venv = "yes"

PYPROJECT = nox.project.load_toml("pyproject.toml")
CORES = len(os.sched_getaffinity(0))
# Tests of real nodes wait most of their time; each process has containerds of its own.
WAITING = min(4, CORES + 1)
# Guests wait for services and grace periods; four leave a tenth of two cores idle.
GUESTS = min(4, 2 * CORES)
TYPED = ("trio_kubelet", "state_machines", "lab", "benchmarks", "protos", "tests", "noxfile.py")


def install(session: nox.Session, *groups: str) -> None:
    """Put the project, editable, and some of its dependency groups into the environment."""
    session.install("-e", ".", *nox.project.dependency_groups(PYPROJECT, *groups))


def run_pytest(
    session: nox.Session, marks: str, *, workers: int = 0, test_may_take_seconds: int
) -> None:
    """Run the tests with these marks in so many processes (0: in this one, as a debugger needs).

    A test that hangs shows where it does and fails; its process is replaced a few times at most.

    Continuous integration asks tests that failed once more, alone. One that passes then is a bug
    all the same, in the test or in what it tests, and is named in the output as the first one
    failed; but it does not keep back the work of days that has nothing to do with it.
    """
    workers_options = ("-n", f"{workers}", "--dist=loadscope", "--no-loadscope-reorder")
    hang = (
        f"--override-ini=faulthandler_timeout={test_may_take_seconds}",
        "--override-ini=faulthandler_exit_on_timeout=true",
        "--max-worker-restart=2",
    )
    run = partial(session.run, "pytest", "-m", marks)
    try:
        run(*workers_options, *hang, *session.posargs)
    except nox.command.CommandFailed:
        if os.environ.get("CI") != "true":
            raise
        session.warn("tests failed; those that do not fail again are flaky, which is to be mended:")
        again = ("-n0", "-v", "--last-failed", "--last-failed-no-failures=none")
        run(*again, *hang, *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Unit, property and simulation tests: no root, no container runtime."""
    install(session, "test", "protos")
    session.env["PYTHONHASHSEED"] = "0"  # A simulated day repeats itself: sets keep their order.
    run_pytest(
        session,
        "not integration and not e2e and not guest and not cluster",
        workers=CORES,
        test_may_take_seconds=300,
    )


@nox.session
def integration(session: nox.Session) -> None:
    """The agent on real containerds; as anyone but root, each test says why it is skipped."""
    install(session, "test")
    run_pytest(session, "integration", workers=WAITING, test_may_take_seconds=600)


@nox.session
def e2e(session: nox.Session) -> None:
    """The agent as a node of a real control plane, which is built with Go where it is not there.

    Building is no test's affair, nor are the images of machines that join: it takes minutes, once,
    and failing is told before the tests. That either cannot be built is a failure in CI, and where
    the provider `local` was asked for.
    """
    install(session, "test")
    wanted = os.environ.get("TRIO_KUBELET_KUBERNETES")
    version = ("--version", wanted) if wanted else ()
    must = os.environ.get("CI") == "true" or os.environ.get("TRIO_KUBELET_E2E") == "local"
    unless = () if must else ("--if-possible",)
    session.run("python", "-m", "lab", "control-plane-programs", "--all", *version, *unless)
    kernels = {"packaged", os.environ.get("TRIO_KUBELET_GUEST_KERNEL") or "packaged"}
    if os.environ.get("TRIO_KUBELET_KIND_DOCKER") == "guest":
        kernels.add("own")
    for kernel in sorted(kernels):
        session.run("python", "-m", "lab", "guest-image", "--kernel", kernel, *unless)
    if os.environ.get("TRIO_KUBELET_E2E") == "kind":
        session.run("python", "-m", "lab", "kind-image", *version)
    run_pytest(session, "e2e", test_may_take_seconds=600)


@nox.session
def rotation(session: nox.Session) -> None:
    """Certificates of two minutes under load, client's and port's: half an hour for each test."""
    install(session, "test")
    os.environ["TRIO_KUBELET_ROTATION_SECONDS"] = "1800"
    session.run("python", "-m", "pytest", "-n0", "-s", "tests/e2e/test_rotation.py")


@nox.session
def guest(session: nox.Session) -> None:
    """The agent as a service of systemd on machines with cgroup v2, which are booted here.

    Their image is built before the tests, for minutes, once. Where none can be had each test says
    why it is skipped, or fails where CI is true.
    """
    install(session, "test")
    unless = () if os.environ.get("CI") == "true" else ("--if-possible",)
    session.run("python", "-m", "lab", "guest-image", *unless)
    run_pytest(session, "guest", workers=GUESTS, test_may_take_seconds=600)


@nox.session
def guest_integration(session: nox.Session) -> None:
    """All integration tests of cgroups, mounts and ends on such a machine, with runc and with crun.

    `guest` runs those of them whose outcome the machine may change. A quarter of an hour.
    """
    install(session, "test")
    file = "tests/guest/test_integration.py"
    environment = {"TRIO_KUBELET_GUEST_INTEGRATION": "all", "CI": "true"}
    session.run("pytest", "-n0", file, *session.posargs, env=environment)


@nox.session
def cluster(session: nox.Session) -> None:
    """Two machines that kubeadm joins to a control plane, as users of docs/joining.md do.

    Control plane, image and its kernel, which passes all of kubeadm's checks, are built before the
    tests, for half an hour, once. Where any cannot be had each test says why it is skipped, or
    fails where CI is true.
    """
    install(session, "test")
    wanted = os.environ.get("TRIO_KUBELET_KUBERNETES")
    version = ("--version", wanted) if wanted else ()
    kernel = os.environ.get("TRIO_KUBELET_GUEST_KERNEL") or "own"
    unless = () if os.environ.get("CI") == "true" else ("--if-possible",)
    session.run("python", "-m", "lab", "control-plane-programs", "--all", *version, *unless)
    session.run("python", "-m", "lab", "guest-image", "--kernel", kernel, *unless)
    session.env["TRIO_KUBELET_GUEST_KERNEL"] = kernel
    run_pytest(session, "cluster", test_may_take_seconds=1800)


@nox.session
def oom_kills(session: nox.Session) -> None:
    """Whether 200 of 200 containers that are killed for their memory say so, on each machine.

    On the host's cgroups with each containerd, and on cgroup v2 in a guest: half an hour. What is
    missing is a failure, as in continuous integration: who asks wants to know.
    """
    install(session, "test")
    files = (f"tests/{kind}/test_oom_kills.py" for kind in ("integration", "guest"))
    environment = {"TRIO_KUBELET_OOM_KILLS": "200", "CI": "true"}
    session.run("pytest", "-n0", *files, *session.posargs, env=environment)


@nox.session
def volume_kills(session: nox.Session) -> None:
    """Whether volumes outlast fifty kills of the agent as pods come and go: a quarter of an hour.

    `integration` does six. What is missing is a failure, as in continuous integration.
    """
    install(session, "test")
    file = "tests/integration/test_volume_kills.py"
    environment = {"TRIO_KUBELET_VOLUME_KILLS": "50", "CI": "true"}
    session.run("pytest", "-n0", file, *session.posargs, env=environment)


@nox.session
def storage(session: nox.Session) -> None:
    """A CSI driver of others on a node, their suite on ours, and upstream's specs of volumes.

    The specs run on the agent and on the Go kubelet, and docs/storage-specs.md is written anew: two
    hours. Builds all that others wrote with Go, for half an hour, once.
    """
    install(session, "test")
    session.run("python", "-m", "lab", "control-plane-programs")
    session.run("python", "-m", "lab.csi_suite")
    files = ("tests/e2e/test_gocsi.py", "tests/e2e/test_csi_suite.py")
    environment = {"TRIO_KUBELET_STORAGE": "1", "TRIO_KUBELET_E2E": "local", "CI": "true"}
    session.run("pytest", "-n0", *files, env=environment)
    page = ("--page", "docs/storage-specs.md")
    session.run("python", "-m", "tests.conformance.storage", *page, *session.posargs)


@nox.session
def pressures(session: nox.Session) -> None:
    """Whether a node whose memory is eaten at 200 MiB a second holds, ten times of ten.

    On a machine with cgroup v2, which `e2e` does once: a quarter of an hour.
    """
    install(session, "test")
    session.run("python", "-m", "lab", "control-plane-programs", "--all")
    session.run("python", "-m", "lab", "guest-image")
    file = "tests/e2e/test_evictions_in_a_guest.py"
    environment = {"TRIO_KUBELET_E2E_PRESSURES": "10", "CI": "true"}
    session.run("pytest", "-n0", "-s", "-k", "holds", file, *session.posargs, env=environment)


@nox.session
def huge_pages(session: nox.Session) -> None:
    """Whether pods are held to their huge pages by the kernel: on both containerds, minutes."""
    install(session, "test")
    file = "tests/integration/test_huge_pages.py"
    environment = {"TRIO_KUBELET_HUGE_PAGES": "1", "CI": "true"}
    session.run("pytest", "-n0", file, *session.posargs, env=environment)


@nox.session
def years(session: nox.Session) -> None:
    """Whether a node of two simulated years keeps nothing of what has gone: an hour."""
    install(session, "test", "protos")
    environment = {"TRIO_KUBELET_MONTHS": "24", "PYTHONHASHSEED": "0"}
    file = "tests/simulation/test_years.py"
    session.run("pytest", "-n0", "-s", "-k", "last_year", file, *session.posargs, env=environment)


@nox.session
def endurance(session: nox.Session) -> None:
    """Whether a node of fifty pods that crash, end and are pulled keeps its figures: 40 minutes.

    TRIO_KUBELET_ENDURANCE_MINUTES is another length, TRIO_KUBELET_ENDURANCE_FIGURES a file for the
    samples, where those of earlier runs count, too: a node of six hours may be nine runs.
    """
    install(session, "test")
    session.run("python", "-m", "lab", "control-plane-programs")
    os.environ.setdefault("TRIO_KUBELET_ENDURANCE_MINUTES", "40")
    environment = {"TRIO_KUBELET_E2E": "local", "CI": "true"}
    file = "tests/e2e/test_endurance.py"
    session.run("pytest", "-n0", "-s", "-m", "e2e", file, *session.posargs, env=environment)


@nox.session
def reloads(session: nox.Session) -> None:
    """Whether ten minutes of reloads, good and broken in turns, disturb no pod under churn.

    On the hollow runtime and, as root, on each containerd: half an hour.
    """
    install(session, "test")
    file = "tests/integration/test_reload.py"
    environment = {"TRIO_KUBELET_RELOAD_SECONDS": "600"}
    session.run("pytest", "-n0", "-s", "-k", "storm", file, *session.posargs, env=environment)


@nox.session
def hostile_containers(session: nox.Session) -> None:
    """Whether 150 containers that crash, or end together, on containerd cost others nothing.

    A quarter of an hour.
    """
    install(session, "test")
    file = "tests/integration/test_hostile_containers.py"
    environment = {"TRIO_KUBELET_HOSTILE_CONTAINERS": "150", "CI": "true"}
    session.run("pytest", "-n0", file, *session.posargs, env=environment)


@nox.session
def images(session: nox.Session) -> None:
    """Whether a disk of 200 images gets room, keeps what is used and has the rest pulled again.

    `integration` has 24: minutes, on each containerd.
    """
    install(session, "test")
    file = "tests/integration/test_image_garbage.py"
    environment = {"TRIO_KUBELET_IMAGES": "200", "CI": "true"}
    session.run("pytest", "-n0", file, *session.posargs, env=environment)


@nox.session
def logs(session: nox.Session) -> None:
    """Whether a follower has every line of a log of 5 MB/s once, for half an hour of rotations."""
    install(session, "test")
    file = "tests/e2e/test_log_rotation.py"
    environment = {"TRIO_KUBELET_LOG_SECONDS": "1800", "TRIO_KUBELET_E2E": "local"}
    session.run("pytest", "-n0", "-m", "e2e", file, *session.posargs, env=environment)


@nox.session
def dra_example(session: nox.Session) -> None:
    """Whether claims of the driver that Kubernetes publishes as an example are served.

    Builds the driver with Go, for minutes, once.
    """
    install(session, "test")
    session.run("python", "-m", "lab.dra_example_driver")
    file = "tests/e2e/test_dra_example.py"
    environment = {"TRIO_KUBELET_E2E": "local"}
    session.run("pytest", "-n0", "-m", "e2e", file, *session.posargs, env=environment)


@nox.session
def nvidia(session: nox.Session) -> None:
    """Whether pods get this machine's GPUs from NVIDIA's own device plugin; skipped without one.

    Builds the plugin with Go and a compiler of C, for minutes, once.
    """
    install(session, "test")
    session.run("python", "-m", "lab.nvidia_device_plugin")
    file = "tests/e2e/test_nvidia.py"
    environment = {"TRIO_KUBELET_E2E": "local"}
    session.run("pytest", "-n0", "-m", "e2e", file, *session.posargs, env=environment)


@nox.session
def conformance(session: nox.Session) -> None:
    """Upstream's node conformance specs on this agent, and docs/conformance.md anew: an hour.

    Builds the specs and what runs them with Go, for minutes, once.
    """
    install(session, "test")
    session.run(
        "python", "-m", "tests.conformance", "--page", "docs/conformance.md", *session.posargs
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Style and format."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Run mypy, strict, on everything."""
    install(session, "types")
    session.run("mypy", *(session.posargs or TYPED))


@nox.session
def protos(session: nox.Session) -> None:
    """Generate the gRPC stubs from protos/ anew."""
    install(session, "protos")
    session.run("python", "protos/generate.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Whether the state diagrams in the documentation are those of the tables."""
    session.run(
        "python", "-m", "state_machines.mermaid", "--check", "docs/state-machines.md", "README.md"
    )


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks; those on a real runtime need root."""
    install(session)
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build the source distribution and the wheel into dist/."""
    session.install("build")
    session.run("python", "-m", "build", *session.posargs)
