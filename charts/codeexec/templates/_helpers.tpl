{{- define "codeexec.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{/* 53 characters leave room for suffixes such as "-operator" within the 63 of a label. */}}
{{- define "codeexec.fullname" -}}
{{- $name := include "codeexec.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "codeexec.operatorName" -}}
{{- include "codeexec.fullname" . }}-operator
{{- end }}

{{- define "codeexec.canaryName" -}}
{{- include "codeexec.fullname" . }}-canary
{{- end }}

{{- define "codeexec.sealingSecret" -}}
{{- include "codeexec.fullname" . }}-sealing
{{- end }}

{{- define "codeexec.testName" -}}
{{- include "codeexec.fullname" . }}-test
{{- end }}

{{- define "codeexec.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "codeexec.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: codeexec
{{- end }}

{{/* Name, namespace if there is one, and labels of an object. Arguments: the root context, the name, the namespace. */}}
{{- define "codeexec.metadata" -}}
name: {{ index . 1 | quote }}
{{- if gt (len .) 2 }}
namespace: {{ index . 2 | quote }}
{{- end }}
labels:
  {{- include "codeexec.labels" (index . 0) | nindent 2 }}
{{- end }}

{{/* Binds a Role to the ServiceAccount of the release namespace that has its name, or another one. Arguments: the root
context, the name, the namespace of the Role, and the other account's name. */}}
{{- define "codeexec.roleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "codeexec.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ index . 1 | quote }}
subjects:
  - kind: ServiceAccount
    name: {{ (gt (len .) 3 | ternary (last .) (index . 1)) | quote }}
    namespace: {{ (index . 0).Release.Namespace | quote }}
{{- end }}

{{- define "codeexec.operatorSelector" -}}
app.kubernetes.io/name: {{ include "codeexec.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Name of the objects of one shard. Arguments: the root context, the shard. */}}
{{- define "codeexec.shardName" -}}
{{- include "codeexec.operatorName" (index . 0) }}{{ with index . 1 }}-{{ . }}{{ end }}
{{- end }}

{{/* The selector and the labels of one shard's Deployment. The first shard has those of a release without shards,
because the selector of a Deployment can't be changed. Arguments: the root context, the shard. */}}
{{- define "codeexec.shardLabels" -}}
{{- include "codeexec.operatorSelector" (index . 0) }}
{{- with index . 1 }}
codeexec.dev/shard: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Selects the replicas of one shard, and of no other. Arguments: the root context, the shard. */}}
{{- define "codeexec.shardSelector" -}}
matchLabels:
  {{- include "codeexec.shardLabels" . | nindent 2 }}
{{- if and (not (index . 1)) (gt (int (index . 0).Values.operator.shards) 1) }}
matchExpressions:
  - key: codeexec.dev/shard
    operator: DoesNotExist
{{- end }}
{{- end }}

{{/* Arguments: the root context, and the name of the job's values in `audit`. */}}
{{- define "codeexec.auditJobSelector" -}}
{{- $component := index . 1 -}}
{{- with index . 0 -}}
app.kubernetes.io/name: {{ include "codeexec.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: {{ $component }}
{{- end }}
{{- end }}

{{/* "true" if the operator deletes old records, or may. */}}
{{- define "codeexec.deletesRecords" -}}
{{- $records := .Values.policy.records }}
{{- or .Values.operator.deleteRecords (hasKey $records "maxAgeSeconds") (hasKey $records "maxCount") | ternary "true" "" }}
{{- end }}

{{/* Annotation of objects that outlive the release: records, and the objects that restrict their namespaces. */}}
{{- define "codeexec.keep" -}}
{{- if .Values.crds.keep -}}
annotations:
  helm.sh/resource-policy: keep
{{- end }}
{{- end }}

{{/* Metadata of an admission policy and of its binding. Arguments: the root context, the object's name. */}}
{{- define "codeexec.admissionMetadata" -}}
{{- include "codeexec.metadata" (list (index . 0) (index . 1)) }}
{{- with include "codeexec.keep" (index . 0) }}
{{ . }}
{{- end }}
{{- end }}

{{/* First lines of an admission policy; the rest of its spec follows. Arguments: the root context, the policy's name. */}}
{{- define "codeexec.admissionPolicy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "codeexec.admissionMetadata" . | nindent 2 }}
spec:
  failurePolicy: Fail
{{- end }}

{{/* Binding of an admission policy. Arguments: the root context, the policy's name, the namespaces. */}}
{{- define "codeexec.admissionBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "codeexec.admissionMetadata" . | nindent 2 }}
spec:
  policyName: {{ index . 1 }}
  validationActions: [Deny]
  matchResources:
    namespaceSelector:
      matchExpressions:
        - key: kubernetes.io/metadata.name
          operator: In
          values:
            {{- toYaml (index . 2) | nindent 12 }}
{{- end }}

{{/* User name of the operator's ServiceAccount. */}}
{{- define "codeexec.operatorUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "codeexec.operatorName" . }}
{{- end }}

{{/* Image reference by digest. Arguments: the values of the image, and their path for the message. */}}
{{- define "codeexec.image" -}}
{{- $values := index . 0 }}
{{- $path := index . 1 }}
{{- $how := "`make deploy` sets it; with your own registry, push the image and pass the digest that the push printed" }}
{{- $repository := required (printf "%s.repository is empty: set it to the image's registry and name, without a tag (%s)" $path $how) $values.repository }}
{{- $digest := required (printf "%s.digest is empty: set it to sha256:<64 hexadecimal digits>, because a tag can move (%s)" $path $how) $values.digest }}
{{- printf "%s@%s" $repository $digest }}
{{- end }}

{{- define "codeexec.operatorImage" -}}
{{- include "codeexec.image" (list .Values.image "image") }}
{{- end }}

{{- define "codeexec.sandboxImage" -}}
{{- include "codeexec.image" (list .Values.sandbox.image "sandbox.image") }}
{{- end }}

{{/* URL of the output store; empty if there is none. */}}
{{- define "codeexec.outputStore" -}}
{{- with .Values.outputStore }}
{{- if and .claimName .url }}
{{- fail (printf "outputStore.claimName is %q and outputStore.url is %q: set one of the two, a PersistentVolumeClaim of the release's namespace or a URL of an object storage, such as s3://BUCKET/FOLDER" .claimName .url) }}
{{- end }}
{{- if .claimName }}file:///output{{ else }}{{ .url }}{{ end }}
{{- end }}
{{- end }}

{{/* The cluster's default policy: the spec of an ExecutionPolicy. */}}
{{- define "codeexec.policy" -}}
{{- $images := prepend .Values.policy.extraImages (include "codeexec.sandboxImage" .) }}
{{- $signatures := prepend .Values.policy.imageSignatures .Values.sandbox.image.signature | compact }}
{{- if and .Values.sandbox.imageVerification.publicKeys (not $signatures) }}
{{- fail "sandbox.imageVerification.publicKeys is set, but no image has a signature, so that no code could run: set sandbox.image.signature to the Sigstore bundle of sandbox.image (docs/images.md)" }}
{{- end }}
{{- if and (gt (int .Values.policy.maxLimits.outputBytes) 16777216) (not (include "codeexec.outputStore" .)) }}
{{- fail (printf "policy.maxLimits.outputBytes is %d, but more than 16777216 needs an output store: set outputStore.url or outputStore.claimName, or a lower limit" (int .Values.policy.maxLimits.outputBytes)) }}
{{- end }}
{{- if and (.Values.policy.sessionSleep).minAfterSeconds (not (include "codeexec.outputStore" .)) }}
{{- fail (printf "policy.sessionSleep.minAfterSeconds is %d, but sessions that sleep need an output store for their files: set outputStore.url or outputStore.claimName, or leave it out" (int .Values.policy.sessionSleep.minAfterSeconds)) }}
{{- end }}
{{- $policy := omit .Values.policy "extraImages" "imageSignatures" "runtimeClassName" }}
{{- $policy | merge (dict "images" $images "imageSignatures" $signatures "runtimeClassName" (include "codeexec.runtimeClassName" .)) | toYaml }}
{{- end }}

{{/*
Repositories of sandbox images, as a JSON list: those of all images in the values, and those that the values add. An
image reference is name@digest or name:tag@digest.
*/}}
{{- define "codeexec.repositories" -}}
{{- $images := prepend .Values.policy.extraImages (include "codeexec.sandboxImage" .) }}
{{- range append .Values.policy.agentRules .Values.policy }}
{{- $images = concat $images (.images | default list) ((.withApproval | default dict).images | default list) }}
{{- end }}
{{- $repositories := list }}
{{- range $images }}
{{- $repositories = append $repositories (regexReplaceAll "(:[^/]*)?@.*$" . "") }}
{{- end }}
{{- concat $repositories .Values.sandbox.allowedRepositories | uniq | toJson }}
{{- end }}

{{/*
The default RuntimeClass; "runc" stands for the nodes' default runtime. With "auto", the last handler of this list that
a RuntimeClass has: a virtual machine comes before gVisor. The operator knows these handlers, too (core/isolation.py).
*/}}
{{- define "codeexec.runtimeClassName" -}}
{{- $chosen := .Values.policy.runtimeClassName }}
{{- if eq $chosen "auto" }}
{{- $found := lookup "node.k8s.io/v1" "RuntimeClass" "" "" }}
{{- if not $found }}
{{- fail "policy.runtimeClassName is auto, but Helm renders the chart without a cluster, as `helm template` and GitOps tools do, and can't look up its RuntimeClasses: set it to the name of a RuntimeClass, such as gvisor, or to runc for the nodes' default runtime" }}
{{- end }}
{{- $chosen = "runc" }}
{{- range $handler := list "gvisor" "runsc" "kata-fc" "kata-clh" "kata-qemu" "kata" }}
{{- range reverse $found.items }}
{{- $chosen = ternary .metadata.name $chosen (eq .handler $handler) }}
{{- end }}
{{- end }}
{{- end }}
{{- $chosen }}
{{- end }}

{{/* Fails on a Helm older than the documentation assumes: `--take-ownership` came with 3.17. */}}
{{- define "codeexec.checkHelm" -}}
{{- $helm := .Capabilities.HelmVersion.Version }}
{{- if not (semverCompare ">=3.17.0-0" $helm) }}
{{- fail (printf "this chart needs Helm 3.17 or newer, and this is Helm %s: upgrade Helm" $helm) }}
{{- end }}
{{- end }}

{{/* Namespaces that the operator serves, checked, as a JSON list. */}}
{{- define "codeexec.namespaces" -}}
{{- if has .Release.Namespace .Values.sandbox.namespaces }}
{{- fail (printf "sandbox.namespaces contains %q, the release's own namespace: sandbox namespaces have no network, and the operator needs one. Install the release in another namespace, such as codeexec-system" .Release.Namespace) }}
{{- end }}
{{- .Values.sandbox.namespaces | toJson }}
{{- end }}

{{/* Subjects of a RoleBinding, from values such as agents.subjects. */}}
{{- define "codeexec.subjects" -}}
{{- range . -}}
- kind: {{ .kind }}
  name: {{ .name | quote }}
  {{- if eq .kind "ServiceAccount" }}
  namespace: {{ .namespace | quote }}
  {{- else }}
  apiGroup: rbac.authorization.k8s.io
  {{- end }}
{{ end }}
{{- end }}

{{/* Rules of a Role: read the output of code, by the names in its record. No "list", so no other name can be found. */}}
{{- define "codeexec.readOutput" -}}
# Large output, fetched files, and live output.
- apiGroups: [""]
  resources: [configmaps, pods/log]
  verbs: [get]
{{- end }}

{{/* Peers of a NetworkPolicy: the pods of these namespaces. */}}
{{- define "codeexec.peers" -}}
{{- range . }}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Ports of the collector, as a JSON list: the given ports, else the endpoint's port, else its scheme's. */}}
{{- define "codeexec.collectorPorts" -}}
{{- if .ports }}
{{- .ports | toJson }}
{{- else }}
{{- $url := urlParse .endpoint }}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary "443" "80" (eq $url.scheme "https")) }}
{{- list (int $port) | toJson }}
{{- end }}
{{- end }}

{{/* The Pod Security standard "restricted", and a read-only root file system. */}}
{{- define "codeexec.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "codeexec.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
CEL: the bytes of metadata.managedFields of `object` as JSON: each key has 6 more than its text, and each entry 150 more
than what it names. Whoever writes an object can fill this field with any text, and the API server limits only the whole
object. A path in a record of ours has at most five parts. What is deeper, or has more than 512 keys side by side, counts
as a million bytes and isn't looked at.
*/}}
{{- define "codeexec.managedFieldsBytes" -}}
dyn(object).metadata.?managedFields.orValue([]).map(entry,
  150 + bytes(entry.?manager.orValue('') + entry.?apiVersion.orValue('') + entry.?subresource.orValue('')).size()
  + [entry.?fieldsV1.orValue({})].map(one, one.size() > 512 ? 1000000 : one.map(a, 6 + bytes(a).size()
    + (one[a].size() > 512 ? 1000000 : one[a].map(b, 6 + bytes(b).size()
      + (one[a][b].size() > 512 ? 1000000 : one[a][b].map(c, 6 + bytes(c).size()
        + (one[a][b][c].size() > 512 ? 1000000 : one[a][b][c].map(d, 6 + bytes(d).size()
          + (one[a][b][c][d].size() > 512 ? 1000000 : one[a][b][c][d].map(e, 6 + bytes(e).size()
            + (one[a][b][c][d][e].size() > 0 ? 1000000 : 0)
          ).sum())
        ).sum())
      ).sum())
    ).sum())
  ).sum()).sum()
).sum()
{{- end }}

{{/*
Rest of the spec of an admission policy for objects whose data has one writer. Helm creates, labels and deletes these
objects, and an administrator may empty them. Arguments: the policy's name, the names of the objects by resource, the
writer's user name, the writer's name for messages, and the two reasons.

Deletions are matched by a condition, because `resourceNames` does not match the deletion of a collection. Other writes
are matched by `resourceNames`: with a condition, the API server would convert each ConfigMap and Secret to check it.
*/}}
{{- define "codeexec.oneWriter" -}}
{{- $names := index . 1 -}}
matchConstraints:
  resourceRules:
    {{- range $resource, $name := $names }}
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE, UPDATE]
      resources: [{{ $resource }}]
      resourceNames: [{{ $name }}]
    {{- end }}
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [DELETE]
      resources: {{ keys $names | sortAlpha | toJson }}
matchConditions:
  - name: not-by-the-writer
    expression: request.userInfo.username != '{{ index . 2 }}'
  - name: one-of-these
    expression: >-
      (object == null ? oldObject : object).metadata.?name.orValue('')
      == {{ $names | toJson | replace "\"" "'" }}[request.resource.resource]
variables:
  - name: what
    expression: >-
      request.resource.resource + ' ' + (object == null ? oldObject : object).metadata.name
  # `stringData` never arrives here: the API server has moved it to `data`.
  - name: before
    expression: >-
      oldObject == null ? [dyn({}), dyn({})]
      : [dyn(oldObject.?data.orValue({})), dyn(dyn(oldObject).?binaryData.orValue({}))]
  - name: content
    expression: >-
      object == null ? variables.before
      : [dyn(object.?data.orValue({})), dyn(dyn(object).?binaryData.orValue({}))]
validations:
  # Helm creates, labels and deletes the object, and the namespace controller deletes it. Both may delete this policy.
  - expression: >-
      authorizer.group('admissionregistration.k8s.io').resource('validatingadmissionpolicybindings')
        .name('{{ index . 0 }}').check('delete').allowed()
    messageExpression: >-
      variables.what + ' must be changed by {{ index . 3 }} only, and you are '
      + request.userInfo.username + ': {{ index . 4 }}'
  - expression: >-
      variables.content == variables.before || variables.content.all(one, one.size() == 0)
    messageExpression: >-
      'data of ' + variables.what + ' must be written by {{ index . 3 }} only, or be emptied by an administrator: '
      + '{{ index . 5 }}'
{{- end }}
