{{- define "gpuslice.webhookArguments" -}}
{{- $webhook := .Values.webhook -}}
- --system-namespace={{ .Release.Namespace }}
- --trusted-user={{ include "gpuslice.user" (list . "scheduler") }}
- --trusted-user={{ include "gpuslice.user" (list . "node") }}
- --scheduler-name={{ .Values.scheduler.name }}
{{- range $webhook.otherSchedulers }}
- --other-scheduler={{ . }}
{{- end }}
- --privileged={{ $webhook.privileged }}
- --host-pid={{ $webhook.hostPid }}
- --host-devices={{ $webhook.hostDevices }}
- {{ ternary "--hide-cards" "--no-hide-cards" $webhook.hideCards }}
{{- with $webhook.runtimeClass }}
- --runtime-class={{ . }}
{{- end }}
{{- if $webhook.namespacePolicies }}
- --namespace-policy=/etc/gpuslice/policy/namespaces.yaml
{{- end }}
{{- end -}}
