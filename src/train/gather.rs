//! What a step takes apart or trains on: rollouts, played until the filter has kept enough of them.

use super::{Seconds, TrainError, batch};
use crate::agent_proxy::{Play, Rollout, play};
use crate::config::{Config, EnvSet};
use crate::context_manager::ContextManager;
use crate::env_manager::{EnvManager, EnvManagerError, EnvManagerState, scale_groups};
use crate::filter::{Filtered, filter};
use crate::policy::Policy;
use ragen_envs::Mode;
use ragen_models::random::Key;

/// Plays, and filters what was played; plays on while too few groups are kept, as far as `[filter]` goes.
///
/// `config` has as many groups as `envs`. What is kept beyond a full step is let go: in the next step it would be another policy's.
pub fn gather(
    policy: &mut dyn Policy,
    context: &ContextManager,
    envs: &mut EnvManager,
    config: &Config,
    (step, key): (u64, Key),
    seconds: &mut Seconds,
) -> Result<(Rollout, Filtered), TrainError> {
    let rules = config.filter.resolved(config.env.train.groups);
    let mut how = Play::new(context, &config.rollout, config.rollout.sampling);
    how.max_turns = config.rollout.max_turns_at(step);
    let (mut rollout, mut entropy) = (Rollout::default(), Vec::new());
    loop {
        let key = match rollout.rounds {
            0 => key,
            rounds => key.named("round").with(rounds as u64),
        };
        let broken = envs.reset()?;
        let more = play(policy, envs, broken, how, key)?;
        seconds.lap("rollout");
        entropy.extend(batch::entropies(policy, &more.trajectories, config)?);
        rollout.append(more, envs);
        let filtered = filter(&rules, &batch::measurements(&rollout.trajectories, &entropy));
        seconds.lap("filter");
        if rollout.rounds as u64 >= rules.max_rounds || filtered.n_kept() >= rules.full_groups {
            return Ok((rollout, filtered));
        }
    }
}

/// Environments of a gradient analysis that plays a rollout of its own, and the configuration with their number; none where it takes
/// the step's own batch.
///
/// They begin with the levels that `first` stands at, and share nothing with those of the run but what is excluded.
pub fn own_envs(
    config: &Config,
    train: &EnvManager,
    first: EnvManagerState,
) -> Result<Option<(EnvManager, Config)>, EnvManagerError> {
    let set = &config.env.train;
    let (groups, group_size) = config.gradient_analysis.source((set.groups, set.group_size));
    if (groups, group_size) == (set.groups, set.group_size) {
        return Ok(None);
    }
    let n_groups = if set.n_groups.is_empty() { Vec::new() } else { scale_groups(&set.n_groups, groups) };
    let set = EnvSet { groups, group_size, n_groups, ..set.clone() };
    let mut envs = EnvManager::new(&set, &config.envs, Mode::Train)?;
    (envs.excluded, envs.state) = (train.excluded.clone(), first);
    let mut config = config.clone();
    config.env.train = set;
    Ok(Some((envs, config)))
}
