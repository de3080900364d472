{{/* Users of the bundled server. Gateways reach everything under our prefix; engines all but API
keys; the autoscaler counts what waits and runs; anybody may ask whether it is alive. Nobody can be
`default`, except the server itself when it reads its append-only file: what that user may not do is
lost then. Of
(dict "gateway" password "engine" password "autoscaler" password). */}}
{{- define "headrace.acl" -}}
{{- $service := "+@read +@write +@connection +@transaction +@stream +eval +evalsha +time -@admin -@dangerous +info +config|get" -}}
user default off resetpass ~* &* +@all
user probe on nopass resetkeys resetchannels -@all +ping
user gateway on #{{ sha256sum .gateway }} resetkeys resetchannels ~hr:* -@all {{ $service }}
user engine on #{{ sha256sum .engine }} resetkeys resetchannels ~hr:{* ~hr:models ~hr:gateways ~hr:probe ~hr:blob:* ~hr:ctl:* ~hr:out:* ~hr:engine:* ~hr:gateway:* -@all {{ $service }}
user autoscaler on #{{ sha256sum .autoscaler }} resetkeys resetchannels ~hr:{*}:queued ~hr:{*}:expiries -@all +@connection +eval +evalsha +type +zcard +llen -@admin -@dangerous
{{ end -}}
