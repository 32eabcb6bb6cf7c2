#!/usr/bin/env bash
# Looks at a machine with an NVIDIA GPU with nothing but the binary: no Rust, no sources. Each part runs apart, in under four minutes.
#
#     scripts/device-check.sh doctor      what the GPU is and reaches, and whether it gives what the CPU gives
#     scripts/device-check.sh bench       rates of training, prefill, decoding, a whole step, and every kernel
#     scripts/device-check.sh train       Sokoban from the shipped warm start: a run, the same by a resume, one in bf16
#     scripts/device-check.sh sanitize    the doctor at small shapes below compute-sanitizer
#
# RAGEN is the binary (default: target/release/ragen, or ragen beside this script). DEVICE is cuda, cuda:N, or cpu to try the script.
# SMALL=1 takes small sizes. OUT (default: device-check) gets PART.json, which says what came of it, and PART.txt, which has every line.
# The exit code is ragen's: 0 all well, 1 something failed, 3 there is no such device; 124 when it took too long.
set -uo pipefail

part=${1:-}
here=$(cd "$(dirname "$0")" && pwd)
device=${DEVICE:-cuda}
small=${SMALL:-}
out=${OUT:-device-check}
ragen=${RAGEN:-$here/../target/release/ragen}
[ -x "$ragen" ] || ragen=$here/ragen
[ -x "$ragen" ] || { echo "there is no ragen at $ragen; RAGEN names one" >&2; exit 2; }
mkdir -p "$out" || exit 2
start=$SECONDS

# The smallest model that can be trained.
tiny="bandit model.d_model=32 model.n_layers=1 model.n_heads=2 model.n_kv_heads=1 model.d_ff=48"

# A text as a JSON string.
quoted() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/[\\"]/\\&/g')"; }

# The last line of a file, if it is an object.
result() { tail -n 1 "$1" | grep '^{.*}$' || echo null; }

# Leaves PART.json: exit code, why, result.
leave() {
    printf '{"part":"%s","device":"%s","exit":%d,"seconds":%d,"why":%s,"result":%s}\n' \
        "$part" "$device" "$1" "$((SECONDS - start))" "$(quoted "$2")" "$3" > "$out/$part.json"
    return "$1"
}

# Runs ragen within what is left of 230 seconds; its lines go to NAME.txt, and `why` is the last line of its errors.
ragen() {
    local name=$1 left=$((230 - SECONDS + start)) code
    shift
    timeout "$((left > 1 ? left : 1))" "$ragen" "$@" --device "$device" > "$out/$name.txt" 2> "$out/$name.err"
    code=$?
    why=$(tail -n 1 "$out/$name.err")
    [ "$code" != 124 ] || why="it took longer than 230 seconds"
    cat "$out/$name.err" >> "$out/log.txt"
    cat "$out/$name.txt" >> "$out/log.txt"
    rm -f "$out/$name.err"
    return "$code"
}

# One command whose last line is the result.
single() {
    ragen "$part" "$@"
    local code=$?
    [ "$code" != 0 ] || why=""
    leave "$code" "$why" "$(result "$out/$part.txt")"
}

# Training of a few steps: a run, the same in two pieces, one in bf16.
train() {
    local code=0 name runs="" equal=false worst file
    local keys="sokoban env.train.groups=8 env.train.group_size=8 filter.value=1.0"
    [ -z "$small" ] || keys="$tiny env.train.groups=2 env.train.group_size=4"
    keys="$keys run.steps=4 val.before_train=false val.every=0 checkpoint.every=2 checkpoint.keep=2 --quiet --json"
    rm -rf "$out"/run-*
    one() {
        name=$1
        shift
        ragen "$name" train "$@" || return
        runs="$runs${runs:+,}\"$name\":$(result "$out/$name.txt")"
    }
    # What is taken up again at step 2 must come to the same files as what never stopped.
    stopped_at_2() { cp -r "$out/run-whole" "$out/run-resumed" && rm -r "$out/run-resumed/checkpoints/step-000004"; }
    # shellcheck disable=SC2086
    one run $keys --run "$out/run-whole" && stopped_at_2 &&
        one resumed --resume --run "$out/run-resumed" --quiet --json &&
        one bf16 $keys model.dtype=bf16 --run "$out/run-bf16"
    code=$?
    rm -f "$out"/{run,resumed,bf16}.txt
    if [ "$code" = 0 ]; then
        why="" equal=true
        for file in metrics.jsonl checkpoints/step-000004/model.safetensors; do
            cmp -s "$out/run-whole/$file" "$out/run-resumed/$file" || { equal=false code=1 why="a resumed run has another $file"; }
        done
        # Every token that was sampled must be scored with the same bits, at the first forward of every step.
        worst=$(cat "$out"/run-*/metrics.jsonl | grep -o '"update/first_ratio_max_error":[^,}]*' |
            awk -F: 'BEGIN { worst = -1 } { if ($2 + 0 > worst) worst = $2 + 0 } END { print worst }')
        [ "$worst" = 0 ] || { code=1 why="ratios of the first forward are off by $worst: sampled bits are not scored bits"; }
        runs="$runs,\"resumed_equal\":$equal,\"first_ratio_max_error\":${worst:-null}"
    fi
    rm -rf "$out"/run-*
    [ -z "$runs" ] && runs=null || runs="{$runs}"
    leave "$code" "$why" "$runs"
}

# The doctor below each tool of compute-sanitizer.
sanitize() {
    local tool code summary tools="" worst=0
    if ! command -v compute-sanitizer > /dev/null; then
        leave 0 "compute-sanitizer is not on this machine" null
        return
    fi
    for tool in memcheck racecheck synccheck; do
        timeout 75 compute-sanitizer --tool "$tool" --error-exitcode 9 "$ragen" doctor --small --device "$device" \
            > "$out/$tool.txt" 2>&1
        code=$?
        summary=$(grep 'SUMMARY' "$out/$tool.txt" | tail -n 1)
        [ "$code" != 124 ] || summary="it took longer than 75 seconds"
        [ "$code" = 0 ] || worst=$code
        tools="$tools${tools:+,}\"$tool\":{\"exit\":$code,\"why\":$(quoted "$summary")}"
        cat "$out/$tool.txt" >> "$out/log.txt"
        rm -f "$out/$tool.txt"
    done
    leave "$worst" "" "{$tools}"
}

: > "$out/log.txt"
case $part in
    doctor) single doctor ${small:+--small} ;;
    bench) single bench ${small:+$tiny} ;;
    train) train ;;
    sanitize) sanitize ;;
    *) rm "$out/log.txt"; sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
code=$?
mv "$out/log.txt" "$out/$part.txt"
cat "$out/$part.json"
exit "$code"
