{{/* Of (dict "root" $ "monitor" values "component" "gateway" "ports" "podMetricsEndpoints"): what
Prometheus' operator reads from a component. */}}
{{- define "headrace.endpoint" -}}
- port: {{ ternary "http" "metrics" (eq .component "gateway") }}
  path: /metrics
  interval: {{ .monitor.interval }}
  {{- if and (eq .component "gateway") .root.Values.gateway.tls.enabled }}
  scheme: https
  tlsConfig:
    ca:
      secret:
        name: {{ include "headrace.tlsSecret" .root }}
        key: ca.crt
    serverName: {{ include "headrace.fullname" .root }}.{{ .root.Release.Namespace }}.svc
  {{- else }}
  scheme: http
  {{- end }}
  {{- with .monitor.relabelings }}
  relabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .monitor.metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
