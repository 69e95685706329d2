"""From an admission request to a verdict. Pure: no clock, no network, the same request gets the same answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gpuslice.devices.decoding import UNREADABLE
from gpuslice.devices.families import Families
from gpuslice.devices.pods import Metadata, Resources
from webhook.inspection import Findings, inspect_pod
from webhook.mutation import Context, PodMutation
from webhook.pods import AdmittedPod
from webhook.policy import Policy
from webhook.protection import explain, protected_keys, touched_keys
from webhook.review import UNTOUCHED, AdmissionRequest, BadReview, Verdict
from webhook.workloads import WORKLOAD_KINDS, template_of


class _Anything(msgspec.Struct, frozen=True, gc=False):
    """An object of which only the metadata matters (Binding)."""

    metadata: Metadata = Metadata()


_pod_decoder = msgspec.json.Decoder(AdmittedPod)
_metadata_decoder = msgspec.json.Decoder(_Anything)
MIRROR = "kubernetes.io/config.mirror"
_Object = TypeVar("_Object")


@dataclass(frozen=True, slots=True)
class Admission:
    """Decides. ``families`` and ``policy`` are what the administrator chose."""

    families: Families
    policy: Policy
    _protected: frozenset[str] = field(init=False)
    _context: Context = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_protected", protected_keys(self.families))
        object.__setattr__(self, "_context", Context(self.families, self.policy))

    def mutate(self, request: AdmissionRequest) -> Verdict:
        """Answer /mutate: deny what is wrong, else return the patch."""
        if request.kind.kind != "Pod":
            return UNTOUCHED
        if request.operation == "CREATE" and not request.sub_resource:
            return self._create(request, with_patch=True)
        if request.operation == "UPDATE" and request.sub_resource == "ephemeralcontainers":
            return self._ephemeral(request, with_patch=True)
        return UNTOUCHED

    def validate(self, request: AdmissionRequest) -> Verdict:
        """Answer /validate: the last look at what will be stored."""
        kind = request.kind.kind
        if kind in WORKLOAD_KINDS:
            return self._workload(request)
        if kind == "Binding" or request.sub_resource == "binding":
            return self._binding(request)
        if kind != "Pod":
            return UNTOUCHED
        if request.operation == "CREATE" and not request.sub_resource:
            return self._create(request, with_patch=False)
        if request.operation == "UPDATE":
            if request.sub_resource == "ephemeralcontainers":
                return self._ephemeral(request, with_patch=False)
            return self._update(request)
        return UNTOUCHED

    def _create(self, request: AdmissionRequest, *, with_patch: bool) -> Verdict:
        pod = _decode(_pod_decoder, request.object, "Pod")
        if _is_mirror(request, pod):
            return UNTOUCHED
        findings = inspect_pod(pod, self.families, self.policy, request.namespace)
        denial = (*self._tampering(request, pod.metadata.annotations, {}), *findings.problems)
        if denial:
            return Verdict(denial=denial)
        if not findings.wants_devices:
            return UNTOUCHED
        if not with_patch:
            return self._unstripped(pod, findings)
        rules = self.policy.namespaces.of(request.namespace)
        patch = PodMutation(pod, findings, self._context).for_create(rules)
        return Verdict(patch=patch, warnings=findings.warnings)

    def _unstripped(self, pod: AdmittedPod, findings: Findings) -> Verdict:
        """Deny what another mutating webhook put back after ours had removed it."""
        left = PodMutation(pod, findings, self._context).steering_left()
        return Verdict(
            denial=tuple(
                f"container {container}: env {name}: the scheduler decides which card and how much; another webhook "
                "set it after ours, order that one first or set reinvocationPolicy: IfNeeded"
                for container, name in left
            )
        )

    def _update(self, request: AdmissionRequest) -> Verdict:
        new = _decode(_pod_decoder, request.object, "Pod")
        old = _decode(_pod_decoder, request.old_object, "Pod")
        denial = [*self._tampering(request, new.metadata.annotations, old.metadata.annotations)]
        if new.spec != old.spec or new.metadata.annotations != old.metadata.annotations:
            denial.extend(self._new_problems(request, new, old))
        if request.sub_resource == "resize" and not denial:
            denial.extend(self._resized_devices(new, old))
        return Verdict(denial=tuple(denial)) if denial else UNTOUCHED

    def _new_problems(self, request: AdmissionRequest, new: AdmittedPod, old: AdmittedPod) -> tuple[str, ...]:
        """Return the problems that the change brings; what was admitted before never blocks a later change."""
        found = inspect_pod(new, self.families, self.policy, request.namespace).problems
        if not found:
            return ()
        known = set(inspect_pod(old, self.families, self.policy, request.namespace).problems)
        return tuple(line for line in found if line not in known and "nodeName=" not in line)

    def _resized_devices(self, new: AdmittedPod, old: AdmittedPod) -> list[str]:
        before = {c.name: c.resources for _, containers in old.groups() for c in containers}
        return [
            f"container {container.name}: {name}: shares of devices cannot be resized in place; delete the pod and "
            "create it with the new size"
            for _, containers in new.groups()
            for container in containers
            for name in sorted(self.families.resource_names)
            if _quantity(before.get(container.name), name) != _quantity(container.resources, name)
        ]

    def _ephemeral(self, request: AdmissionRequest, *, with_patch: bool) -> Verdict:
        new = _decode(_pod_decoder, request.object, "Pod")
        old = _decode(_pod_decoder, request.old_object, "Pod")
        denial = [*self._tampering(request, new.metadata.annotations, old.metadata.annotations)]
        denial.extend(self._new_problems(request, new, old))
        if denial:
            return Verdict(denial=tuple(denial))
        findings = inspect_pod(new, self.families, self.policy, request.namespace)
        if not findings.wants_devices or not with_patch:
            return UNTOUCHED
        already = frozenset(container.name for container in old.spec.ephemeral_containers or ())
        return Verdict(patch=PodMutation(new, findings, self._context).for_ephemeral(already))

    def _binding(self, request: AdmissionRequest) -> Verdict:
        """A Binding's annotations are merged into the pod, so they are protected like the pod's own."""
        binding = _decode(_metadata_decoder, request.object, "Binding")
        denial = tuple(self._tampering(request, binding.metadata.annotations, {}))
        return Verdict(denial=denial) if denial else UNTOUCHED

    def _workload(self, request: AdmissionRequest) -> Verdict:
        """Warn at the workload about what its pods would be denied for; a denial here would block unrelated edits."""
        pod = template_of(request.object, request.kind.kind)
        if pod is None:
            return UNTOUCHED
        findings = inspect_pod(pod, self.families, self.policy, request.namespace)
        keys = touched_keys(pod.metadata.annotations, {}, self._protected)
        denied = [*(explain(key) for key in keys), *findings.problems]
        warnings = (*(f"its pods will be denied: {line}" for line in denied), *findings.warnings)
        return Verdict(warnings=warnings) if warnings else UNTOUCHED

    def _tampering(self, request: AdmissionRequest, new: Mapping[str, str], old: Mapping[str, str]) -> tuple[str, ...]:
        keys = touched_keys(new, old, self._protected)
        if not keys or request.user_info.username in self.policy.trusted_users:
            return ()
        return tuple(explain(key) for key in keys)


def _is_mirror(request: AdmissionRequest, pod: AdmittedPod) -> bool:
    """Tell whether a kubelet shows a static pod, which runs whatever we say; denied, it would only be invisible.

    NodeRestriction lets nodes create no other pods, and these only for themselves.
    """
    return MIRROR in pod.metadata.annotations and request.user_info.username.startswith("system:node:")


def _quantity(resources: Resources | None, name: str) -> str:
    value = None if resources is None else resources.get(name)
    return "" if value is None else str(value)


def _decode(decoder: "msgspec.json.Decoder[_Object]", raw: msgspec.Raw, kind: str) -> _Object:
    """Decode an object of a request.

    Raises:
        BadReview: The object has not the shape of its kind.
    """
    try:
        return decoder.decode(raw)
    except UNREADABLE as error:
        raise BadReview(f"the {kind} in the request is not readable: {error}") from error
