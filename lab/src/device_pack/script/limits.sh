#!/usr/bin/env bash
# Time limits and results of parts: they run in groups of processes that end with them, at the deadline or by a signal.
#
# Read by run.sh after rows.sh. shellcheck does not see what that sets.
# shellcheck disable=SC2034,SC2154

# The running part: its name, since when, its command line and its process group; the model that is made next to the parts, since when, and its group.
running=
running_since=$started
running_command=
running_pid=
making=
making_since=$started
making_pid=

# keep PART EXIT_CODE: what a part wrote to its file.json.new becomes its file, unless it was killed or what it wrote has no end.
keep() {
    local written=$results/$1.json.new
    if [ "$2" -lt 124 ] && [ -s "$written" ] && [ "$(tail -n 1 "$written" | tail -c 2)" = "}" ]; then
        mv "$written" "$results/$1.json"
    else
        rm -f "$written"
    fi
}

# limited SECONDS COMMAND...: runs it for so long at most, and leaves nothing behind that it started. It is waited for, since bash obeys a signal
# only between commands that it runs itself.
limited() {
    local status
    timeout -k 5 "$@" 4>&- &
    running_pid=$!
    wait "$running_pid"
    status=$?
    end_group "$running_pid"
    running_pid=
    return $status
}

# was_ended STATUS SECONDS LIMIT: whether `timeout` ended a part: with 124, or with 137 where the part had to be killed.
was_ended() { [ "$2" -ge "$3" ] && { [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; }; }

# end_group PID: ends what is left of the process group that `timeout` made, within two seconds.
end_group() {
    kill -TERM -- "-$1" 2>/dev/null || return 0
    for _ in {1..20}; do
        kill -0 -- "-$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$1" 2>/dev/null
}

# cut_off SIGNAL NUMBER: what is there is written first, since whoever cuts a run off may not wait for the rest.
cut_off() {
    local pid name=${making%%:*}-${making##*:}
    trap '' HUP INT TERM
    # The part that runs may have its log here.
    exec >&4
    cut_by=SIG$1
    for pid in $running_pid $making_pid; do kill -TERM "$pid"; done 2>/dev/null
    if [ -n "$running" ]; then
        keep "$running" 124
        note "$running" late "cut off by $cut_by" $(($(date +%s) - running_since)) "$running_command"
    fi
    if [ -n "$making_pid" ]; then
        note "synth-$name" late "cut off by $cut_by" $(($(date +%s) - making_since)) "lab synth ${making%%:*} ${making##*:}"
    fi
    summarize
    for pid in $running_pid $making_pid; do end_group "$pid"; done
    echo "cut off by $cut_by after $(($(date +%s) - started)) s, $n_passed parts passed, $n_failed failed; $out/summary.json, $out/results.tar.gz"
    exit $((128 + $2))
}
exec 4>&1
trap 'cut_off HUP 1' HUP
trap 'cut_off INT 2' INT
trap 'cut_off TERM 15' TERM

# begins NAME COMMAND...: what runs from now on.
begins() {
    running=$1
    running_since=$(date +%s)
    shift
    running_command=$*
}

# anywhere NEEDS NAME COMMAND...: runs it with its output in a log, if so many seconds are left.
anywhere() {
    local needs=$(($1 * ${NEEDS_PERCENT:-100} / 100)) name=$2 status seconds limit reason rest
    shift 2
    rm -f "$results/$name.json" "$results/$name.json.new" "$results/$name.log"
    rest=$(left)
    if [ "$rest" -lt "$needs" ] || [ "$rest" -le 0 ]; then
        record "$name" late "left out: it needs some $needs s, $((rest > 0 ? rest : 0)) s are left" 0 "$*"
        return 1
    fi
    limit=$part_limit_s
    [ "$rest" -lt "$limit" ] && limit=$rest
    begins "$name" "$@"
    limited "$limit" "$@" >"$results/$name.log" 2>&1
    status=$?
    seconds=$(($(date +%s) - running_since))
    keep "$name" $status
    if [ $status -eq 0 ]; then
        record "$name" passed "" $seconds "$*"
    else
        reason="exit code $status: $(said "$results/$name.log")"
        if was_ended $status $seconds "$limit"; then
            reason="took more than $limit s"
            if [ "$limit" -lt "$part_limit_s" ]; then
                record "$name" late "$reason, all that was left" $seconds "$*"
                return $status
            fi
        fi
        record "$name" failed "$reason" $seconds "$*"
    fi
    return $status
}

# part NEEDS NAME COMMAND...: the same for what needs a GPU; without one that can be used, says so and runs nothing.
part() {
    if [ -n "$no_device" ]; then
        rm -f "$results/$2.log" "$results/$2.json"
        record "$2" "no device" "skipped: $no_device" 0
        return 1
    fi
    anywhere "$@"
}
