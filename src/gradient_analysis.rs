//! Gradient analysis: which groups a step's gradient comes from, what of it is task and what regularisation, and how much of it
//! could be noise of the rewards.
//!
//! Pure functions on host slices: which groups go into which bucket, how noise is dealt, norms and cosines. The gradients are the
//! trainer's (`train::gradients`).

use ragen_models::random::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Edges between the fixed buckets.
const EDGES: [f64; 5] = [1.0, 2.0, 3.0, 4.0, 5.0];

/// How groups are put into buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BucketMode {
    /// Equally many groups each, by ascending spread of their rewards.
    #[default]
    Quantile,
    /// By the spread itself: 0 to 1, 1 to 2, … 5 and more.
    #[serde(alias = "fixed_rv")]
    Fixed,
}

/// `[gradient_analysis]`: when gradients are taken apart, and into what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GradientAnalysisConfig {
    /// On steps 1, 1 + n, 1 + 2n, …; 0 never.
    pub every: u64,
    /// How groups are put into buckets.
    pub mode: BucketMode,
    /// Buckets of mode `quantile`, at most.
    pub buckets: usize,
    /// Times that the rewards are dealt anew for `noise_share`; 0 leaves it out.
    pub noise_draws: usize,
    /// Groups of a rollout of its own; 0: as many as training has.
    pub groups: usize,
    /// Members of a group of it; 0: as many as training has.
    pub group_size: usize,
    /// Take apart what the filter dropped as well, under `grad_norm_prefilter/`.
    pub prefilter: bool,
    /// Never update.
    pub only: bool,
    /// End the run after the first analysis, before anything is updated.
    pub exit_after: bool,
}

impl Default for GradientAnalysisConfig {
    fn default() -> Self {
        GradientAnalysisConfig {
            every: 0,
            mode: BucketMode::Quantile,
            buckets: 6,
            noise_draws: 2,
            groups: 0,
            group_size: 0,
            prefilter: false,
            only: false,
            exit_after: false,
        }
    }
}

impl GradientAnalysisConfig {
    /// Whether training step `step` is analysed (the first step is 1).
    pub fn is_due(&self, step: u64) -> bool {
        self.every > 0 && step > 0 && (step - 1).is_multiple_of(self.every)
    }

    /// Groups and members of what is taken apart, where training has so many of both.
    pub fn source(&self, (groups, group_size): (usize, usize)) -> (usize, usize) {
        let or = |own: usize, of_training: usize| if own == 0 { of_training } else { own };
        (or(self.groups, groups), or(self.group_size, group_size))
    }

    /// Gradients that are kept on the host at once, with entropy and divergence in the loss or without.
    pub fn gradients_held(&self, has_entropy: bool, has_kl: bool) -> usize {
        let (terms, noise) = (usize::from(has_entropy) + usize::from(has_kl), usize::from(self.noise_draws > 0));
        if self.every == 0 { 0 } else { 1 + terms.max(noise) }
    }
}

/// Some groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    /// `all`, or `bucket_1` (the least spread) and on.
    pub name: String,
    /// Its groups, ascending.
    pub groups: Vec<usize>,
    /// Mean, least and largest spread of its groups' rewards.
    pub reward_std: [f64; 3],
}

impl Bucket {
    fn new(name: String, members: &[(usize, f64)]) -> Self {
        let mut groups: Vec<usize> = members.iter().map(|(group, _)| *group).collect();
        groups.sort_unstable();
        let spreads = || members.iter().map(|(_, std)| *std);
        let mean = spreads().sum::<f64>() / members.len().max(1) as f64;
        let (least, largest) = (spreads().fold(f64::INFINITY, f64::min), spreads().fold(f64::NEG_INFINITY, f64::max));
        Bucket { name, groups, reward_std: [mean, least, largest] }
    }
}

/// The buckets of some groups, each given with the spread of its rewards: `all`, then those that are not empty.
///
/// Mode `quantile` makes min(buckets, groups) of them with floor(groups / buckets) groups each and the rest in the last; equal spreads
/// go by group. **Deviations** the reference has buckets only where the filter reads rewards; here the spread is always known.
pub fn buckets(groups: &[(usize, f64)], mode: BucketMode, n: usize) -> Vec<Bucket> {
    let mut sorted = groups.to_vec();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let parts: Vec<&[(usize, f64)]> = match mode {
        BucketMode::Quantile => {
            let n = n.max(1).min(sorted.len());
            let size = sorted.len() / n.max(1);
            (0..n).map(|i| &sorted[i * size..if i + 1 == n { sorted.len() } else { (i + 1) * size }]).collect()
        }
        BucketMode::Fixed => {
            let inner = EDGES.iter().map(|edge| sorted.partition_point(|(_, std)| std < edge));
            let at: Vec<usize> = [0].into_iter().chain(inner).chain([sorted.len()]).collect();
            at.windows(2).map(|edges| &sorted[edges[0]..edges[1]]).collect()
        }
    };
    let parts = parts.into_iter().enumerate().filter(|(_, part)| !part.is_empty());
    let mut found = vec![Bucket::new("all".into(), &sorted)];
    found.extend(parts.map(|(i, part)| Bucket::new(format!("bucket_{}", i + 1), part)));
    found
}

