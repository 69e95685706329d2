{{/* Names. A release called "gpuslice" gives gpuslice-scheduler, gpuslice-webhook, gpuslice-node. */}}
{{- define "gpuslice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpuslice.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "gpuslice.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "gpuslice.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Service account of a component: (list $ "scheduler"). */}}
{{- define "gpuslice.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $account := (index $root.Values $component).serviceAccount -}}
{{- $account.name | default (printf "%s-%s" (include "gpuslice.fullname" $root) $component) -}}
{{- end -}}

{{/* User name under which a component talks to the API server. */}}
{{- define "gpuslice.user" -}}
{{- printf "system:serviceaccount:%s:%s" (index . 0).Release.Namespace (include "gpuslice.serviceAccount" .) -}}
{{- end -}}

{{/* Labels of an object: (list $ "scheduler"). */}}
{{- define "gpuslice.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: gpuslice
{{ include "gpuslice.selector" . }}
{{- end -}}

{{- define "gpuslice.selector" -}}
app.kubernetes.io/name: {{ include "gpuslice.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Image of the daemons. */}}
{{- define "gpuslice.image" -}}
{{- include "gpuslice.imageReference" (list . .Values.image (.Values.image.tag | default .Chart.AppVersion)) -}}
{{- end -}}

{{/* Image of kube-scheduler: the cluster's own version without a distribution's suffix, unless a tag is given. */}}
{{- define "gpuslice.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler.image -}}
{{- $tag := $image.tag | default (regexFind "^v?[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) -}}
{{- include "gpuslice.imageReference" (list . $image $tag) -}}
{{- end -}}

{{- define "gpuslice.imageReference" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $repository := $image.repository -}}
{{- if $root.Values.global.imageRegistry -}}
{{- $repository = printf "%s/%s" $root.Values.global.imageRegistry $repository -}}
{{- else if $image.registry -}}
{{- $repository = printf "%s/%s" $image.registry $repository -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (index . 2) -}}
{{- end -}}
{{- end -}}

{{/* Fields of every pod template: (list $ "scheduler"). */}}
{{- define "gpuslice.podFields" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
serviceAccountName: {{ include "gpuslice.serviceAccount" . }}
{{- with $root.Values.global.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
{{- end -}}

{{/* Security context of a container that needs nothing of its node ("restricted"). */}}
{{- define "gpuslice.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "gpuslice.probes" -}}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 3
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 3
{{- end -}}

{{- define "gpuslice.logArguments" -}}
- --log-level={{ .Values.global.logLevel }}
- --log-format={{ .Values.global.logFormat }}
{{- end -}}
