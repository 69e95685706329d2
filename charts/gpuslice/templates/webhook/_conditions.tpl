{{/*
CEL for matchConditions. Only pods that ask for our resources, and writes of annotations that are ours, reach the
webhook; every other pod is created whether the webhook runs or not.
*/}}

{{- define "gpuslice.cel.list" -}}
['{{ join "', '" . }}']
{{- end -}}

{{/* A pod spec asks for one of our resources: (list $ "object.spec"). */}}
{{- define "gpuslice.cel.wantsCards" -}}
{{- $names := include "gpuslice.cel.list" ((index . 0).Files.Get "files/families.json" | fromJson).resources -}}
{{- $spec := index . 1 -}}
({{ $spec }}.containers + {{ $spec }}.?initContainers.orValue([])).exists(c,
c.?resources.limits.orValue({}).exists(k, k in {{ $names }}) ||
c.?resources.requests.orValue({}).exists(k, k in {{ $names }}))
{{- end -}}

{{/* The object carries an annotation that only our daemons write. */}}
{{- define "gpuslice.cel.carriesKey" -}}
{{- $keys := include "gpuslice.cel.list" (.Files.Get "files/families.json" | fromJson).annotations -}}
object.metadata.?annotations.orValue({}).exists(k, k.startsWith('gpuslice.io/') || k in {{ $keys }})
{{- end -}}

{{/* An annotation of ours in one object is missing or different in the other: (list $ "object" "oldObject"). */}}
{{- define "gpuslice.cel.keyDiffers" -}}
{{- $keys := include "gpuslice.cel.list" ((index . 0).Files.Get "files/families.json" | fromJson).annotations -}}
{{- $one := printf "%s.metadata.?annotations.orValue({})" (index . 1) -}}
{{- $other := printf "%s.metadata.?annotations.orValue({})" (index . 2) -}}
{{ $one }}.exists(k, (k.startsWith('gpuslice.io/') || k in {{ $keys }}) &&
!(k in {{ $other }} && {{ $other }}[k] == {{ $one }}[k]))
{{- end -}}

{{/* A pod is created. */}}
{{- define "gpuslice.cel.newPod" -}}
{{ include "gpuslice.cel.wantsCards" (list . "object.spec") }} ||
{{ include "gpuslice.cel.carriesKey" . }}
{{- end -}}

{{/* A pod is changed: a debug container joins a GPU pod, its size changes, or somebody writes our annotations. */}}
{{- define "gpuslice.cel.changedPod" -}}
{{ include "gpuslice.cel.keyDiffers" (list . "object" "oldObject") }} ||
{{ include "gpuslice.cel.keyDiffers" (list . "oldObject" "object") }} ||
(request.?subResource.orValue('') in ['ephemeralcontainers', 'resize'] &&
{{ include "gpuslice.cel.wantsCards" (list . "object.spec") }})
{{- end -}}

{{- define "gpuslice.cel.template" -}}
has(object.spec.jobTemplate) ?
{{ include "gpuslice.cel.wantsCards" (list . "object.spec.jobTemplate.spec.template.spec") }} :
(has(object.spec.template) &&
{{ include "gpuslice.cel.wantsCards" (list . "object.spec.template.spec") }})
{{- end -}}
