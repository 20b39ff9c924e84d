#!/usr/bin/env bash
# The models with random weights that parts measure: made on the machine, one of them next to the parts before, since that takes a minute of CPUs.
#
# Read by run.sh after limits.sh.
# shellcheck disable=SC2016,SC2034,SC2154

# begin_model PRESET:TYPE: begins to make a model next to the parts that follow.
begin_model() {
    local name=${1%%:*} type=${1##*:} limit
    local file=$models/$name-$type.gguf
    if [ -n "$no_device" ] || [ -n "$making_pid" ] || [ -f "$file" ]; then return 0; fi
    limit=$part_limit_s
    [ "$(left)" -lt "$limit" ] && limit=$(left)
    [ "$limit" -gt 0 ] || return 0
    mkdir -p "$models"
    making=$1
    making_since=$(date +%s)
    timeout -k 5 "$limit" bash -c 'lab synth "$0" "$1" "$2.part" && mv "$2.part" "$2"' "$name" "$type" "$file" \
        >"$results/synth-$name-$type.log" 2>&1 4>&- &
    making_pid=$!
}

# await_model: waits for the model that is made, and writes its row.
await_model() {
    local name=${making%%:*} type=${making##*:} status seconds command
    [ -n "$making_pid" ] || return 0
    wait "$making_pid"
    status=$?
    making_pid=
    seconds=$(($(date +%s) - making_since))
    command="lab synth $name $type, next to the parts"
    if [ $status -eq 0 ]; then
        record "synth-$name-$type" passed "" $seconds "$command"
        return 0
    fi
    if [ "$(left)" -le 0 ]; then
        record "synth-$name-$type" late "took all that was left" $seconds "$command"
    else
        record "synth-$name-$type" failed "exit code $status: $(said "$results/synth-$name-$type.log")" $seconds "$command"
    fi
    not_made[$making]=$last_status
    return 1
}

# give_up_model: ends what makes a model that nothing waits for any more.
give_up_model() {
    [ -n "$making_pid" ] || return 0
    end_group "$making_pid"
    wait "$making_pid" 2>/dev/null
    making_pid=
    record "synth-${making%%:*}-${making##*:}" late "nothing has time for it any more" $(($(date +%s) - making_since)) "lab synth"
}

# model PRESET:TYPE SECONDS: makes a model unless it is there; its path is in $made.
model() {
    local name=${1%%:*} type=${1##*:}
    made=$models/$name-$type.gguf
    if [ -n "$no_device" ]; then return 0; fi
    if [ "$1" = "$making" ] && [ -n "$making_pid" ]; then
        await_model || return 1
    fi
    if [ -f "$made" ]; then return 0; fi
    # Once is enough.
    [ -z "${not_made[$1]:-}" ] || return 1
    mkdir -p "$models"
    # Under its name only when it is whole.
    part "$2" "synth-$name-$type" lab synth "$name" "$type" "$made.part" && mv "$made.part" "$made" && return 0
    not_made[$1]=$last_status
    return 1
}
# The models that could not be made, with the status of making them.
declare -A not_made=()

# with_model PRESET:TYPE NAME: makes the model that a part needs, or says why the part is left out.
with_model() {
    # A 1B model is made in seconds.
    local needs=60 status=absent
    case $1 in *1b*|tiny*) needs=5 ;; esac
    model "$1" $needs && return 0
    rm -f "$results/$2.json" "$results/$2.log"
    # A model that could not be made in time is late, and so is what needs it; one that could not be made at all is absent.
    [ "${not_made[$1]}" = late ] && status=late
    record "$2" "$status" "left out: its model was not made" 0
    return 1
}

# bench PRESET:TYPE SUFFIX NEEDS ARGUMENTS...
bench() {
    local preset=$1 name
    name=bench-${preset%%:*}-${preset##*:}$2
    local needs=$3
    shift 3
    with_model "$preset" "$name" || return 1
    part "$needs" "$name" lab bench device "$made" --json "$results/$name.json.new" "$@"
}
