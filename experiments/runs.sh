# How an experiment's runs are made; the other scripts read this file. Variables:
#   RAGEN    the program (target/release/ragen, which is built if it is not there)
#   TABLES   the program that makes tables of runs (examples/experiments.rs, through cargo)
#   OUT      where the runs go (runs/experiments)
#   SEEDS    the seeds that are reported ("1 2 3")
#   JOBS     runs at a time, with THREADS threads each (as many as there are cores, with one thread each); no result depends on them
#   STEPS, GROUPS_TRAIN, GROUPS_VAL, DEMOS   smaller numbers than the page's, to see a script work

RAGEN=${RAGEN:-target/release/ragen}
OUT=${OUT:-runs/experiments}
SEEDS=${SEEDS:-1 2 3}
JOBS=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
THREADS=${THREADS:-1}

[ -x "$RAGEN" ] || cargo build --release -p ragen

# table KIND RUN...: prints a table of finished runs.
table() {
  local kind=$1 runs=()
  shift
  for run in "$@"; do runs+=("$OUT/$run"); done
  if [ -n "${TABLES:-}" ]; then "$TABLES" "$kind" "${runs[@]}"
  else cargo run --quiet --release -p ragen --example experiments -- "$kind" "${runs[@]}"; fi
}

# make NAME COMMAND CONFIG [KEY=VALUE]...: makes a run, unless it is there; goes on with one that was cut off.
make() {
  local dir=$OUT/$1 how=() log=$OUT/$1.log
  shift
  # What was asked for is kept beside a finished run: other settings are another run.
  if [ -f "$dir.done" ]; then
    [ "$(cat "$dir.done")" = "$*" ] && return
    echo "$dir was made with other settings; choose another OUT, or remove it and $dir.done" >&2
    return 1
  fi
  # What has no checkpoint yet (a warm start never has) begins anew.
  if ls "$dir"/checkpoints/step-* >/dev/null 2>&1; then how=(--resume)
  elif [ -d "$dir" ]; then rm -r "$dir"; fi
  mkdir -p "$OUT"
  if ! "$RAGEN" "$@" --threads "$THREADS" --run "$dir" --quiet ${how[@]+"${how[@]}"} >"$log" 2>&1; then
    cat "$log" >&2
    return 1
  fi
  echo "$*" >"$dir.done"
  echo "$dir is done" >&2
}

# The numbers of the runs that are being made.
making=()

# start NAME …: `make`, beside others as far as JOBS goes.
start() {
  make "$@" &
  making+=($!)
  [ "${#making[@]}" -lt "$JOBS" ] || finish_one
}

# Waits for the one that was started first; ends the script if it failed.
finish_one() {
  wait "${making[0]}" || { finish_rest; exit 1; }
  making=("${making[@]:1}")
}

finish_rest() {
  for one in ${making[@]+"${making[@]}"}; do wait "$one" || true; done
}

# Waits for all.
finish() {
  while [ "${#making[@]}" -gt 0 ]; do finish_one; done
}
