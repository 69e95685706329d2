"""Subresources that do something: binding, eviction, scale, finalize, token."""

from datetime import timedelta

from simulator.apiserver import calls, deletion, failures, pods, selectors, writes
from simulator.apiserver.calls import Call, State
from simulator.apiserver.failures import Object
from simulator.apiserver.paths import Target

_SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


async def bind(state: State, call: Call, binding: Object) -> Object:
    """Assign a pod to a node: one write sets spec.nodeName and merges the Binding's annotations and labels."""
    meta = binding.get("metadata") or {}
    if meta.get("name") and meta["name"] != call.name:
        raise failures.bad_request("name in URL does not match name in Binding object")
    target = binding.get("target") or {}
    problem = None
    if target.get("kind") not in {None, "", "Node", "Minion"}:
        problem = failures.FieldError(
            "NotSupported", "target.kind", target["kind"], 'supported values: "Node", "<empty>"'
        )
    elif not target.get("name"):
        problem = failures.FieldError("Required", "target.name")
    if problem is not None:
        raise failures.StatusError(500, "", problem.text())  # as the real server answers
    if state.admission is not None:
        binding = await state.admission.mutate(call, "CREATE", binding, None) or binding
        await state.admission.validate(call, "CREATE", binding, None)
        meta = binding.get("metadata") or {}
    pod = call.show(writes.existing(state, call))
    _check_bindable(call, pod, meta)
    if not call.dry_run:
        _assign(state, pod, meta, target["name"])
        state.store.put(call.storage, pod)
    return dict(_SUCCESS)


def _check_bindable(call: Call, pod: Object, meta: Object) -> None:
    found, name = pod["metadata"], call.name
    for field, words in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if meta.get(field) and meta[field] != found[field]:
            why = f"{words} in precondition: {meta[field]}, {words} in object meta: {found[field]}"
            raise writes.failed_precondition(call, why)
    spec = pod["spec"]
    if found.get("deletionTimestamp"):
        raise failures.conflict("pods/binding", "", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise failures.conflict(
            "pods/binding", "", name, f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        )
    if spec.get("schedulingGates"):
        raise failures.conflict("pods/binding", "", name, f"pod {name} has non-empty .spec.schedulingGates")


def _assign(state: State, pod: Object, meta: Object, node: str) -> None:
    pod["spec"]["nodeName"] = node
    if meta.get("annotations"):
        pod["metadata"]["annotations"] = (pod["metadata"].get("annotations") or {}) | meta["annotations"]
    condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": state.now()}
    pods.set_condition(pod, condition)


async def evict(state: State, call: Call, eviction: Object) -> Object:
    """Delete a pod if every PodDisruptionBudget that covers it allows one more disruption."""
    meta = eviction.get("metadata") or {}
    if meta.get("name") and meta["name"] != call.name:
        raise failures.bad_request("name in URL does not match name in Eviction object")
    pod = call.show(writes.existing(state, call))
    ending = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed", "Pending"}
    if not ending and not pod["metadata"].get("deletionTimestamp"):
        _spend_budget(state, call, pod)
    if not call.dry_run:
        _mark_evicted(state, call, pod)
    target = Target("", "v1", "pods", call.namespace, call.name)
    deleting = Call(call.resource, target, call.user, call.groups, call.dry_run)
    await deletion.delete(state, deleting, eviction.get("deleteOptions") or {})
    return dict(_SUCCESS)


def _mark_evicted(state: State, call: Call, pod: Object) -> None:
    """Say in the pod's conditions why it ends; pods that vanish at once are not marked."""
    if not (pod.get("spec") or {}).get("nodeName") or pod["metadata"].get("deletionTimestamp"):
        return
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": state.now(),
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    pods.set_condition(pod, condition)
    state.store.put(call.storage, pod)


def _spend_budget(state: State, call: Call, pod: Object) -> None:
    storage = ("policy", "poddisruptionbudgets")
    labels = pod["metadata"].get("labels") or {}
    found = [entry.decode() for entry in state.store.collection(storage).select(call.namespace, selectors.EVERYTHING)]
    budgets = [budget for budget in found if selectors.labels_match((budget.get("spec") or {}).get("selector"), labels)]
    if len(budgets) > 1:
        raise failures.internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    for budget in budgets:
        _check_budget(budget)
        if not call.dry_run:
            status = budget["status"]
            status["disruptionsAllowed"] -= 1
            status.setdefault("disruptedPods", {})[call.name] = state.now()
            if not status["disruptionsAllowed"]:
                condition: Object = {"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods"}
                pods.set_condition(budget, condition | {"message": "", "lastTransitionTime": state.now()})
            state.store.put(storage, budget)


def _check_budget(budget: Object) -> None:
    status = budget.get("status") or {}
    name = budget["metadata"]["name"]
    words = "Cannot evict pod as it would violate the pod's disruption budget."
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        cause = {
            "reason": "DisruptionBudget",
            "message": f"The disruption budget {name} is still being processed by the server.",
        }
        raise failures.StatusError(429, "TooManyRequests", words, details={"causes": [cause]}, retry_after=10)
    if status.get("disruptionsAllowed", 0) <= 0:
        needed, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        message = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
        cause = {"reason": "DisruptionBudget", "message": message}
        raise failures.StatusError(429, "TooManyRequests", words, details={"causes": [cause]})


def show_scale(obj: Object) -> Object:
    """Render a workload's Scale."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    labels = ((spec.get("selector") or {}).get("matchLabels") or {}).items()
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": spec.get("replicas", 0)},
        "status": {
            "replicas": status.get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in sorted(labels)),
        },
    }


def apply_scale(obj: Object, scale: Object) -> Object:
    """Write a Scale back into its workload."""
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        obj["metadata"]["resourceVersion"] = version
    else:
        obj["metadata"].pop("resourceVersion", None)
    obj["spec"]["replicas"] = (scale.get("spec") or {}).get("replicas", 0)
    return obj


def expires(state: State, seconds: int) -> str:
    """Return the time at which a token of this life expires."""
    return calls.timestamp(state.clock() + timedelta(seconds=seconds))
