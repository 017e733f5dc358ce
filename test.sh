#!/bin/sh
# Runs all checks and tests: ./test.sh [what nox takes]. As root the tests on real container
# runtimes too. Sets up what it needs, in a cache folder, and may be run again and again.
set -eu
cd "$(dirname "$0")"
. lab/environment.sh

prepare_environment dev --group dev
keep_checkout_clean
[ "$(id -u)" = 0 ] || say "not root: the tests on a real container runtime are skipped, by name"

PATH=$environment/bin:$PATH
if [ $# = 0 ]; then
    set -- -s lint types tests integration
fi
exec nox --no-venv --no-install --envdir "$cache/nox" "$@" </dev/null
