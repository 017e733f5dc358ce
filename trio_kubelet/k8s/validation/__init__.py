"""Says what is wrong with a pod, all at once and in the API's words.

One module for each subject; every check is a generator of `FieldError` values that takes a part
of the pod and its path. `validate_pod` runs them all.
"""

from trio_kubelet.k8s.validation.pod import validate_pod

__all__ = ["validate_pod"]
