{{/* Of (dict "root" $ "monitor" values "component" "gateway" "ports" "podMetricsEndpoints"): what
Prometheus' operator reads from a component. */}}
{{- define "headrace.endpoint" -}}
- port: {{ ternary "http" "metrics" (eq .component "gateway") }}
  path: /metrics
  interval: {{ .monitor.interval }}
  {{- if and (eq .component "gateway") .root.Values.gateway.tls.enabled }}
  scheme: https
  tlsConfig:
    {{- with .root.Values.gateway.tls.caKey }}
    ca:
      secret:
        name: {{ include "headrace.tlsSecret" $.root }}
        key: {{ . }}
    {{- end }}
    serverName: {{ include "headrace.fullname" .root }}.{{ .root.Release.Namespace }}.svc
  {{- else }}
  scheme: http
  {{- end }}
  {{- if and (eq .component "gateway") .root.Values.gateway.settings.metrics_need_key }}
  authorization:
    type: Bearer
    credentials:
      {{- toYaml .root.Values.metrics.keySecret | nindent 6 }}
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
