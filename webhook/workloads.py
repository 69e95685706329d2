"""Pod templates inside workloads, so that people see a mistake when they apply it and not in a pod that never comes."""

import msgspec

from gpuslice.devices.decoding import UNREADABLE
from webhook.pods import AdmittedPod
from webhook.review import BadReview


class _Spec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    template: AdmittedPod | None = None


class _Workload(msgspec.Struct, frozen=True, rename="camel", gc=False):
    spec: _Spec = _Spec()


class _CronSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    job_template: _Workload = _Workload()


class _CronJob(msgspec.Struct, frozen=True, rename="camel", gc=False):
    spec: _CronSpec = _CronSpec()


WORKLOAD_KINDS = frozenset(
    {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"}
)
_workload_decoder = msgspec.json.Decoder(_Workload)
_cron_decoder = msgspec.json.Decoder(_CronJob)


def template_of(raw: msgspec.Raw, kind: str) -> AdmittedPod | None:
    """Return the pod template of a workload, or None when it has none.

    Raises:
        BadReview: The object has not the shape of its kind.
    """
    try:
        if kind == "CronJob":
            return _cron_decoder.decode(raw).spec.job_template.spec.template
        return _workload_decoder.decode(raw).spec.template
    except UNREADABLE as error:
        raise BadReview(f"the {kind} in the request is not readable: {error}") from error
