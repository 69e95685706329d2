"""Rows of refusals: one request, and the code, reason and words with which it is refused."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.contract.client import JSON, Client

PODS = "/api/v1/namespaces/{ns}/pods"
MAPS = "/api/v1/namespaces/{ns}/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"


@dataclass(frozen=True)
class Row:
    """One request and its refusal; `said` is a part of the message, {ns} stands for the namespace."""

    method: str
    path: str
    body: Any
    code: int
    reason: str
    said: str = ""
    content_type: str = JSON


def row(story: str, *fields: Any, **named: Any) -> Any:
    return pytest.param(Row(*fields, **named), id=story)


def refuse(api: Client, ns: str, case: Row) -> None:
    answer = api.call(case.method, case.path.format(ns=ns), case.body, case.content_type)
    assert answer.refusal[:2] == (case.code, case.reason), answer.body
    assert case.said.format(ns=ns) in answer.refusal[2]
    assert (answer.body["kind"], answer.body["status"], answer.body["code"]) == ("Status", "Failure", case.code)
