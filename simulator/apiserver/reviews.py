"""The types that answer a question instead of being stored: token and access reviews, token requests."""

from simulator.apiserver import identity, subresources
from simulator.apiserver.calls import Call, State
from simulator.apiserver.failures import Object, not_found
from simulator.apiserver.identity import Tokens

_DEFAULT_TOKEN_SECONDS = 3600


def answer(tokens: Tokens, call: Call, body: Object) -> Object:
    """Fill in the status of a review. Everybody may do everything on this server, and it says so."""
    review = dict(body)
    review.update({"kind": call.resource.kind, "apiVersion": call.resource.api_version})
    review.setdefault("metadata", {})
    caller = {"username": call.user, "groups": list(call.groups)}
    match call.resource.plural:
        case "tokenreviews":
            user = tokens.find((body.get("spec") or {}).get("token", ""))
            review["status"] = {"authenticated": user is not None}
            if user is not None:
                review["status"]["user"] = {"username": user.name, "groups": [*user.groups, "system:authenticated"]}
        case "selfsubjectreviews":
            review["status"] = {"userInfo": caller}
        case "selfsubjectrulesreviews":
            rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            paths = {"verbs": ["*"], "nonResourceURLs": ["*"]}
            review["status"] = {"resourceRules": [rule], "nonResourceRules": [paths], "incomplete": False}
        case _:
            review["status"] = {"allowed": True, "reason": "this server authorises every authenticated user"}
    return review


def issue_token(state: State, tokens: Tokens, call: Call, body: Object) -> Object:
    """Issue a service account's token (serviceaccounts/token)."""
    if state.store.get(call.storage, call.namespace, call.name) is None:
        raise not_found(call.resource.plural, call.resource.group, call.name)
    user = identity.service_account(call.namespace, call.name)
    tokens.add(user)
    seconds = int((body.get("spec") or {}).get("expirationSeconds") or _DEFAULT_TOKEN_SECONDS)
    status = {"token": user.token, "expirationTimestamp": subresources.expires(state, seconds)}
    return {**body, "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "status": status}
