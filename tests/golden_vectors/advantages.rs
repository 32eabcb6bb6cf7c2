//! The estimators and what may follow them against recorded advantages.

use crate::cases::{Case, Matrix, lengths, single, trained};
use ragen::estimator::{self, AlgorithmConfig, Baseline, Comparison, Estimator, Inputs, Scored, Turn, TurnEnd};
use ragen::reward::Placement;
use std::collections::BTreeMap;

fn compare(case: &mut Case, mask: &Matrix, key: &str, got: &[f64], tolerance: f64) {
    let want = trained(&case.expected.take(key), mask);
    case.all_close(key, got, &want, tolerance);
}

/// Generalised advantage estimation over rows of one trajectory each.
pub fn check_gae(case: &mut Case) -> bool {
    let mask: Matrix = case.inputs.take("mask");
    let rewards: Matrix = case.inputs.take("rewards");
    let values: Matrix = case.inputs.take("values");
    let (gamma, lambda) = (case.inputs.take("gamma"), case.inputs.take("lam"));
    let config = AlgorithmConfig { gamma, lambda, ..AlgorithmConfig::default() };
    let rows: Vec<Scored> = lengths(&mask).into_iter().map(|n_tokens| Scored::whole(0, n_tokens, 0.0)).collect();
    let (extra, values) = (trained(&rewards, &mask), trained(&values, &mask));
    let single_values = single(&values);
    let inputs = Inputs { trajectories: &rows, extra: &extra, values: &single_values, ..Inputs::default() };
    let estimate = estimator::estimate(&config, &inputs);
    if case.expected.find::<String>("error").is_some() {
        assert!(estimate.is_err(), "{}", case.name);
        return true;
    }
    let estimate = estimate.unwrap();
    let mut unwhitened = Vec::new();
    let mut start = 0;
    for row in rows {
        let tokens = start..start + row.n_tokens();
        start = tokens.end;
        unwhitened.extend(estimator::gae(&extra[tokens.clone()], &values[tokens], gamma, lambda).0);
    }
    compare(case, &mask, "advantages", &estimate.advantage, 1e-3);
    compare(case, &mask, "advantages_unwhitened", &unwhitened, 1e-4);
    compare(case, &mask, "returns", &estimate.ret, 1e-4);
    true
}

/// The turns of a row: they end where a reward is, and where the mask does. With them the positions of the ends that are not in
/// the mask, by turn.
fn turns(rewards: &[f64], values: &[f64], mask: &[f64]) -> (Vec<TurnEnd>, Vec<(usize, usize)>) {
    let (mut turns, mut outside, mut n_tokens) = (Vec::new(), Vec::new(), 0);
    let last = mask.iter().rposition(|m| *m == 1.0);
    for t in 0..rewards.len() {
        n_tokens += usize::from(mask[t] == 1.0);
        if rewards[t] != 0.0 || Some(t) == last {
            if mask[t] != 1.0 {
                outside.push((turns.len(), t));
            }
            turns.push(TurnEnd { n_tokens: std::mem::take(&mut n_tokens), reward: rewards[t], value: values[t] });
        }
    }
    (turns, outside)
}

/// Estimation over turns, then over tokens.
pub fn check_bilevel(case: &mut Case) -> bool {
    let (rewards, mask): (Matrix, Matrix) = (case.inputs.take("rewards"), case.inputs.take("mask"));
    let values: Matrix = case.inputs.take("values");
    let config = AlgorithmConfig {
        estimator: Estimator::BilevelGae,
        gamma: case.inputs.take("gamma"),
        lambda: case.inputs.take("lam"),
        turn_gamma: case.inputs.take("high_level_gamma"),
        ..AlgorithmConfig::default()
    };
    let (mut unwhitened, mut returns, mut scored, mut at_ends) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut is_inside = true;
    for (row, ((rewards, values), mask)) in rewards.iter().zip(&values).zip(&mask).enumerate() {
        let (turns, outside) = turns(rewards, values, mask);
        let own = trained(&vec![values.clone()], &vec![mask.clone()]);
        let gammas = (config.gamma, config.turn_gamma);
        let both = estimator::bilevel_gae(&turns, &[], &own, gammas, config.lambda);
        unwhitened.extend(both.advantage);
        returns.extend(both.ret);
        is_inside &= outside.is_empty();
        at_ends.extend(outside.into_iter().map(|(turn, t)| (row, t, both.turn_advantage[turn], both.turn_ret[turn])));
        let turns = turns.iter().map(|turn| Turn { n_tokens: turn.n_tokens, reward: turn.reward, state: 0 });
        scored.push(Scored { group: 0, score: rewards.iter().sum(), turns: turns.collect(), truncated: false });
    }
    let values = single(&trained(&values, &mask));
    let inputs = Inputs { trajectories: &scored, placement: Placement::Turn, extra: &[], values: &values };
    let whole = estimator::estimate(&config, &inputs).unwrap();
    if case.expected.find::<String>("reference_error").is_some() {
        // The end of the mask is a turn's end, with or without a reward.
        assert!(whole.advantage.iter().chain(&whole.ret).all(|x| x.is_finite()), "{}", case.name);
        return true;
    }
    let (all, all_returns): (Matrix, Matrix) =
        (case.expected.peek("advantages_unwhitened"), case.expected.peek("returns"));
    for (row, t, advantage, ret) in at_ends {
        case.close("advantage at an end outside the mask", advantage, all[row][t], 1e-4);
        case.close("return at an end outside the mask", ret, all_returns[row][t], 1e-4);
    }
    compare(case, &mask, "advantages_unwhitened", &unwhitened, 1e-4);
    compare(case, &mask, "returns", &returns, 1e-4);
    // An end that no token has, with a value of its own, is something that only the vectors have.
    if is_inside {
        case.all_close("returns as a whole", &whole.ret, &returns, 1e-6);
    } else {
        estimator::whiten(&mut unwhitened).unwrap();
    }
    let whitened = if is_inside { &whole.advantage } else { &unwhitened };
    compare(case, &mask, "advantages", whitened, 1e-3);
    true
}

