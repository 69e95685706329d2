"""The node daemon: hands each container exactly the slices that the scheduler chose for it."""
