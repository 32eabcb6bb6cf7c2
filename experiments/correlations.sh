#!/usr/bin/env bash
# How the collapse detector's measures and entropy go with success: rank correlations over the runs of estimators.sh, which
# makes those that are not there. Prints the tables of docs/experiments.md, in Markdown.
set -euo pipefail
cd "$(dirname "$0")/.."
experiments/estimators.sh >/dev/null
source experiments/runs.sh

names=()
for task in sokoban frozen_lake; do
  for arm in ppo-all ppo-filter grpo-all grpo-filter; do
    for seed in $SEEDS; do names+=("$task-$arm-$seed"); done
  done
done
table correlations "${names[@]}"
