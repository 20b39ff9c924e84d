#!/usr/bin/env bash
# The rows of the summary, one for each part, and the two files that the results are kept in after every part.
#
# Read by run.sh, whose variables it uses: out, results, here, started, deadline_s, gpu, gpu_before, began, command_line, call.
# shellcheck disable=SC2034,SC2154

rows=()
n_failed=0
n_passed=0
# Why there is no GPU to use.
no_device=
# The signal that cut the run off.
cut_by=
# The GPU whose predictions are compared.
predictions_name=

# The error of a log: its first line that names one, or its last line.
said() { { grep -m 1 -i '^error' "$1" || tail -n 1 "$1"; } 2>/dev/null; }
# shellcheck disable=SC1003
escaped() { printf '%s' "$1" | tr '\n\t\r"\\' "    '/" | tr -d '\000-\037' | cut -c1-600; }
# note PART STATUS REASON SECONDS COMMAND: a row of the summary, and the part's file, which has the row until the part's own replaces it.
note() {
    local row
    row=$(printf '{"part": "%s", "status": "%s", "reason": "%s", "seconds": %s, "command": "%s"}' \
        "$1" "$2" "$(escaped "$3")" "$4" "$(escaped "${5:-}")")
    rows+=("$row")
    last_status=$2
    [ -f "$results/$1.json" ] || printf '%s\n' "$row" >"$results/$1.json"
    printf '%-28s %-10s %4s s  %s\n' "$1" "$2" "$4" "$(escaped "$3")"
    case $2 in
        passed) n_passed=$((n_passed + 1)) ;;
        failed) n_failed=$((n_failed + 1)) ;;
    esac
}

# record PART STATUS REASON SECONDS COMMAND: the same, and writes the summary again with the archive if something ran.
record() {
    note "$@"
    running=
    # The archive takes parts that did not run with the next part that did, or at the end: writing takes time, which is short when parts are late.
    case $2 in late | absent | "no device") [ "$4" -eq 0 ] && return 0 ;; esac
    summarize
}

summarize() {
    {
        echo '{'
        printf '  "date": "%s",\n' "$began"
        printf '  "seconds": %s,\n' $(($(date +%s) - started))
        printf '  "deadline_s": %s,\n' "$deadline_s"
        printf '  "command": "%s",\n' "$(escaped "$command_line")"
        printf '  "commit": "%s",\n' "$(escaped "$(pack_says commit)")"
        printf '  "kernels_sha256": "%s",\n' "$(escaped "$(pack_says kernels_sha256)")"
        printf '  "predictions": "%s",\n' "$(escaped "${predictions_name:-none for this GPU}")"
        printf '  "machine": "%s",\n' "$(escaped "$(uname -sm), $(nproc) CPUs")"
        printf '  "gpu": "%s",\n' "$(escaped "$gpu")"
        printf '  "gpu_before": "%s",\n' "$(escaped "$gpu_before")"
        # Asking takes seconds on some machines, which a run that is cut off may not have.
        printf '  "gpu_after": "%s",\n' "$([ -n "$cut_by" ] || escaped "$(gpu_state)")"
        printf '  "cut_off": "%s",\n' "$cut_by"
        printf '  "no_device": "%s",\n' "$(escaped "$no_device")"
        printf '  "call": "%s",\n' "$call"
        # The outcome of the first call decides what the second one does.
        printf '  "verdict": "%s",\n' "$([ "$n_failed" -gt 0 ] && echo red || echo green)"
        echo '  "parts": ['
        for index in "${!rows[@]}"; do
            printf '    %s' "${rows[$index]}"
            [ "$index" -lt $((${#rows[@]} - 1)) ] && printf ','
            echo
        done
        echo '  ]'
        echo '}'
    } >"$out/summary.json.new"
    cp "$out/summary.json.new" "$results/summary.json"
    mv "$out/summary.json.new" "$out/summary.json"
    tar -czf "$out/results.tar.gz.new" -C "$results" --exclude='*.new' . && mv "$out/results.tar.gz.new" "$out/results.tar.gz"
}
