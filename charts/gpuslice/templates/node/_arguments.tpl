{{- define "gpuslice.nodeArguments" -}}
{{- $paths := .Values.node.paths -}}
- --device-plugin-dir={{ $paths.devicePlugins }}
- --pod-resources-socket={{ $paths.kubelet }}/pod-resources/kubelet.sock
- --state-dir={{ $paths.state }}
- --cdi-dir={{ $paths.cdi }}
- --cgroup-root={{ $paths.cgroup }}
- --library-path={{ $paths.library }}/libvgpu.so
- --node-config=/etc/gpuslice/node.yaml
{{- end -}}

{{/* Root, since the kubelet's sockets and records are root's; nothing else. */}}
{{- define "gpuslice.nodeSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsUser: 0
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}
