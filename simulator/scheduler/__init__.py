"""A scheduler loop that calls an extender exactly as kube-scheduler does."""
