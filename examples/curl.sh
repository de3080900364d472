#!/usr/bin/env bash
# Headrace from the shell: the models, an answer, and a stream.
set -euo pipefail

url=${HEADRACE_URL:-http://127.0.0.1:8000}
key=${HEADRACE_API_KEY:?set it to the key that \`make serve\` printed}

echo "== models"
models=$(curl -fsS "$url/v1/models" -H "Authorization: Bearer $key")
echo "$models"
model=$(grep -oE '"id": ?"[^"]+"' <<<"$models" | head -n 1 | cut -d '"' -f 4)

ask() { # the rest of the JSON body
  curl -fsSN "$url/v1/chat/completions" \
    -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -d "{\"model\": \"$model\", \"max_tokens\": 24, \"temperature\": 0,
         \"messages\": [{\"role\": \"user\", \"content\": \"Name three rivers.\"}]$1}"
}

echo "== one answer"
ask ''
echo
echo "== a stream"
ask ', "stream": true, "stream_options": {"include_usage": true}'
