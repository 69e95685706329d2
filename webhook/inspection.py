"""Judge a pod that wants devices: every problem at once, and warnings for what is legal but surprising."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuslice.devices.demands import PodRequest
from gpuslice.devices.families import Families
from gpuslice.devices.models import model_matches
from gpuslice.devices.requests import read_request
from webhook.defaults import Filled, fill_defaults
from webhook.isolation import covering_mounts, device_volumes, privileged_containers, strong_capabilities
from webhook.namespaces import NamespacePolicy
from webhook.pods import AdmittedPod
from webhook.policy import Policy, Stance
from webhook.surprises import surprises


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in one pod."""

    request: PodRequest
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    filled: Filled = field(default_factory=dict)
    """Resources that the namespace's defaults add, by container."""

    @property
    def wants_devices(self) -> bool:
        """Whether the pod goes the way of a GPU pod: it asks for devices, or tried to."""
        return bool(self.problems) or not self.request.is_empty


_NO_REQUEST = PodRequest(())
NOTHING = Findings(_NO_REQUEST)


def inspect_pod(pod: AdmittedPod, families: Families, policy: Policy, namespace: str) -> Findings:
    """Return everything that is wrong or surprising with a pod. A pod without devices has no findings."""
    if not asks_for_devices(pod, families):
        return NOTHING
    rules = policy.namespaces.of(namespace)
    pod, filled = fill_defaults(pod, families, rules)
    request = read_request(pod, families)
    problems: list[str] = []
    warnings: list[str] = []
    if isinstance(request, tuple):
        problems.extend(str(problem) for problem in request)
        request = _NO_REQUEST
    elif request.is_empty:
        return NOTHING
    problems.extend(_ceilings(request, rules, families))
    problems.extend(_impossible(request))
    _isolation(pod, policy, rules, problems, warnings)
    _placement(pod, policy, problems)
    warnings.extend(surprises(pod, request, families))
    return Findings(request, tuple(problems), tuple(warnings), filled)


def asks_for_devices(pod: AdmittedPod, families: Families) -> bool:
    """Tell whether any container names a resource of any family, whatever the number."""
    names = families.resource_names
    for _, containers in pod.groups():
        for container in containers:
            resources = container.resources
            if resources is None:
                continue
            if not (names.isdisjoint(resources.limits) and names.isdisjoint(resources.requests)):
                return True
    return False


def _impossible(request: PodRequest) -> Iterator[str]:
    """Yield what no node of any cluster can satisfy."""
    named = set(request.selection.use_uuids) - set(request.selection.refuse_uuids)
    if not request.selection.use_uuids:
        return
    for demand in request.containers:
        if demand.request.cards > len(named):
            yield (
                f"container {demand.name}: {demand.request.cards} cards, but the annotations leave {len(named)} to "
                "choose from; name more cards or ask for fewer"
            )


def _ceilings(request: PodRequest, rules: NamespacePolicy, families: Families) -> Iterator[str]:
    where = "namespace policy"
    total = 0
    for demand in request.containers:
        share = demand.request
        total += share.cards
        if rules.max_cards_per_container is not None and share.cards > rules.max_cards_per_container:
            limit = rules.max_cards_per_container
            yield f"container {demand.name}: {share.cards} cards: {where} allows {limit} per container; ask for fewer"
        if rules.max_memory_mib is not None and share.memory_mib > rules.max_memory_mib:
            limit = rules.max_memory_mib
            yield f"container {demand.name}: {share.memory_mib} MiB: {where} allows {limit} MiB of a card; ask for less"
        if rules.max_memory_mib is not None and not share.memory_mib:
            limit = rules.max_memory_mib
            yield (
                f"container {demand.name}: no memory size given: {where} allows {limit} MiB of a card; "
                "write the memory you need"
            )
    if rules.max_cards_per_pod is not None and total > rules.max_cards_per_pod:
        yield f"pod: {total} cards: {where} allows {rules.max_cards_per_pod} per pod; ask for fewer"
    if rules.allowed_models:
        kinds = {demand.request.family: families.by_name[demand.request.family] for demand in request.containers}
        # A kind without a type annotation is one model: its word.
        words = [kind.word for kind in kinds.values() if not kind.selection.use_type]
        for wanted in (*request.selection.use_types, *words):
            if not any(model_matches(allowed, wanted) for allowed in rules.allowed_models):
                models = ", ".join(rules.allowed_models)
                yield f"pod: card type {wanted!r}: {where} allows {models}; choose one of them"


def _isolation(
    pod: AdmittedPod, policy: Policy, rules: NamespacePolicy, problems: list[str], warnings: list[str]
) -> None:
    def weigh(stance: Stance, line: str) -> None:
        if rules.privileged or stance == "allow":
            return
        (problems if stance == "deny" else warnings).append(line)

    for name in privileged_containers(pod):
        weigh(
            policy.privileged,
            f"container {name}: privileged=true: it would see every card of the node; remove it, or move the container "
            "to a pod without devices",
        )
    if pod.spec.host_pid:
        weigh(policy.host_pid, "pod: hostPID=true: it reaches into other containers of the node; remove it")
    for name, path in device_volumes(pod):
        weigh(
            policy.host_devices,
            f"volume {name}: hostPath={path!r}: it brings the node's devices into the pod; remove it, devices come "
            "with the request",
        )
    for name, capability in strong_capabilities(pod):
        warnings.append(f"container {name}: capability {capability} lets it reach cards it was not given")
    problems.extend(
        f"container {container.name}: mountPath={path!r}: it hides the files that enforce the share, or asks for cards "
        "past the scheduler; mount the volume elsewhere"
        for _, containers in pod.groups()
        for container in containers
        for path in covering_mounts(container)
    )


def _placement(pod: AdmittedPod, policy: Policy, problems: list[str]) -> None:
    spec = pod.spec
    if spec.node_name:
        problems.append(
            f"pod: nodeName={spec.node_name!r}: a pod with devices goes through the scheduler; use nodeSelector "
            f"kubernetes.io/hostname: {spec.node_name}"
        )
    known = spec.scheduler_name == policy.scheduler_name or spec.scheduler_name in policy.replaced_schedulers
    if not known and spec.scheduler_name not in policy.other_schedulers:
        problems.append(
            f"pod: schedulerName={spec.scheduler_name!r}: it does not know who holds which card; remove it or write "
            f"{policy.scheduler_name}"
        )
