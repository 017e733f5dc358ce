module trio-kubelet/csidriver

go 1.26

require github.com/rexray/gocsi v1.2.2
