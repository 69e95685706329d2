"""A kubelet without privileges: the device manager, the pod life cycle and the sockets of the real one, in Python.

It behaves like the kubelet (1.34) in what a device plugin can see, and runs each container's command as a real process
with the environment and the files that the plugin answered. See docs/decisions/0071.
"""
