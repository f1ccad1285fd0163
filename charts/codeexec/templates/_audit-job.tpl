{{/*
A CronJob about the audit log, with an account of its own that reads the operator's log. Arguments: the root context, the
name of the job's values in `audit`, and more arguments of its command.
*/}}
{{- define "codeexec.auditJobName" -}}
{{- /* The name of a CronJob has 52 characters at most. */ -}}
{{- $suffix := index . 1 -}}
{{- include "codeexec.fullname" (index . 0) | trunc 40 | trimSuffix "-" }}-{{ $suffix }}
{{- end }}

{{- define "codeexec.auditJob" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $arguments := index . 2 }}
{{- $folder := printf "/%s" $component }}
{{- $name := include "codeexec.auditJobName" (list $root $component) }}
{{- with index $root.Values.audit $component }}
{{- if eq (empty .claimName) (empty .destination) }}
{{- fail (printf "audit.%s.claimName is %q and audit.%s.destination is %q: set one of the two, a PersistentVolumeClaim of the release's namespace or a URL of an object storage, such as s3://BUCKET/FOLDER" $component .claimName $component .destination) }}
{{- end }}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "codeexec.metadata" (list $root $name $root.Release.Namespace) | nindent 2 }}
# The job's pod sets automountServiceAccountToken itself.
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "codeexec.metadata" (list $root $name $root.Release.Namespace) | nindent 2 }}
rules:
  # The operator's log.
  - apiGroups: [""]
    resources: [pods]
    verbs: [list]
  - apiGroups: [""]
    resources: [pods/log]
    verbs: [get]
---
{{ include "codeexec.roleBinding" (list $root $name $root.Release.Namespace) }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "codeexec.metadata" (list $root $name $root.Release.Namespace) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "codeexec.auditJobSelector" (list $root $component) | nindent 6 }}
  policyTypes: [Ingress, Egress]
  egress:
    # DNS, at any address: some clusters run it on the node itself.
    - ports:
        - port: 53
          protocol: UDP
        - port: 53
          protocol: TCP
    # The API server, and the object storage. No selector matches them.
    - ports:
        {{- range concat $root.Values.operator.networkPolicy.apiServerPorts .ports | uniq }}
        - port: {{ . | toJson }}
        {{- end }}
---
apiVersion: batch/v1
kind: CronJob
metadata:
  {{- include "codeexec.metadata" (list $root $name $root.Release.Namespace) | nindent 2 }}
    app.kubernetes.io/component: {{ $component }}
spec:
  schedule: {{ .schedule | quote }}
  # Two jobs at once would try to write the same file.
  concurrencyPolicy: Forbid
  successfulJobsHistoryLimit: 1
  # A failed job is how a changed log, or a full storage, is noticed. Its pod's log says what was found.
  failedJobsHistoryLimit: 3
  jobTemplate:
    spec:
      backoffLimit: 2
      activeDeadlineSeconds: 600
      template:
        metadata:
          labels:
            {{- include "codeexec.labels" $root | nindent 12 }}
            app.kubernetes.io/component: {{ $component }}
        spec:
          restartPolicy: Never
          serviceAccountName: {{ $name | quote }}
          automountServiceAccountToken: true
          enableServiceLinks: false
          {{- with $root.Values.operator.imagePullSecrets }}
          imagePullSecrets:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- include "codeexec.podSecurityContext" $root | nindent 12 }}
          containers:
            - name: {{ trimSuffix "s" $component | quote }}
              image: {{ include "codeexec.operatorImage" $root | quote }}
              imagePullPolicy: {{ $root.Values.image.pullPolicy }}
              command: [python3, -m, executor_client, audit, {{ trimSuffix "s" $component }}]
              args:
                - --operator-namespace
                - {{ $root.Release.Namespace | quote }}
                {{- range $arguments }}
                - {{ . | quote }}
                {{- end }}
                - --to
                - {{ .destination | default (printf "file://%s" $folder) | quote }}
              {{- with .environment }}
              env:
                {{- range $variable, $value := . }}
                - name: {{ $variable | quote }}
                  value: {{ $value | quote }}
                {{- end }}
              {{- end }}
              {{- with .environmentSecret }}
              envFrom:
                - secretRef:
                    name: {{ . | quote }}
              {{- end }}
              securityContext:
                {{- include "codeexec.containerSecurityContext" $root | nindent 16 }}
              resources:
                requests:
                  cpu: 50m
                  memory: 128Mi
                limits:
                  cpu: "1"
                  memory: 512Mi
                  ephemeral-storage: 64Mi
              volumeMounts:
                {{- if .signingKeySecret }}
                - name: signing-key
                  mountPath: /etc/codeexec
                  readOnly: true
                {{- end }}
                {{- if .claimName }}
                - name: {{ $component | quote }}
                  mountPath: {{ $folder }}
                {{- end }}
                - name: tmp
                  mountPath: /tmp
          volumes:
            {{- with .signingKeySecret }}
            - name: signing-key
              secret:
                secretName: {{ .name | quote }}
                defaultMode: 0440
                items:
                  - key: {{ .key }}
                    path: signing.key
            {{- end }}
            {{- if .claimName }}
            - name: {{ $component | quote }}
              persistentVolumeClaim:
                claimName: {{ .claimName | quote }}
            {{- end }}
            - name: tmp
              emptyDir:
                sizeLimit: 16Mi
          {{- with $root.Values.operator.nodeSelector }}
          nodeSelector:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with $root.Values.operator.tolerations }}
          tolerations:
            {{- toYaml . | nindent 12 }}
          {{- end }}
{{- end }}
{{- end }}
