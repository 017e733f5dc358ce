#!/bin/sh
# Shows trio-kubelet at work on this machine: sudo ./quickstart.sh [--hollow] [--once]. Everything
# it makes is private to it and gone again at the end, but for a cache folder.
set -eu
cd "$(dirname "$0")"
. lab/environment.sh

prepare_environment run
keep_checkout_clean
exec "$environment/bin/python" -m lab.quickstart "$@"