/// Rows and trajectories of a case: a trajectory's score is its first row's, its tokens those of all of its rows.
struct Groups {
    mask: Matrix,
    scores: Vec<f64>,
    /// The trajectory of each row.
    of_row: Vec<usize>,
    trajectories: Vec<Scored>,
}

fn groups(case: &mut Case) -> Groups {
    let mask: Matrix = case.inputs.take("mask");
    let rewards: Matrix = case.inputs.take("rewards");
    let groups: Vec<usize> = case.inputs.take("group");
    let episodes = case.inputs.find("episode").unwrap_or_else(|| (0..groups.len()).collect::<Vec<usize>>());
    let mut places = BTreeMap::new();
    let (mut of_row, mut trajectories): (Vec<usize>, Vec<Scored>) = (Vec::new(), Vec::new());
    let scores: Vec<f64> = rewards.iter().map(|row| row.iter().sum()).collect();
    for (i, n_tokens) in lengths(&mask).into_iter().enumerate() {
        let place = *places.entry((groups[i], episodes[i])).or_insert(trajectories.len());
        of_row.push(place);
        match trajectories.get_mut(place) {
            Some(trajectory) => trajectory.turns.push(Turn { n_tokens, ..Turn::default() }),
            None => trajectories.push(Scored::whole(groups[i], n_tokens, scores[i])),
        }
    }
    Groups { mask, scores, of_row, trajectories }
}

impl Groups {
    /// One value a token, trajectories in order, as rows have it.
    fn by_row(&self, tokens: &[f64]) -> Vec<f64> {
        let mut starts = vec![0];
        self.trajectories.iter().for_each(|t| starts.push(starts[starts.len() - 1] + t.n_tokens()));
        let mut rows = Vec::new();
        for (&place, n_tokens) in self.of_row.iter().zip(lengths(&self.mask)) {
            rows.extend_from_slice(&tokens[starts[place]..starts[place] + n_tokens]);
            starts[place] += n_tokens;
        }
        rows
    }
}

/// Group comparisons, alone and with all that may follow.
pub fn check_groups(case: &mut Case) -> bool {
    let groups = groups(case);
    let norm_by_std = case.inputs.take("norm_by_std");
    let mut config = AlgorithmConfig { estimator: Estimator::Grpo, norm_by_std, ..AlgorithmConfig::default() };
    let mut kept_ratio = 1.0;
    match case.op.as_str() {
        "grpo" => config.epsilon = case.inputs.take("epsilon"),
        "pipeline" => {
            config.soft_reweight = case.inputs.take("soft_reweight");
            config.filter_loss_scaling = case.inputs.take("filter_loss_scaling");
            config.length_weight = case.inputs.take("length_weight");
            config.zero_task_advantage = case.inputs.take("zero_task");
            kept_ratio = case.inputs.take("kept_ratio");
        }
        _ => return false,
    }
    let inputs = Inputs { trajectories: &groups.trajectories, ..Inputs::default() };
    let mut advantages = estimator::estimate(&config, &inputs).unwrap();
    estimator::modify(&config, &groups.trajectories, kept_ratio, &mut advantages);
    let mut got = groups.by_row(&advantages.advantage);
    if case.op == "grpo" {
        let of_row: Vec<f64> = groups.of_row.iter().map(|&place| advantages.group_std[place]).collect();
        let want: Vec<f64> = case.expected.take("group_std");
        case.all_close("group_std", &of_row, &want, 1e-4);
        got = by_baseline(&groups, &config, &got);
    }
    compare(case, &groups.mask, "advantages", &got, 1e-3);
    true
}

/// A row whose score is not that of its trajectory's first row has its own against the group's statistics.
fn by_baseline(groups: &Groups, config: &AlgorithmConfig, got: &[f64]) -> Vec<f64> {
    let comparison = match config.norm_by_std {
        true => Comparison::Standardised { epsilon: config.epsilon },
        false => Comparison::Centred,
    };
    let (mut all, mut start) = (Vec::new(), 0);
    for ((&place, n_tokens), &score) in groups.of_row.iter().zip(lengths(&groups.mask)).zip(&groups.scores) {
        let trajectory = &groups.trajectories[place];
        let tokens = &got[start..start + n_tokens];
        start += n_tokens;
        if score == trajectory.score {
            all.extend_from_slice(tokens);
            continue;
        }
        let scores = groups.trajectories.iter().filter(|t| t.group == trajectory.group).map(|t| t.score);
        let baseline = Baseline::of(&scores.collect::<Vec<f64>>());
        all.extend(std::iter::repeat_n(baseline.advantage(score, comparison), n_tokens));
    }
    all
}
