"""Defaults by type: what the real server adds when it decodes an object.

Sources: the defaults.go files of k8s.io/kubernetes/pkg/apis. A field nobody looks at is left as it came.
"""

import base64

from simulator.apiserver import pods, quantities
from simulator.apiserver.failures import Object


def default_pod(pod: Object) -> None:
    """Fill in a pod."""
    spec = pod.get("spec")
    if isinstance(spec, dict):
        pods.default_pod_spec(spec)
        pods.default_requests(spec)
    pod["status"] = pod.get("status") or {}
    pods.default_conditions(pod)


_NODE_INFO = dict.fromkeys(
    (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ),
    "",
)


def default_node(node: Object) -> None:
    """Fill in a node."""
    node.setdefault("spec", {})
    status = node.get("status") or {}
    if "capacity" in status and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])
    node["status"] = status
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    status["nodeInfo"] = _NODE_INFO | (status.get("nodeInfo") or {})
    for condition in status.get("conditions") or []:
        condition.setdefault("lastHeartbeatTime", None)
        condition.setdefault("lastTransitionTime", None)
    for part in ("capacity", "allocatable"):
        quantities.canonicalize(status.get(part))


def create_namespace(namespace: Object) -> None:
    """Prepare a new namespace."""
    spec = namespace.setdefault("spec", {})
    spec["finalizers"] = ["kubernetes"]
    namespace["status"] = {"phase": "Active"}
    labels = namespace["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = namespace["metadata"]["name"]


def default_workload(workload: Object) -> None:
    """Fill in a workload."""
    spec = workload.get("spec") or {}
    template = spec.get("template") or {}
    if isinstance(template.get("spec"), dict):
        template.setdefault("metadata", {})
        pods.default_pod_spec(template["spec"], template=True)


def default_replicas(workload: Object) -> None:
    """Fill in a replicas."""
    default_workload(workload)
    spec = workload.setdefault("spec", {})
    if spec.get("replicas") is None:
        spec["replicas"] = 1


def default_deployment(deployment: Object) -> None:
    """Fill in a deployment."""
    default_replicas(deployment)
    spec = deployment["spec"]
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def default_daemonset(daemonset: Object) -> None:
    """Fill in a daemonset."""
    default_workload(daemonset)
    spec = daemonset.setdefault("spec", {})
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {"maxSurge": 0, "maxUnavailable": 1})


def default_service(service: Object) -> None:
    """Fill in a service."""
    spec = service.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec.get("clusterIP"):
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))
    service.setdefault("status", {"loadBalancer": {}})


def default_webhooks(configuration: Object) -> None:
    """Fill in a webhooks."""
    mutating = configuration.get("kind", "").startswith("Mutating")
    for hook in configuration.get("webhooks") or []:
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        hook.setdefault("timeoutSeconds", 10)
        if mutating:
            hook.setdefault("reinvocationPolicy", "Never")
        service = (hook.get("clientConfig") or {}).get("service")
        if service:
            service.setdefault("port", 443)
        for rule in hook.get("rules") or []:
            rule.setdefault("scope", "*")


def default_secret(secret: Object) -> None:
    """Fill in a secret."""
    secret.setdefault("type", "Opaque")
    plain = secret.pop("stringData", None)
    if plain:
        data = secret.setdefault("data", {})
        data.update({key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()})


def default_priority_class(priority_class: Object) -> None:
    """Fill in a priority class."""
    priority_class.setdefault("preemptionPolicy", "PreemptLowerPriority")


def default_binding_subjects(binding: Object) -> None:
    """Fill in a binding subjects."""
    for subject in binding.get("subjects") or []:
        if subject.get("kind") in {"User", "Group"}:
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")
    reference = binding.get("roleRef")
    if isinstance(reference, dict):
        reference.setdefault("apiGroup", "rbac.authorization.k8s.io")


def empty_status(obj: Object) -> None:
    """Begin with an empty status."""
    obj["status"] = {}


def default_job(job: Object) -> None:
    """Fill in a job, but for the selector and labels that only the real server generates."""
    default_workload(job)
    spec = job.setdefault("spec", {})
    for key, value in (
        ("backoffLimit", 6),
        ("completionMode", "NonIndexed"),
        ("completions", 1),
        ("parallelism", 1),
        ("podReplacementPolicy", "TerminatingOrFailed"),
        ("suspend", False),
    ):
        spec.setdefault(key, value)


def default_pod_template(template: Object) -> None:
    """Fill in a pod template object."""
    inner = template.get("template") or {}
    if isinstance(inner.get("spec"), dict):
        inner.setdefault("metadata", {})
        pods.default_pod_spec(inner["spec"], template=True)


def default_event(event: Object) -> None:
    """Fill in an event's empty parts."""
    for key in ("eventTime", "firstTimestamp", "lastTimestamp"):
        event.setdefault(key, None)
    for key in ("reportingComponent", "reportingInstance"):
        event.setdefault(key, "")
    event.setdefault("source", {})


def default_lease(lease: Object) -> None:
    """Give a lease its spec."""
    lease.setdefault("spec", {})


def default_storage_class(storage_class: Object) -> None:
    """Fill in a storage class."""
    storage_class.setdefault("reclaimPolicy", "Delete")
    storage_class.setdefault("volumeBindingMode", "Immediate")


def create_budget(budget: Object) -> None:
    """Begin a disruption budget with nothing allowed, until a controller has counted."""
    budget["status"] = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}


def default_policy(policy: Object) -> None:
    """Fill in an admission policy."""
    spec = policy.setdefault("spec", {})
    spec.setdefault("failurePolicy", "Fail")
    constraints = spec.setdefault("matchConstraints", {})
    constraints.setdefault("matchPolicy", "Equivalent")
    constraints.setdefault("namespaceSelector", {})
    constraints.setdefault("objectSelector", {})
    for rule in constraints.get("resourceRules") or []:
        rule.setdefault("scope", "*")


def default_definition(definition: Object) -> None:
    """Fill in a custom resource definition's names."""
    spec = definition.get("spec") or {}
    spec.setdefault("conversion", {"strategy": "None"})
    names = spec.get("names") or {}
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")


def create_definition(definition: Object) -> None:
    """Accept and establish a custom resource definition at once."""
    spec = definition["spec"]
    stored = [version["name"] for version in spec.get("versions") or [] if version.get("storage")]
    rows = (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    )
    conditions = [
        {"type": type_, "status": "True", "reason": reason, "message": message, "lastTransitionTime": None}
        for type_, reason, message in rows
    ]
    definition["status"] = {"conditions": conditions, "acceptedNames": spec["names"], "storedVersions": stored}
