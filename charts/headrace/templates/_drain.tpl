{{/* How long leaving takes. The margins are what a service does after its drain: last words on
connections and good-bye to the server (gateway), three exchanges with the server and two thread
joins (engine). */}}

{{- define "headrace.gatewayGraceLeast" -}}
{{- $own := .Values.gateway.settings -}}
{{- $notice := 0.0 -}}{{- if hasKey $own "drain_notice_s" -}}{{- $notice = $own.drain_notice_s | default 0.0 -}}{{- end -}}
{{- $drain := 30.0 -}}{{- if and (hasKey $own "drain_s") (ne (toString $own.drain_s) "<nil>") -}}{{- $drain = $own.drain_s -}}{{- end -}}
{{- add (ceil (addf $notice $drain)) 10 -}}
{{- end -}}

{{- define "headrace.gatewayGrace" -}}
{{- .Values.gateway.terminationGracePeriodSeconds | default (include "headrace.gatewayGraceLeast" .) -}}
{{- end -}}

{{/* Of a merged model. */}}
{{- define "headrace.engineGraceLeast" -}}
{{- $drain := 30.0 -}}{{- if and (hasKey .settings "drain_s") (ne (toString .settings.drain_s) "<nil>") -}}{{- $drain = .settings.drain_s -}}{{- end -}}
{{- add (ceil $drain) 15 -}}
{{- end -}}

{{- define "headrace.engineGrace" -}}
{{- .terminationGracePeriodSeconds | default (include "headrace.engineGraceLeast" .) -}}
{{- end -}}