/// Advantages as if the rewards had been dealt to the members of each group at random: every token keeps how it differs from its
/// episode's mean, and the episodes' means are permuted within their group.
///
/// `episodes` holds the episode of every token and `group_of` the group of each; for an advantage that is the same on all tokens of
/// an episode this is exactly a permutation of the rewards.
pub fn deal(advantage: &[f64], episodes: &[usize], group_of: &BTreeMap<usize, usize>, key: Key) -> Vec<f64> {
    let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for (&a, &episode) in advantage.iter().zip(episodes) {
        let sum = sums.entry(episode).or_default();
        *sum = (sum.0 + a, sum.1 + 1.0);
    }
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &episode in sums.keys() {
        members.entry(group_of.get(&episode).copied().unwrap_or(episode)).or_default().push(episode);
    }
    let mean = |episode: &usize| sums[episode].0 / sums[episode].1;
    let mut change: BTreeMap<usize, f64> = BTreeMap::new();
    for (&group, members) in &members {
        let order = key.with(group as u64).permutation(members.len());
        change.extend(members.iter().zip(order).map(|(to, from)| (*to, mean(&members[from]) - mean(to))));
    }
    advantage.iter().zip(episodes).map(|(a, episode)| a + change[episode]).collect()
}

/// The Euclidean norm of a gradient, summed in f64 in order.
pub fn norm(gradient: &[f32]) -> f64 {
    dot(gradient, gradient).sqrt()
}

/// The cosine of the angle between two gradients; `None` if one of them is zero.
pub fn cosine(a: &[f32], b: &[f32]) -> Option<f64> {
    let (na, nb) = (norm(a), norm(b));
    (na > 0.0 && nb > 0.0).then(|| dot(a, b) / (na * nb))
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "gradients of one model");
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_from_the_first() {
        let config = GradientAnalysisConfig { every: 50, ..GradientAnalysisConfig::default() };
        assert_eq!((0..=110).filter(|&step| config.is_due(step)).collect::<Vec<u64>>(), [1, 51, 101]);
        assert!((0..=110).all(|step| !GradientAnalysisConfig::default().is_due(step)));
    }

    #[test]
    fn buckets_of_few_or_equal_groups_lose_none() {
        assert_eq!(buckets(&[], BucketMode::Quantile, 6).len(), 1);
        assert_eq!(buckets(&[], BucketMode::Fixed, 6).len(), 1);
        let flat: Vec<(usize, f64)> = (0..7).map(|group| (group, 0.0)).collect();
        for n in 0..9 {
            let found = buckets(&flat, BucketMode::Quantile, n);
            let groups: Vec<usize> = found[1..].iter().flat_map(|bucket| bucket.groups.clone()).collect();
            assert_eq!(groups, (0..7).collect::<Vec<_>>(), "{n} buckets");
        }
        let found = buckets(&[(0, 5.0), (1, 4.999), (2, f64::NAN), (3, 1.0)], BucketMode::Fixed, 1);
        let names: Vec<(&str, usize)> = found.iter().map(|b| (b.name.as_str(), b.groups.len())).collect();
        assert_eq!(names, [("all", 4), ("bucket_2", 1), ("bucket_5", 1), ("bucket_6", 2)]);
    }

    #[test]
    fn dealing_permutes_the_means_within_groups_and_keeps_what_is_within_an_episode() {
        let group_of = BTreeMap::from([(0, 5), (1, 5), (2, 5), (3, 9), (4, 9)]);
        let episodes = [0, 0, 1, 2, 2, 2, 3, 4];
        let advantage = [1.0, 3.0, -1.0, 0.0, 0.5, -0.5, 7.0, 8.0];
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..60 {
            let dealt = deal(&advantage, &episodes, &group_of, Key::new(seed));
            assert_eq!((dealt[1] - dealt[0], dealt[4] - dealt[3]), (2.0, 0.5));
            let mut means = vec![dealt[0] + 1.0, dealt[2], dealt[3]];
            means.sort_by(f64::total_cmp);
            assert_eq!(means, [-1.0, 0.0, 2.0]);
            assert_eq!(dealt[6] + dealt[7], 15.0);
            seen.insert(format!("{dealt:?}"));
        }
        assert_eq!(seen.len(), 12, "every permutation of three and of two");
    }

    #[test]
    fn norms_and_cosines() {
        assert_eq!(norm(&[3.0, 4.0]), 5.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), Some(0.0));
        assert_eq!((cosine(&[1.0, 1.0], &[-2.0, -2.0]).map(|c| c.round()), cosine(&[0.0], &[1.0])), (Some(-1.0), None));
    }
}
