# Sourced by quickstart.sh and test.sh, from the top of the checkout: finds a cache folder that
# this user may write, and prepares virtual environments there with the project in them.
# shellcheck shell=sh

say() {
    printf '%s: %s\n' "$(basename "$0")" "$*"
}

give_up() {
    say "$@" >&2
    exit 1
}

# Root and the checkout's owner must not get in each other's way, so each user has a folder; a
# checkout that cannot be written has it elsewhere.
find_cache() {
    for cache in \
        "$PWD/.cache/$(id -u)" \
        "${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/trio-kubelet" \
        "${TMPDIR:-/tmp}/trio-kubelet-$(id -u)"; do
        if mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ] && [ -O "$cache" ]; then
            return
        fi
    done
    give_up "no folder for the virtual environment: neither the checkout, the home nor /tmp can be written"
}

require_python() {
    command -v python3 >/dev/null || give_up "python3 (3.11 or later) is missing"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        give_up "$(python3 --version) is too old: 3.11 or later is needed"
    if python3 -c 'import ensurepip, venv' 2>/dev/null; then
        return
    fi
    [ "$(id -u)" = 0 ] || give_up "python3-venv is missing: sudo apt install python3-venv"
    say "installing python3-venv"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install --yes --no-install-recommends python3-venv; } \
        >"$cache/apt.log" 2>&1 || give_up "python3-venv cannot be installed: see $cache/apt.log"
}

# prepare_environment NAME [PIP ARGUMENT...]: sets $environment to a virtual environment with the
# project, editable, and what else is named. What it was made from is noted last, so that one that
# was interrupted is made anew.
prepare_environment() {
    find_cache
    require_python
    environment=$cache/$1
    shift
    made_from="$PWD $(python3 -c 'import sys; print(sys.executable, sys.version)') $* $(cksum <pyproject.toml)"
    if [ "$(cat "$environment/made-from" 2>/dev/null)" = "$made_from" ]; then
        return
    fi
    say "making a virtual environment in $environment"
    python3 -m venv --clear "$environment" || give_up "no virtual environment could be made"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --upgrade pip &&
        "$environment/bin/pip" install --quiet --disable-pip-version-check --editable . "$@" ||
        give_up "pip could not install the project"
    printf '%s\n' "$made_from" >"$environment/made-from"
}

# Programs leave their caches beside the environment instead of in the checkout.
keep_checkout_clean() {
    export PYTHONPYCACHEPREFIX="$cache/bytecode"
    unset PYTHONDONTWRITEBYTECODE # or each start of an agent would compile everything anew
    export RUFF_CACHE_DIR="$cache/ruff"
    export MYPY_CACHE_DIR="$cache/mypy"
    export HYPOTHESIS_STORAGE_DIRECTORY="$cache/hypothesis"
    export COVERAGE_FILE="$cache/coverage"
    export PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} -o cache_dir=$cache/pytest"
}
