"""Admission: the built-in plugins, webhooks that are really called, and admission policies in CEL."""

from simulator.apiserver.admission.chain import Chain

__all__ = ["Chain"]
