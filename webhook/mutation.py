"""The smallest JSON patch that makes an accepted pod one of ours. Unknown fields of the object are never touched."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuslice.devices.container_reader import written_count
from gpuslice.devices.demands import ContainerRequest
from gpuslice.devices.families import Families
from gpuslice.devices.families.family import Family
from gpuslice.devices.quantity import parse_quantity
from webhook.inspection import Findings
from webhook.isolation import other_libraries, steering_names, steers
from webhook.namespaces import NamespacePolicy
from webhook.pods import AdmittedContainer, AdmittedPod, EnvVar
from webhook.policy import Policy
from webhook.review import Operation


def escape(token: str) -> str:
    """Return a key as a JSON pointer token (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1")


@dataclass(frozen=True, slots=True)
class Context:
    """What is the same for every pod."""

    families: Families
    policy: Policy
    steering: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steering", steering_names(self.families))


class PodMutation:
    """Collects the operations for one pod."""

    def __init__(self, pod: AdmittedPod, findings: Findings, context: Context) -> None:
        self._pod = pod
        self._requests = {demand.name: demand.request for demand in findings.request.containers}
        self._filled = findings.filled
        self._families = context.families
        self._policy = context.policy
        self._steering = context.steering
        self._operations: list[Operation] = []

    def for_create(self, rules: NamespacePolicy) -> tuple[Operation, ...]:
        """Return the operations for a new pod."""
        self._annotations(rules)
        for group, containers in self._pod.groups():
            for position, container in enumerate(containers):
                base = f"/spec/{group}/{position}"
                share = self._requests.get(container.name) if group != "ephemeralContainers" else None
                self._environment(base, container, share)
                if share is not None:
                    self._resources(base, container, share)
        spec = self._pod.spec
        if spec.scheduler_name in self._policy.replaced_schedulers:
            self._set("/spec/schedulerName", self._policy.scheduler_name, present=bool(spec.scheduler_name))
        if self._policy.runtime_class and spec.runtime_class_name is None:
            self._set("/spec/runtimeClassName", self._policy.runtime_class, present=False)
        return tuple(self._operations)

    def for_ephemeral(self, already: frozenset[str]) -> tuple[Operation, ...]:
        """Return the operations for new ephemeral containers of a running pod."""
        for position, container in enumerate(self._pod.spec.ephemeral_containers or ()):
            if container.name not in already:
                self._environment(f"/spec/ephemeralContainers/{position}", container, None)
        return tuple(self._operations)

    def steering_left(self) -> tuple[tuple[str, str], ...]:
        """Return (container, variable) of what would still override the scheduler."""
        return tuple(
            (container.name, variable.name)
            for _, containers in self._pod.groups()
            for container in containers
            for variable in container.env or ()
            if steers(variable.name, variable.value, self._steering) and not self._is_ours(variable)
        )

    def _is_ours(self, variable: EnvVar) -> bool:
        """Tell whether we set the variable ourselves to hide cards."""
        return self._policy.hide_cards and variable.value == "none"

    def _set(self, path: str, value: object, *, present: bool) -> None:
        self._operations.append(Operation("replace" if present else "add", path, value))

    def _wanted_families(self) -> Iterator[Family]:
        for name in dict.fromkeys(request.family for request in self._requests.values()):
            yield self._families.by_name[name]

    def _annotations(self, rules: NamespacePolicy) -> None:
        present = self._pod.metadata.annotations
        new: dict[str, str] = {}
        for family in self._wanted_families():
            for choice in family.choices:
                key, _, value = choice.unless.partition("=")
                excused = bool(key) and present.get(key) == value
                if choice.default is not None and choice.key not in present and not excused:
                    new[choice.key] = choice.default
            chosen = family.selection.use_type
            if rules.allowed_models and chosen and not any(present.get(key) for key in chosen):
                new[chosen[0]] = ",".join(rules.allowed_models)
        if not new:
            return
        if self._pod.metadata.raw_annotations is None:
            self._set("/metadata/annotations", new, present=False)
            return
        for key, value in new.items():
            self._set(f"/metadata/annotations/{escape(key)}", value, present=key in present)

    def _environment(self, base: str, container: AdmittedContainer, share: ContainerRequest | None) -> None:
        kept = list(container.env or ())
        for position in range(len(kept) - 1, -1, -1):
            name, value = kept[position].name, kept[position].value
            if not steers(name, value, self._steering):
                continue
            others = other_libraries(value) if name == "LD_PRELOAD" and value is not None else ""
            if others:
                self._set(f"{base}/env/{position}/value", others, present=True)
            else:
                self._operations.append(Operation("remove", f"{base}/env/{position}"))
                del kept[position]
        added = list(self._added_environment(container, share, kept))
        if not added:
            return
        if container.env is None:
            self._set(f"{base}/env", added, present=False)
            return
        for variable in added:
            self._set(f"{base}/env/-", variable, present=False)

    def _added_environment(
        self, container: AdmittedContainer, share: ContainerRequest | None, kept: list[EnvVar]
    ) -> Iterator[dict[str, str]]:
        present = {variable.name for variable in kept}
        if share is not None:
            for variable in self._families.by_name[share.family].container_env:
                if variable.name not in present:
                    yield {"name": variable.name, "value": variable.value.replace("{container}", container.name)}
        elif self._policy.hide_cards:
            for family in self._wanted_families():
                if family.visible_devices_env == "NVIDIA_VISIBLE_DEVICES":
                    yield {"name": family.visible_devices_env, "value": "none"}

    def _resources(self, base: str, container: AdmittedContainer, share: ContainerRequest) -> None:
        """Write what was left out or rounded: the kubelet allocates by the count, people read the rest."""
        resources = container.resources
        if resources is None:
            return
        new = dict(self._filled.get(container.name, {}))
        family = self._families.by_name[share.family]
        if family.resources.cores_alone not in {*resources.limits, *resources.requests}:
            count, written = written_count(share, family), resources.get(family.resources.count)
            if written is None or parse_quantity(written) != count:
                new[family.resources.count] = str(count)
        if not new:
            return
        if resources.raw_limits is None:
            self._set(f"{base}/resources/limits", new, present=False)
        for key, raw in (("limits", resources.raw_limits), ("requests", resources.raw_requests)):
            if raw is None:
                continue
            for name, value in new.items():
                self._set(f"{base}/resources/{key}/{escape(name)}", value, present=name in raw)
