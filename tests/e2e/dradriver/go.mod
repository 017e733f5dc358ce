module trio-kubelet/dradriver

go 1.26

require sigs.k8s.io/dra-example-driver v0.2.1
