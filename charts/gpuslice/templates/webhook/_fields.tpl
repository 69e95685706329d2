{{/* What the webhook entries have in common. */}}

{{- define "gpuslice.webhookMetadata" -}}
name: {{ include "gpuslice.fullname" . }}-webhook
labels: {{- include "gpuslice.labels" (list . "webhook") | nindent 2 }}
{{- if .Values.webhook.tls.certManager.enabled }}
annotations:
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/{{ include "gpuslice.fullname" . }}-webhook
{{- end }}
{{- end -}}

{{- define "gpuslice.webhookFields" -}}
{{- $root := index . 0 -}}
{{- $path := index . 1 -}}
{{- $tls := include "gpuslice.webhookTls" $root | fromJson -}}
admissionReviewVersions: [v1]
sideEffects: None
matchPolicy: Equivalent
timeoutSeconds: {{ $root.Values.webhook.timeoutSeconds }}
clientConfig:
  {{- with $tls.caBundle }}
  caBundle: {{ . }}
  {{- end }}
  {{- if $root.Values.webhook.url }}
  url: {{ trimSuffix "/" $root.Values.webhook.url }}/{{ $path }}
  {{- else }}
  service:
    name: {{ include "gpuslice.fullname" $root }}-webhook
    namespace: {{ $root.Release.Namespace }}
    port: 443
    path: /{{ $path }}
  {{- end }}
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values:
        {{- concat (list "kube-system" $root.Release.Namespace) $root.Values.webhook.excludedNamespaces | uniq | toYaml | nindent 8 }}
{{- end -}}

{{/* Our daemons write the annotations that this webhook protects, also while it is down. */}}
{{- define "gpuslice.notOurDaemons" -}}
{{- $users := list (include "gpuslice.user" (list . "scheduler")) (include "gpuslice.user" (list . "node")) -}}
- name: not-our-daemons
  expression: "!(request.userInfo.username in {{ include "gpuslice.cel.list" $users }})"
{{- end -}}
