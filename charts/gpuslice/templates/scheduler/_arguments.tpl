{{- define "gpuslice.extenderArguments" -}}
{{- $scheduler := .Values.scheduler -}}
- --namespace={{ .Release.Namespace }}
- --lease-name={{ $scheduler.name }}
- --identity=$(POD_NAME)
- --follow-lease
- --node-policy={{ $scheduler.nodePolicy }}
- --card-policy={{ $scheduler.cardPolicy }}
- --scoring={{ $scheduler.scoring }}
- --best-nodes={{ $scheduler.bestNodes }}
- {{ ternary "--preemption" "--no-preemption" $scheduler.preemption }}
- {{ ternary "--placement-events" "--no-placement-events" $scheduler.placementEvents }}
- --bind-timeout-seconds={{ sub (int $scheduler.extender.httpTimeoutSeconds) 1 }}
{{- end -}}
