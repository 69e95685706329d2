"""The scheduler extender: answers kube-scheduler from the ledger, binds in one write, wakes and preempts."""
