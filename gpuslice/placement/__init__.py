"""Pure decisions: who holds what (ledger), what fits where (fit, scan), what is best (policies), and why (explain)."""
