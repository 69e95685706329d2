{{/*
Where the webhook's certificate comes from, as JSON {caBundle, secret, certificate, key}; base64.

certManager.enabled: cert-manager issues it and injects the bundle. existingSecret: the user brings it with caBundle.
Otherwise the chart makes an authority of its own, and keeps what an earlier release of it has made. The result is
remembered, since generating it twice would give a bundle that does not fit the certificate.
*/}}
{{- define "gpuslice.webhookTls" -}}
{{- $name := printf "%s-webhook" (include "gpuslice.fullname" .) -}}
{{- $tls := .Values.webhook.tls -}}
{{- if $tls.certManager.enabled -}}
{{- dict "secret" (printf "%s-tls" $name) | toJson -}}
{{- else if $tls.existingSecret -}}
{{- dict "secret" $tls.existingSecret "caBundle" (required "webhook.tls.caBundle is needed with webhook.tls.existingSecret: the base64 of the PEM that signed it" $tls.caBundle) | toJson -}}
{{- else -}}
{{- if not (hasKey .Release "gpusliceTls") -}}
{{- $_ := set .Release "gpusliceTls" (include "gpuslice.generatedTls" . | fromJson) -}}
{{- end -}}
{{- .Release.gpusliceTls | toJson -}}
{{- end -}}
{{- end -}}

{{- define "gpuslice.generatedTls" -}}
{{- $name := printf "%s-webhook" (include "gpuslice.fullname" .) -}}
{{- $secret := printf "%s-tls" $name -}}
{{- $existing := lookup "v1" "Secret" .Release.Namespace $secret -}}
{{- $data := dict -}}
{{- if $existing -}}{{- $data = $existing.data | default dict -}}{{- end -}}
{{- if and (hasKey $data "ca.crt") (hasKey $data "tls.crt") (hasKey $data "tls.key") -}}
{{- dict "secret" $secret "caBundle" (index $data "ca.crt") "certificate" (index $data "tls.crt") "key" (index $data "tls.key") | toJson -}}
{{- else -}}
{{- $host := printf "%s.%s.svc" $name .Release.Namespace -}}
{{- $days := int .Values.webhook.tls.validityDays -}}
{{- $authority := genCA (printf "%s-ca" $name) $days -}}
{{- $addresses := list -}}
{{- if .Values.webhook.url -}}
{{- $addresses = list (urlParse .Values.webhook.url).host -}}
{{- $addresses = list (regexReplaceAll ":[0-9]+$" (index $addresses 0) "") -}}
{{- end -}}
{{- $ips := list -}}
{{- $names := list $host (printf "%s.%s" $name .Release.Namespace) -}}
{{- range $addresses -}}
{{- if regexMatch "^[0-9.]+$" . -}}{{- $ips = append $ips . -}}{{- else -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- $certificate := genSignedCert $host $ips $names $days $authority -}}
{{- dict "secret" $secret "caBundle" ($authority.Cert | b64enc) "certificate" ($certificate.Cert | b64enc) "key" ($certificate.Key | b64enc) | toJson -}}
{{- end -}}
{{- end -}}
