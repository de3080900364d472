{{/* The pod of an engine. Of (dict "root" $ "model" merged). */}}
{{- define "headrace.enginePod" -}}
{{- $ := .root -}}
{{- $model := .model -}}
{{- $selector := include "headrace.selector" (dict "root" $ "component" "engine" "model" $model.key) -}}
{{- $image := ternary (include "headrace.image" (dict "root" $ "image" $.Values.images.engineCuda "suffix" "-cuda")) (include "headrace.image" (dict "root" $ "image" $.Values.images.engine)) (eq $model.executor "cuda") -}}
{{- $policy := ternary $.Values.images.engineCuda.pullPolicy $.Values.images.engine.pullPolicy (eq $model.executor "cuda") -}}
metadata:
  labels:
    {{- include "headrace.labels" (dict "root" $ "component" "engine" "model" $model.key) | nindent 4 }}
    {{- if include "headrace.isDownloaded" $model }}
    headrace.io/downloads: "true"
    {{- end }}
    {{- with $model.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/settings: {{ include "headrace.engineSettings" . | sha256sum }}
    {{- with include "headrace.passwordAnnotation" $ }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $model.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "headrace.podHead" (dict "root" $ "component" "engine") | nindent 2 }}
  {{- with include "headrace.placement" (dict "pod" $model) | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- include "headrace.spread" (dict "pod" $model "selector" $selector) | nindent 2 }}
  # SIGTERM: claims no more, drain_s for what runs, then hands the rest back to the queue.
  terminationGracePeriodSeconds: {{ include "headrace.engineGrace" $model }}
  {{- if include "headrace.isDownloaded" $model }}
  initContainers:
    - name: loader
      image: {{ include "headrace.image" (dict "root" $ "image" $.Values.images.cli) | quote }}
      imagePullPolicy: {{ $.Values.images.cli.pullPolicy }}
      {{- include "headrace.containerHead" $ | nindent 6 }}
      args:
        - fetch
        - {{ $model.artifact | quote }}
        {{- if $model.loader.verify }}
        - --verify
        {{- end }}
      env:
        - name: HF_HOME
          value: /var/cache/headrace/hf
        {{- with $model.loader.endpoint }}
        - name: HF_ENDPOINT
          value: {{ . | quote }}
        {{- end }}
        {{- if $model.loader.tokenSecret.name }}
        - name: HF_TOKEN_PATH
          value: /etc/headrace/hub/token
        {{- end }}
      resources:
        {{- include "headrace.resources" $model.loader.resources | nindent 8 }}
      volumeMounts:
        - name: cache
          mountPath: /var/cache/headrace
        - name: tmp
          mountPath: /tmp
        {{- if $model.loader.tokenSecret.name }}
        - name: hub
          mountPath: /etc/headrace/hub
          readOnly: true
        {{- end }}
  {{- end }}
  containers:
    - name: engine
      image: {{ $image | quote }}
      imagePullPolicy: {{ $policy }}
      {{- include "headrace.containerHead" $ | nindent 6 }}
      ports:
        - name: metrics
          containerPort: 9100
          protocol: TCP
      env:
        - name: HEADRACE_CONFIG_FILE
          value: /etc/headrace/settings/headrace.yaml
        - name: HEADRACE_ENGINE_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        {{- with include "headrace.redisEnv" (dict "root" $ "service" "engine") | trim }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- if include "headrace.isDownloaded" $model }}
        - name: HF_HOME
          value: /var/cache/headrace/hf
        - name: HF_HUB_OFFLINE
          value: "1"
        {{- end }}
        {{- with $model.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $model.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      # Loading takes its time, and only this probe knows how much: liveness and readiness wait for it.
      startupProbe:
        {{- include "headrace.httpGet" (dict "path" "/health/ready" "port" "metrics") | nindent 8 }}
        periodSeconds: 2
        timeoutSeconds: 3
        failureThreshold: {{ max 1 (div (add $model.startupSeconds 1) 2) }}
      readinessProbe:
        {{- include "headrace.httpGet" (dict "path" "/health/ready" "port" "metrics") | nindent 8 }}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 2
      livenessProbe:
        {{- include "headrace.httpGet" (dict "path" "/health/live" "port" "metrics") | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      resources:
        {{- $resources := deepCopy $model.resources }}
        {{- with $model.accelerator.resource }}
        {{- $one := dict . 1 }}
        {{- $resources = mustMergeOverwrite $resources (dict "limits" (deepCopy $one) "requests" (deepCopy $one)) }}
        {{- end }}
        {{- include "headrace.resources" $resources | nindent 8 }}
      volumeMounts:
        - name: settings
          mountPath: /etc/headrace/settings
          readOnly: true
        {{- if include "headrace.redisVolume" (dict "root" $ "service" "engine") }}
        - name: redis
          mountPath: /etc/headrace/redis
          readOnly: true
        {{- end }}
        - name: cache
          mountPath: /var/cache/headrace
        {{- if hasPrefix "pvc://" $model.artifact }}
        - name: models
          mountPath: /models
          readOnly: true
        {{- end }}
        - name: shm
          mountPath: /dev/shm
        - name: tmp
          mountPath: /tmp
        {{- with $model.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: settings
      configMap:
        name: {{ $model.fullname }}
    {{- with include "headrace.redisVolume" (dict "root" $ "service" "engine") | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- if eq $model.cache.type "emptyDir" }}
    - name: cache
      emptyDir:
        sizeLimit: {{ $model.cache.size }}
    {{- else if eq $model.cache.type "existingClaim" }}
    - name: cache
      persistentVolumeClaim:
        claimName: {{ $model.cache.existingClaim }}
    {{- else if eq $model.workload "Deployment" }}
    - name: cache
      persistentVolumeClaim:
        claimName: {{ $model.fullname }}-cache
    {{- end }}
    {{- if hasPrefix "pvc://" $model.artifact }}
    - name: models
      persistentVolumeClaim:
        claimName: {{ include "headrace.modelClaim" $model }}
        readOnly: true
    {{- end }}
    {{- if and (include "headrace.isDownloaded" $model) $model.loader.tokenSecret.name }}
    - name: hub
      secret:
        secretName: {{ $model.loader.tokenSecret.name }}
        defaultMode: 0440
        items:
          - key: {{ $model.loader.tokenSecret.key }}
            path: token
    {{- end }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ include "headrace.quantity" $model.shmSize | quote }}
    - name: tmp
      emptyDir:
        sizeLimit: 1Gi
    {{- with $model.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The claim of an engine's cache: metadata's name is the caller's. Of a merged model. */}}
{{- define "headrace.cacheClaimSpec" -}}
accessModes:
  {{- toYaml .cache.accessModes | nindent 2 }}
{{- with .cache.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .cache.size }}
{{- end -}}
