{{/* The settings file of a service: one section, what the chart decides over what the values say. */}}

{{- define "headrace.scalesFromZero" -}}
{{- range $key, $model := fromYaml (include "headrace.models" .) -}}
{{- if and $model.keda.enabled (eq (int $model.keda.minReplicas) 0) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{- define "headrace.gatewaySettings" -}}
{{- $own := mustMergeOverwrite (deepCopy .Values.settings) (deepCopy .Values.gateway.settings) -}}
{{- if include "headrace.scalesFromZero" . -}}
{{- $_ := set $own "scale_from_zero" true -}}
{{- end -}}
{{- $ours := dict
      "http_host" "0.0.0.0" "http_port" 8000 "grpc_host" "0.0.0.0" "grpc_port" 9000
      "redis_url" (include "headrace.redisUrl" (dict "root" . "service" "gateway")) -}}
{{- if .Values.gateway.tls.enabled -}}
{{- $ours = merge $ours (dict "tls_cert_file" "/etc/headrace/tls/tls.crt" "tls_key_file" "/etc/headrace/tls/tls.key") -}}
{{- end -}}
{{- $ours = merge $ours (fromYaml (include "headrace.redisTlsSettings" .)) -}}
{{- toYaml (dict "gateway" (mustMergeOverwrite $own $ours)) -}}
{{- end -}}

{{/* Of (dict "root" $ "model" merged). */}}
{{- define "headrace.engineSettings" -}}
{{- $ours := dict
      "model" (include "headrace.modelPath" .model) "model_name" .model.name
      "http_host" "0.0.0.0" "http_port" 9100 "cache_dir" "/var/cache/headrace"
      "redis_url" (include "headrace.redisUrl" (dict "root" .root "service" "engine")) -}}
{{- with .model.sha256 -}}{{- $_ := set $ours "model_sha256" . -}}{{- end -}}
{{- if eq .model.workload "StatefulSet" -}}{{- $_ := set $ours "sole_name" true -}}{{- end -}}
{{- $ours = merge $ours (fromYaml (include "headrace.redisTlsSettings" .root)) -}}
{{- toYaml (dict "engine" (mustMergeOverwrite (deepCopy .model.settings) $ours)) -}}
{{- end -}}
