{{- define "specwatch.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "specwatch" $name) }}{{ $name = printf "%s-specwatch" $name }}{{ end -}}
{{- $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{/* Where the daemon is reached: as configured, else within the cluster. */}}
{{- define "specwatch.url" -}}
{{- .Values.config.external_url | default (printf "http://%s.%s:9469" (include "specwatch.name" .) .Release.Namespace) -}}
{{- end -}}
{{/* Empty unless the guarded workloads are those of pods that are found, whose names are not known before. */}}
{{- define "specwatch.guardsPods" -}}
{{- range .Values.config.discovery -}}
{{- with .kubernetes -}}{{- if .service }}true{{ end -}}{{- end -}}
{{- end -}}
{{- end -}}
