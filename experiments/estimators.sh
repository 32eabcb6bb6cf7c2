#!/usr/bin/env bash
# PPO and GRPO, each with every group and with the groups that hold 90 % of the reward's spread, on Sokoban and FrozenLake:
# 8 arms, 3 seeds. Prints the table of docs/experiments.md, in Markdown.
set -euo pipefail
cd "$(dirname "$0")/.."
source experiments/runs.sh

common=(run.steps="${STEPS:-30}" env.train.groups="${GROUPS_TRAIN:-32}" env.train.group_size=4
  env.val.groups="${GROUPS_VAL:-512}" val.groups="${GROUPS_VAL:-256}" val.every=5 val.temperature=1.0
  collapse.every=5 collapse.num_samples=64 checkpoint.every=20 run.trajectories_every=0)
ppo=(algorithm.estimator=gae model.value_model=true model.value_lr_factor=10 update.loss.value_clip=100)

names=()
for task in sokoban frozen_lake; do
  for seed in $SEEDS; do
    for estimator in ppo grpo; do
      for filter in all filter; do
        keys=("${common[@]}" run.seed="$seed" filter.strategy=top_p)
        case $estimator in ppo) keys+=("${ppo[@]}") ;; grpo) keys+=(algorithm.estimator=grpo) ;; esac
        case $filter in all) keys+=(filter.value=1.0) ;; filter) keys+=(filter.value=0.9) ;; esac
        names+=("$task-$estimator-$filter-$seed")
        start "$task-$estimator-$filter-$seed" train "$task" "${keys[@]}"
      done
    done
  done
done
finish
table success "${names[@]}"
