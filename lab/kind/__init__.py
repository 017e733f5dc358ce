"""Clusters of kind without a registry: a Docker daemon, a node image and kind itself, all private.

Docker is Debian's package, in a network namespace of its own; kind is built from its Go module;
and so is what its node image is made from: Debian packages, the files of kind's own base image,
and the programs of Kubernetes that the lab builds.
"""
