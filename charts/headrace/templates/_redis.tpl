{{/* The server between gateways and engines: where it is, and who may be whom there. */}}

{{- define "headrace.valkeyName" -}}
{{- printf "%s-valkey" (include "headrace.fullname" .) -}}
{{- end -}}

{{- define "headrace.valkeySecret" -}}
{{- .Values.valkey.existingSecret | default (include "headrace.valkeyName" .) -}}
{{- end -}}

{{/* Of (dict "root" $ "service" "gateway"): the URL, without the password. */}}
{{- define "headrace.redisUrl" -}}
{{- $ := .root -}}
{{- if $.Values.valkey.enabled -}}
{{- printf "redis://%s@%s:6379/0" .service (include "headrace.valkeyName" $) -}}
{{- else -}}
{{- $redis := $.Values.externalRedis -}}
{{- $user := get $redis (printf "%sUsername" .service) -}}
{{- if $user -}}{{- $user = printf "%s@" $user -}}{{- end -}}
{{- $scheme := ternary "rediss" "redis" $redis.tls.enabled -}}
{{- if $redis.sentinel.nodes -}}
{{- printf "%s+sentinel://%s%s/%s/%d" $scheme $user (join "," $redis.sentinel.nodes) $redis.sentinel.service (int $redis.database) -}}
{{- else -}}
{{- printf "%s://%s%s:%d/%d" $scheme $user $redis.host (int $redis.port) (int $redis.database) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of the same: environment that leads to secrets and certificates; all of them are files. */}}
{{- define "headrace.redisEnv" -}}
{{- $ := .root -}}
{{- $prefix := printf "HEADRACE_%s" (upper .service) -}}
{{- if or $.Values.valkey.enabled $.Values.externalRedis.existingSecret }}
- name: {{ $prefix }}_REDIS_PASSWORD_FILE
  value: /etc/headrace/redis/password
{{- end }}
{{- if not $.Values.valkey.enabled }}
{{- with $.Values.externalRedis }}
{{- if and .existingSecret .sentinel.passwordKey }}
- name: {{ $prefix }}_REDIS_SENTINEL_PASSWORD_FILE
  value: /etc/headrace/redis/sentinel-password
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of the root: settings of the server's TLS, as YAML, or nothing. */}}
{{- define "headrace.redisTlsSettings" -}}
{{- if and (not .Values.valkey.enabled) .Values.externalRedis.tls.enabled }}
{{- with .Values.externalRedis.tls }}
{{- if .caSecret.name }}
redis_ca_file: /etc/headrace/redis/ca.crt
{{- end }}
{{- if .clientSecret }}
redis_cert_file: /etc/headrace/redis/tls.crt
redis_key_file: /etc/headrace/redis/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of (dict "root" $ "service" "gateway"): the volume of those files, or nothing. */}}
{{- define "headrace.redisVolume" -}}
{{- $ := .root -}}
{{- $sources := list -}}
{{- if $.Values.valkey.enabled -}}
{{- $sources = append $sources (dict "secret" (dict
      "name" (include "headrace.valkeySecret" $)
      "items" (list (dict "key" (printf "%s-password" .service) "path" "password")))) -}}
{{- else -}}
{{- $redis := $.Values.externalRedis -}}
{{- if $redis.existingSecret -}}
{{- $items := list (dict "key" (get $redis (printf "%sPasswordKey" .service)) "path" "password") -}}
{{- with $redis.sentinel.passwordKey -}}
{{- $items = append $items (dict "key" . "path" "sentinel-password") -}}
{{- end -}}
{{- $sources = append $sources (dict "secret" (dict "name" $redis.existingSecret "items" $items)) -}}
{{- end -}}
{{- if $redis.tls.enabled -}}
{{- with $redis.tls.caSecret -}}{{- if .name -}}
{{- $sources = append $sources (dict "secret" (dict "name" .name "items" (list (dict "key" .key "path" "ca.crt")))) -}}
{{- end -}}{{- end -}}
{{- with $redis.tls.clientSecret -}}
{{- $sources = append $sources (dict "secret" (dict "name" . "items" (list
      (dict "key" "tls.crt" "path" "tls.crt") (dict "key" "tls.key" "path" "tls.key")))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $sources }}
- name: redis
  projected:
    defaultMode: 0440
    sources:
      {{- toYaml . | nindent 6 }}
{{- end }}
{{- end -}}
