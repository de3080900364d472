{{/* Names, labels, images. */}}

{{- define "headrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters: pods and models add theirs, and a pod's name is at most 63. */}}
{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "headrace.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of (dict "root" $ "component" "gateway" ["model" "key"]): what finds the pods. */}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ include "headrace.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .model }}
headrace.io/model: {{ . }}
{{- end }}
{{- end -}}

{{/* Of the same: every label. */}}
{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: headrace
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Of (dict "root" $ ["annotations" dict]): the annotations of an object's metadata, or nothing. */}}
{{- define "headrace.annotations" -}}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations -}}
{{- dict "annotations" . | toYaml | nindent 2 -}}
{{- end -}}
{{- end -}}

{{/* Of (dict "root" $ "image" .Values.images.x ["suffix" "-cuda"]): registry, repository, tag or digest. */}}
{{- define "headrace.image" -}}
{{- $registry := .image.registry | default .root.Values.global.imageRegistry -}}
{{- $name := .image.repository -}}
{{- if $registry -}}{{- $name = printf "%s/%s" $registry $name -}}{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.image.tag | default (printf "%s%s" .root.Chart.AppVersion (.suffix | default ""))) -}}
{{- end -}}
{{- end -}}

{{/* Of (dict "url" text "default" port): the port that an address names. */}}
{{- define "headrace.portOf" -}}
{{- $host := regexReplaceAll "^[a-z]+://" .url "" | splitList "/" | first -}}
{{- regexFind ":[0-9]+$" $host | trimPrefix ":" | default .default -}}
{{- end -}}
