"""Benchmarks: one module a subject, each prints a table and, as its last line, one line of JSON."""
