{{- define "fabrictime.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Name of an object of no namespace: releases of one name in two namespaces have their own. */}}
{{- define "fabrictime.clusterName" -}}
{{ .root.Release.Namespace }}-{{ include "fabrictime.name" .root }}-{{ .component }}
{{- end }}

{{/* Labels that select the pods of a component. In: root, component. */}}
{{- define "fabrictime.selector" -}}
app.kubernetes.io/name: fabrictime
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Name, namespace and labels of an object. In: root, component; isCluster: it belongs to no namespace. */}}
{{- define "fabrictime.metadata" -}}
{{- if .isCluster }}
name: {{ include "fabrictime.clusterName" . }}
{{- else }}
name: {{ include "fabrictime.name" .root }}-{{ .component }}
namespace: {{ .root.Release.Namespace }}
{{- end }}
labels:
  {{- include "fabrictime.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* The tables of the settings, as JSON. Ports, partitions and groups come from there and from no second value. */}}
{{- define "fabrictime.settings" -}}
{{- $settings := fromToml .Values.config }}
{{- if hasKey $settings "Error" }}{{ fail (printf "config: not a TOML file: %s" $settings.Error) }}{{ end }}
{{- toJson $settings }}
{{- end }}

{{- define "fabrictime.metricsPort" -}}
{{ dig "metrics" "port" 8481 (fromJson (include "fabrictime.settings" .)) }}
{{- end }}

{{- define "fabrictime.webPort" -}}
{{ dig "web" "port" 8480 (fromJson (include "fabrictime.settings" .)) }}
{{- end }}

{{- define "fabrictime.group" -}}
{{ dig "streams" "group" "fabrictime" (fromJson (include "fabrictime.settings" .)) }}
{{- end }}

{{- define "fabrictime.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* A service's container: no capability, no root, no writable image. */}}
{{- define "fabrictime.restricted" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Start of a service's pod. OpenShift chooses user and group itself, within the range of the namespace. */}}
{{- define "fabrictime.pod" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
enableServiceLinks: false
# The pause process is process 1: it collects orphans, and SIGTERM ends the service.
shareProcessNamespace: true
securityContext:
  runAsNonRoot: true
  {{- if not .Values.openshift.enabled }}
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Where a pod runs. In: the values of the agent or of a service. */}}
{{- define "fabrictime.scheduling" -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with index $ $key }}
{{ $key }}: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Mounts and volumes of the settings and of existing secrets. In: root, secrets: their names, mode. */}}
{{- define "fabrictime.mounts" -}}
- {name: settings, mountPath: /etc/fabrictime, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: data, mountPath: /var/lib/fabrictime}
{{- range .secrets }}
{{- if index $.root.Values.secrets . }}
- {name: secret-{{ . }}, mountPath: /run/secrets/{{ . }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{- define "fabrictime.volumes" -}}
- {name: settings, configMap: {name: {{ include "fabrictime.name" .root }}-settings}}
- {name: tmp, emptyDir: {}}
{{- range $key := .secrets }}
{{- with index $.root.Values.secrets $key }}
- {name: secret-{{ $key }}, secret: {secretName: {{ . }}, defaultMode: {{ $.mode }}}}
{{- end }}
{{- end }}
{{- end }}
