module trio-kubelet/nvidia

go 1.26

require github.com/NVIDIA/k8s-device-plugin v0.18.2
