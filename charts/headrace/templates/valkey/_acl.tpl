{{/* Users of the bundled server. Gateways reach everything under our prefix; engines all but API
keys; the autoscaler counts what waits and runs; anybody may ask whether it is alive. Nobody can be
`default`, except the server itself when it reads its append-only file: what that user may not do is
lost then. Of (dict "gateway" passwords "engine" passwords "autoscaler" passwords): lists, each of the
password and, where it was changed, the one before. */}}
{{- define "headrace.acl" -}}
{{- $service := "+@read +@write +@connection +@transaction +@stream +eval +evalsha +time -@admin -@dangerous +info +config|get" -}}
user default off resetpass ~* &* +@all
user probe on nopass resetkeys resetchannels -@all +ping
user gateway on {{ include "headrace.hashes" .gateway }} resetkeys resetchannels ~hr:* -@all {{ $service }}
user engine on {{ include "headrace.hashes" .engine }} resetkeys resetchannels ~hr:{* ~hr:models ~hr:gateways ~hr:probe ~hr:blob:* ~hr:ctl:* ~hr:out:* ~hr:engine:* ~hr:gateway:* -@all {{ $service }}
user autoscaler on {{ include "headrace.hashes" .autoscaler }} resetkeys resetchannels ~hr:{*}:queued ~hr:{*}:expiries -@all +@connection +eval +evalsha +type +zcard +llen -@admin -@dangerous
{{ end -}}

{{/* Of a list of passwords: how the list of users has them. */}}
{{- define "headrace.hashes" -}}
{{- range $i, $password := . }}{{ if $i }} {{ end }}#{{ sha256sum $password }}{{ end -}}
{{- end -}}

{{/* Of the root: an annotation that replaces the pods when the chart makes new passwords, or nothing. */}}
{{- define "headrace.passwordAnnotation" -}}
{{- if and .Values.valkey.enabled (not .Values.valkey.existingSecret) -}}
headrace.io/password-generation: {{ .Values.valkey.passwordGeneration | quote }}
{{- end -}}
{{- end -}}
