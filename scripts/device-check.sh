#!/usr/bin/env bash
# Looks at a machine with an NVIDIA GPU with nothing but the binary: no Rust, no sources. Each part runs apart, in under four minutes.
#
#     scripts/device-check.sh doctor      what the GPU is and reaches, and whether it gives what the CPU gives
#     scripts/device-check.sh bench       rates of training, prefill and decoding
#     scripts/device-check.sh train       three steps on the bandit
#     scripts/device-check.sh sanitize    the doctor at small shapes below compute-sanitizer
#
# RAGEN is the binary (default: target/release/ragen, or ragen beside this script); `strip` makes it small. DEVICE is cuda, cuda:N, or cpu to
# try the script. OUT (default: device-check) gets PART.json, which says what came of it, and PART.txt, which has every line.
# The exit code is ragen's: 0 all well, 1 something failed, 3 there is no such device; 124 when it took too long.
set -uo pipefail

part=${1:-}
here=$(cd "$(dirname "$0")" && pwd)
device=${DEVICE:-cuda}
out=${OUT:-device-check}
ragen=${RAGEN:-$here/../target/release/ragen}
[ -x "$ragen" ] || ragen=$here/ragen
[ -x "$ragen" ] || { echo "there is no ragen at $ragen; RAGEN names one" >&2; exit 2; }
mkdir -p "$out" || exit 2

# A text as a JSON string.
quoted() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/[\\"]/\\&/g')"; }

# The last line of the lines so far, if it is an object.
result() { tail -n 1 "$out/$part.txt" | grep '^{.*}$' || echo null; }

# Runs the command and leaves PART.txt and PART.json.
run() {
    local start=$SECONDS code why
    timeout 230 "$@" > "$out/$part.txt" 2> "$out/$part.err"
    code=$?
    why=$(tail -n 1 "$out/$part.err")
    [ "$code" != 124 ] || why="it took longer than 230 seconds"
    printf '{"part":"%s","device":"%s","exit":%d,"seconds":%d,"why":%s,"result":%s}\n' \
        "$part" "$device" "$code" "$((SECONDS - start))" "$(quoted "$why")" "$(result)" > "$out/$part.json"
    cat "$out/$part.err" >> "$out/$part.txt"
    rm -f "$out/$part.err"
    return "$code"
}

# The doctor below each tool of compute-sanitizer.
sanitize() {
    local tool code summary tools="" worst=0
    : > "$out/$part.txt"
    if ! command -v compute-sanitizer > /dev/null; then
        printf '{"part":"sanitize","device":"%s","exit":0,"why":"compute-sanitizer is not on this machine","result":null}\n' \
            "$device" > "$out/$part.json"
        return 0
    fi
    for tool in memcheck racecheck synccheck; do
        timeout 75 compute-sanitizer --tool "$tool" --error-exitcode 9 "$ragen" doctor --small --device "$device" \
            > "$out/$tool.txt" 2>&1
        code=$?
        summary=$(grep 'SUMMARY' "$out/$tool.txt" | tail -n 1)
        [ "$code" != 124 ] || summary="it took longer than 75 seconds"
        [ "$code" = 0 ] || worst=$code
        tools="$tools${tools:+,}\"$tool\":{\"exit\":$code,\"why\":$(quoted "$summary")}"
        cat "$out/$tool.txt" >> "$out/$part.txt"
        rm -f "$out/$tool.txt"
    done
    printf '{"part":"sanitize","device":"%s","exit":%d,"why":"","result":{%s}}\n' "$device" "$worst" "$tools" > "$out/$part.json"
    return "$worst"
}

case $part in
    doctor) run "$ragen" doctor --device "$device" ;;
    bench) run "$ragen" bench --device "$device" ;;
    train) rm -rf "$out/run"; run "$ragen" train bandit run.steps=3 --device "$device" --run "$out/run" --quiet --json ;;
    sanitize) sanitize ;;
    *) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
code=$?
cat "$out/$part.json"
exit "$code"
