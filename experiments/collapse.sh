#!/usr/bin/env bash
# Template collapse on purpose, and caught: FrozenLake from a warm start in which every fifth turn reasons about nothing but its
# moves, then reinforcement learning in which every token of reasoning costs a little. For each seed the run with that cost and the
# same without it; for the first seed also the run with a guard that stops it and with one that takes it back.
# Prints the tables of docs/experiments.md, in Markdown.
set -euo pipefail
cd "$(dirname "$0")/.."
source experiments/runs.sh

keys=(run.steps="${STEPS:-40}" env.train.groups="${GROUPS_TRAIN:-64}" env.train.group_size=4 optim.schedule=constant
  env.val.groups="${GROUPS_VAL:-512}" val.groups="${GROUPS_VAL:-256}" val.every=5 val.temperature=1.0
  collapse.every=5 collapse.num_samples=128 checkpoint.every=5 checkpoint.keep=4 run.trajectories_every=20)
first=${SEEDS%% *}

for seed in $SEEDS; do
  start "frozen_lake-bare-$seed" warmstart frozen_lake warmstart.bare=0.2 warmstart.demos="${DEMOS:-8000}" run.seed="$seed" env.val.groups="${GROUPS_VAL:-512}"
done
finish
course=() ends=()
for seed in $SEEDS; do
  from=(model.path="$OUT/frozen_lake-bare-$seed" run.seed="$seed")
  start "frozen_lake-cost-$seed" train frozen_lake "${keys[@]}" "${from[@]}" reward.think_cost=0.02
  start "frozen_lake-free-$seed" train frozen_lake "${keys[@]}" "${from[@]}"
  course+=("frozen_lake-cost-$seed")
  ends+=("frozen_lake-cost-$seed" "frozen_lake-free-$seed")
done
for guard in stop rollback; do
  start "frozen_lake-$guard-$first" train frozen_lake "${keys[@]}" model.path="$OUT/frozen_lake-bare-$first" run.seed="$first" \
    reward.think_cost=0.02 guards.collapse="$guard"
done
finish
table success "${ends[@]}"
printf '\nwith and without the cost: '
table correlations "${ends[@]}"
printf 'with the cost: '
table correlations "${course[@]}"
for run in "${course[@]}" "frozen_lake-free-$first"; do
  table curve "$run"
  echo
done
for run in "${course[@]}" "frozen_lake-free-$first" "frozen_lake-stop-$first" "frozen_lake-rollback-$first"; do
  table notices "$run"
  echo
done
