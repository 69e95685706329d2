"""The resource types that the server knows: built-in ones, and those that CustomResourceDefinitions add.

A type is data, not code: `TYPES` is a table. What a type does beyond storing (defaulting, validation, subresources)
is decided by the modules that look at (group, plural).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Resource:
    """One served resource type, at one version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    singular: str = ""
    verbs: tuple[str, ...] = VERBS
    list_kind: str = ""
    custom: bool = False

    @property
    def api_version(self) -> str:
        """`v1`, or `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage(self) -> tuple[str, str]:
        """Key of the collection: all versions of a type share one."""
        return ("", "events") if self.group == "events.k8s.io" else (self.group, self.plural)

    @property
    def head(self) -> bytes:
        """The first bytes of every stored object: its type meta, so that lists can cut it off."""
        return b'{"kind":%s,"apiVersion":%s' % (msgspec.json.encode(self.kind), msgspec.json.encode(self.api_version))

    @property
    def list_name(self) -> str:
        """Kind of the list object."""
        return self.list_kind or f"{self.kind}List"


def _types(group: str, version: str, text: str) -> Iterator[Resource]:
    """Read table rows `plural Kind ns|cluster [short,short] [sub,sub] [category]`; `-` leaves a column empty."""
    for line in text.strip().splitlines():
        plural, kind, scope, *rest = line.split()
        columns = [() if cell == "-" else tuple(cell.split(",")) for cell in rest]
        columns += [()] * (3 - len(columns))
        verbs: tuple[str, ...] = ("create",) if plural in _CREATE_ONLY else VERBS
        yield Resource(
            group, version, plural, kind, scope == "ns", columns[0], columns[1], columns[2], kind.lower(), verbs
        )


_CREATE_ONLY = {
    "bindings", "tokenreviews", "selfsubjectreviews", "subjectaccessreviews", "selfsubjectaccessreviews",
    "selfsubjectrulesreviews", "localsubjectaccessreviews",
}  # fmt: skip

_TABLE: tuple[tuple[str, str, str], ...] = (
    ("", "v1", """
bindings Binding ns
configmaps ConfigMap ns cm
endpoints Endpoints ns ep
events Event ns ev
limitranges LimitRange ns limits
namespaces Namespace cluster ns finalize,status
nodes Node cluster no status
persistentvolumeclaims PersistentVolumeClaim ns pvc status
persistentvolumes PersistentVolume cluster pv status
pods Pod ns po binding,ephemeralcontainers,eviction,resize,status all
podtemplates PodTemplate ns
replicationcontrollers ReplicationController ns rc scale,status all
resourcequotas ResourceQuota ns quota status
secrets Secret ns
serviceaccounts ServiceAccount ns sa token
services Service ns svc status all
"""),
    ("apps", "v1", """
controllerrevisions ControllerRevision ns
daemonsets DaemonSet ns ds status all
deployments Deployment ns deploy scale,status all
replicasets ReplicaSet ns rs scale,status all
statefulsets StatefulSet ns sts scale,status all
"""),
    ("batch", "v1", """
cronjobs CronJob ns cj status all
jobs Job ns - status all
"""),
    ("autoscaling", "v2", "horizontalpodautoscalers HorizontalPodAutoscaler ns hpa status all"),
    ("policy", "v1", "poddisruptionbudgets PodDisruptionBudget ns pdb status"),
    ("coordination.k8s.io", "v1", "leases Lease ns"),
    ("events.k8s.io", "v1", "events Event ns ev"),
    ("scheduling.k8s.io", "v1", "priorityclasses PriorityClass cluster pc"),
    ("discovery.k8s.io", "v1", "endpointslices EndpointSlice ns"),
    ("node.k8s.io", "v1", "runtimeclasses RuntimeClass cluster"),
    ("networking.k8s.io", "v1", """
ingressclasses IngressClass cluster
ingresses Ingress ns ing status
networkpolicies NetworkPolicy ns netpol
"""),
    ("storage.k8s.io", "v1", """
csidrivers CSIDriver cluster
csinodes CSINode cluster
csistoragecapacities CSIStorageCapacity ns
storageclasses StorageClass cluster sc
volumeattachments VolumeAttachment cluster - status
"""),
    ("rbac.authorization.k8s.io", "v1", """
clusterrolebindings ClusterRoleBinding cluster
clusterroles ClusterRole cluster
rolebindings RoleBinding ns
roles Role ns
"""),
    ("admissionregistration.k8s.io", "v1", """
mutatingwebhookconfigurations MutatingWebhookConfiguration cluster
validatingadmissionpolicies ValidatingAdmissionPolicy cluster - status
validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding cluster
validatingwebhookconfigurations ValidatingWebhookConfiguration cluster
"""),
    ("apiextensions.k8s.io", "v1", """
customresourcedefinitions CustomResourceDefinition cluster crd,crds status api-extensions
"""),
    ("authentication.k8s.io", "v1", """
selfsubjectreviews SelfSubjectReview cluster
tokenreviews TokenReview cluster
"""),
    ("authorization.k8s.io", "v1", """
localsubjectaccessreviews LocalSubjectAccessReview ns
selfsubjectaccessreviews SelfSubjectAccessReview cluster
selfsubjectrulesreviews SelfSubjectRulesReview cluster
subjectaccessreviews SubjectAccessReview cluster
"""),
)  # fmt: skip

TYPES: tuple[Resource, ...] = tuple(found for row in _TABLE for found in _types(*row))

# Types whose metadata.generation counts changes of the spec.
GENERATIONS = frozenset(
    {
        ("", "pods"),
        ("", "podtemplates"),
        ("", "replicationcontrollers"),
        ("apps", "daemonsets"),
        ("apps", "deployments"),
        ("apps", "replicasets"),
        ("apps", "statefulsets"),
        ("batch", "jobs"),
        ("batch", "cronjobs"),
        ("policy", "poddisruptionbudgets"),
        ("networking.k8s.io", "networkpolicies"),
        ("networking.k8s.io", "ingresses"),
        ("networking.k8s.io", "ingressclasses"),
        ("discovery.k8s.io", "endpointslices"),
        ("scheduling.k8s.io", "priorityclasses"),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
    }
)


class Registry:
    """Every type served now; CRDs add to it and take from it."""

    def __init__(self) -> None:
        self._types: dict[tuple[str, str, str], Resource] = {(r.group, r.version, r.plural): r for r in TYPES}

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Look a type up by the names in a request path."""
        return self._types.get((group, version, plural))

    def serves(self, group: str, version: str) -> bool:
        """Tell whether any type is served in a group at a version."""
        return any(r.group == group and r.version == version for r in self._types.values())

    def by_kind(self, api_version: str, kind: str) -> Resource | None:
        """Look a type up by the names in an object."""
        for resource in self._types.values():
            if resource.kind == kind and resource.api_version == api_version:
                return resource
        return None

    def add(self, resource: Resource) -> None:
        """Serve one more type (or replace it)."""
        self._types[resource.group, resource.version, resource.plural] = resource

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a type at every version."""
        self._types = {key: r for key, r in self._types.items() if not (key[0] == group and key[2] == plural)}

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._types.values())
