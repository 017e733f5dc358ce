"""`python -m trio_kubelet`: the same as the command `trio-kubelet`."""

from trio_kubelet.cli import main

main()
