#!/usr/bin/env bash
# The server under load: started, asked until it is well, loaded by `bench-serve`, and ended.
#
# Read by run.sh. Its functions are called by `bash -c` too.
# shellcheck disable=SC2086,SC2317

# Whether the server on a port answers that it is well.
is_healthy() {
    exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
    printf 'GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n' >&3
    head -n 1 <&3 | grep -q ' 200'
    local status=$?
    exec 3>&-
    return $status
}
export -f is_healthy

# serve_load MODEL FILE ARGUMENTS...: starts the server, loads it, and ends it.
serve_load() {
    local model=$1 file=$2 port=$((20000 + $$ % 20000)) server status
    shift 2
    tokenmill serve "$model" --device cuda --port "$port" ${SERVE_ARGS:-} &
    server=$!
    # Until it has loaded the model, or ends.
    until is_healthy "$port" 2>/dev/null; do
        kill -0 "$server" 2>/dev/null || { echo "error: the server ended" >&2; return 1; }
        sleep 0.3
    done
    tokenmill bench-serve "http://127.0.0.1:$port" --json "$file" "$@"
    status=$?
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    [ $status -eq 0 ] || return $status
    grep -q '"first_failure": null' "$file" || { echo "error: the server refused a request" >&2; return 1; }
}
export -f serve_load
export SERVE_ARGS=${SERVE_ARGS:-}
