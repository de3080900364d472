{{/* Which version of an API this cluster has. Both questions are asked: a real cluster answers the
second, `helm template --kube-version` the first. */}}

{{- define "headrace.pdbVersion" -}}
{{- if and (semverCompare ">=1.21-0" .Capabilities.KubeVersion.Version) (.Capabilities.APIVersions.Has "policy/v1") -}}
policy/v1
{{- else -}}
policy/v1beta1
{{- end -}}
{{- end -}}

{{- define "headrace.hpaVersion" -}}
{{- if and (semverCompare ">=1.23-0" .Capabilities.KubeVersion.Version) (.Capabilities.APIVersions.Has "autoscaling/v2") -}}
autoscaling/v2
{{- else -}}
autoscaling/v2beta2
{{- end -}}
{{- end -}}
