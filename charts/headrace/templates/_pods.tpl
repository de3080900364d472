{{/* What all pods of the release have in common. Every pod satisfies Pod Security `restricted`. */}}

{{/* Of (dict "root" $ "component" "gateway"): the head of a pod's spec. */}}
{{- define "headrace.podHead" -}}
serviceAccountName: {{ include "headrace.fullname" .root }}-{{ .component }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{/* What all containers have. The last lines of one that failed are in `kubectl describe pod`. */}}
{{- define "headrace.containerHead" -}}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Of an amount: as text. A number is one to a new API server alone: an old one refuses it when helm 4
applies. */}}
{{- define "headrace.quantity" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* Of requests and limits: the same with amounts as text. */}}
{{- define "headrace.resources" -}}
{{- $made := dict -}}
{{- range $side, $amounts := . -}}
{{- $texts := dict -}}
{{- range $name, $amount := $amounts -}}
{{- $_ := set $texts $name (include "headrace.quantity" $amount) -}}
{{- end -}}
{{- $_ := set $made $side $texts -}}
{{- end -}}
{{- toYaml $made -}}
{{- end -}}

{{/* Of (dict "root" $ "pod" values "selector" text): where the pod goes. */}}
{{- define "headrace.placement" -}}
{{- with .pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .pod.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with .pod.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Of the same: its spread, evenly over nodes unless the values say otherwise. */}}
{{- define "headrace.spread" -}}
{{- $selector := dict "matchLabels" (fromYaml .selector) -}}
{{- $usual := list (dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway") -}}
topologySpreadConstraints:
{{- range .pod.topologySpreadConstraints | default $usual }}
  - {{- mustMerge (deepCopy .) (dict "labelSelector" $selector) | toYaml | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Of (dict "path" "/health/ready" "port" "http" "scheme" "HTTP"). */}}
{{- define "headrace.httpGet" -}}
httpGet:
  path: {{ .path }}
  port: {{ .port }}
  scheme: {{ .scheme | default "HTTP" }}
{{- end -}}

{{- define "headrace.gatewayScheme" -}}
{{- ternary "HTTPS" "HTTP" .Values.gateway.tls.enabled -}}
{{- end -}}

{{- define "headrace.tlsSecret" -}}
{{- .Values.gateway.tls.secretName | default (printf "%s-tls" (include "headrace.fullname" .)) -}}
{{- end -}}

{{- define "headrace.authSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-auth" (include "headrace.fullname" .)) -}}
{{- end -}}
