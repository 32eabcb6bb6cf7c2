use super::*;
use ragen_models::random::Key;

/// Trajectories of up to four turns in groups of unequal size, with states that turns share.
fn batch(seed: u64, n: usize) -> Vec<Scored> {
    let key = Key::new(seed);
    (0..n)
        .map(|i| {
            let key = key.with(i as u64);
            let turn = |k: u64| Turn {
                n_tokens: 1 + key.below(10 + k, 3),
                reward: if key.uniform(20 + k) < 0.4 { 0.0 } else { key.normal(30 + k) },
                state: key.below(40 + k, 3) as u64,
            };
            let turns: Vec<Turn> = (0..1 + key.below(0, 4) as u64).map(turn).collect();
            Scored { group: i % 7, score: turns.iter().map(|turn| turn.reward).sum(), turns, truncated: false }
        })
        .collect()
}

fn inputs<'a>(trajectories: &'a [Scored], values: &'a [f32], placement: Placement) -> Inputs<'a> {
    Inputs { trajectories, placement, extra: &[], values }
}

fn values(trajectories: &[Scored]) -> Vec<f32> {
    let n: usize = trajectories.iter().map(Scored::n_tokens).sum();
    (0..n).map(|i| Key::new(9).normal(i as u64) as f32).collect()
}

/// The tokens' values of each trajectory.
fn by_trajectory(trajectories: &[Scored], tokens: &[f64]) -> Vec<Vec<f64>> {
    let mut start = 0;
    let mut of = |t: &Scored| {
        start += t.n_tokens();
        tokens[start - t.n_tokens()..start].to_vec()
    };
    trajectories.iter().map(&mut of).collect()
}

const PLACEMENTS: [Placement; 2] = [Placement::Trajectory, Placement::Turn];

fn group_config(estimator: Estimator) -> AlgorithmConfig {
    AlgorithmConfig { estimator, turn_gamma: 1.0, ..AlgorithmConfig::default() }
}

#[test]
fn comparisons_within_a_group_sum_to_zero() {
    let trajectories = batch(5, 60);
    for norm_by_std in [true, false] {
        for estimator in [Estimator::Grpo, Estimator::Rloo] {
            let config = AlgorithmConfig { norm_by_std, ..group_config(estimator) };
            let advantages = estimate(&config, &inputs(&trajectories, &[], Placement::Trajectory)).unwrap();
            let of = by_trajectory(&trajectories, &advantages.advantage);
            for group in 0..7 {
                let members = trajectories.iter().zip(&of).filter(|(t, _)| t.group == group);
                let sum: f64 = members.map(|(_, tokens)| tokens[0]).sum();
                assert!(sum.abs() < 1e-11, "{estimator:?}: group {group} sums to {sum:e}");
            }
            assert!(of.iter().any(|tokens| tokens[0].abs() > 0.5));
        }
    }
}

#[test]
fn each_comparison_is_its_formula() {
    let baseline = Baseline::of(&[1.0, 2.0, 6.0]);
    let std = 7f64.sqrt();
    assert!((baseline.advantage(6.0, Comparison::Standardised { epsilon: 0.5 }) - 3.0 / (std + 0.5)).abs() < 1e-15);
    assert_eq!(baseline.advantage(6.0, Comparison::Centred), 3.0);
    // 6 less the mean of 1 and 2.
    assert_eq!(baseline.advantage(6.0, Comparison::LeaveOneOut), 4.5);
}

#[test]
fn equal_scores_give_exactly_zero_and_a_group_of_one_its_score() {
    let mut trajectories = vec![Scored::whole(0, 2, -0.1); 5];
    trajectories.push(Scored::whole(1, 1, -0.7));
    for estimator in [Estimator::Grpo, Estimator::Rloo, Estimator::Gigpo] {
        for placement in PLACEMENTS {
            let config = group_config(estimator);
            let advantages = estimate(&config, &inputs(&trajectories, &[], placement)).unwrap();
            assert_eq!(advantages.advantage[..10], [0.0; 10], "{estimator:?}");
            assert!((advantages.advantage[10] + 0.7).abs() < 1e-6, "{estimator:?}");
            assert_eq!((advantages.advantage.len(), advantages.n_singletons), (11, 1));
            assert_eq!(advantages.group_std, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        }
    }
}

#[test]
fn advantages_move_with_their_trajectory_when_groups_are_permuted() {
    let trajectories = batch(6, 50);
    let order = Key::new(3).permutation(50);
    let values = values(&trajectories);
    let of_values: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
    let of_values = by_trajectory(&trajectories, &of_values);
    let permuted: Vec<Scored> =
        order.iter().map(|&i| Scored { group: 6 - trajectories[i].group, ..trajectories[i].clone() }).collect();
    let permuted_values: Vec<f32> = order.iter().flat_map(|&i| of_values[i].iter().map(|v| *v as f32)).collect();
    for estimator in Estimator::ALL {
        for placement in PLACEMENTS {
            let config = AlgorithmConfig {
                gamma: 0.9,
                lambda: 0.8,
                soft_reweight: true,
                length_weight: true,
                ..group_config(estimator)
            };
            let run = |trajectories: &[Scored], values: &[f32]| {
                let mut advantages = estimate(&config, &inputs(trajectories, values, placement)).unwrap();
                modify(&config, trajectories, 1.0, &mut advantages);
                by_trajectory(trajectories, &advantages.advantage)
            };
            let (here, there) = (run(&trajectories, &values), run(&permuted, &permuted_values));
            for (place, &i) in order.iter().enumerate() {
                for (a, b) in here[i].iter().zip(&there[place]) {
                    assert!((a - b).abs() < 1e-12, "{estimator:?} {placement:?}: {a} {b}");
                }
            }
        }
    }
}

#[test]
fn a_turn_is_compared_with_all_of_its_group_from_there_on() {
    let turn = |reward| Turn { n_tokens: 2, reward, state: 0 };
    let trajectories = [
        Scored { group: 0, score: 3.0, turns: vec![turn(1.0), turn(2.0)], truncated: false },
        Scored { group: 0, score: 1.0, turns: vec![turn(1.0)], truncated: false },
        Scored { group: 0, score: 0.0, turns: vec![turn(0.0), turn(0.0), turn(0.0)], truncated: false },
    ];
    let config = AlgorithmConfig { norm_by_std: false, turn_gamma: 0.5, ..group_config(Estimator::Grpo) };
    let advantages = estimate(&config, &inputs(&trajectories, &[], Placement::Turn)).unwrap();
    let of = by_trajectory(&trajectories, &advantages.advantage);
    // Returns of the first turn are 2, 1, 0; of the second 2, 0 (it has ended), 0; of the third 0 all over.
    assert_eq!(of[0], [1.0, 1.0, 2.0 - 2.0 / 3.0, 2.0 - 2.0 / 3.0]);
    assert_eq!(of[1], [0.0, 0.0]);
    assert_eq!(of[2], [-1.0, -1.0, -2.0 / 3.0, -2.0 / 3.0, 0.0, 0.0]);
    // Without a discount the first turn is compared as the trajectory is.
    let config = AlgorithmConfig { turn_gamma: 1.0, ..config };
    let by_turn = estimate(&config, &inputs(&trajectories, &[], Placement::Turn)).unwrap();
    let whole = estimate(&config, &inputs(&trajectories, &[], Placement::Trajectory)).unwrap();
    let firsts = |advantages: &Advantages| {
        by_trajectory(&trajectories, &advantages.advantage).iter().map(|t| t[0]).collect::<Vec<_>>()
    };
    assert_eq!(firsts(&by_turn), firsts(&whole));
}

#[test]
fn turns_from_one_state_are_compared_and_a_lone_one_counts_nothing() {
    let turn = |reward, state| Turn { n_tokens: 1, reward, state };
    let trajectories = [
        Scored { group: 0, score: 1.0, turns: vec![turn(0.0, 7), turn(1.0, 8)], truncated: false },
        Scored { group: 0, score: 0.0, turns: vec![turn(0.0, 7), turn(0.0, 9)], truncated: false },
        // Another group: its state 8 is another anchor.
        Scored { group: 1, score: 5.0, turns: vec![turn(5.0, 8)], truncated: false },
    ];
    let config = AlgorithmConfig {
        estimator: Estimator::Gigpo,
        norm_by_std: false,
        turn_gamma: 0.5,
        step_weight: 2.0,
        ..AlgorithmConfig::default()
    };
    let advantages = estimate(&config, &inputs(&trajectories, &[], Placement::Trajectory)).unwrap();
    // Of trajectories ±0.5; from state 7 the returns are 0.5 and 0, so ±0.25, twice; states 8 and 9 stand alone.
    assert_eq!(advantages.advantage, [1.0, 0.5, -1.0, -0.5, 5.0]);
    assert_eq!((advantages.n_anchors, advantages.n_lone_anchors, advantages.n_singletons), (4, 3, 1));
}

#[test]
fn a_turn_without_reward_keeps_its_boundary() {
    let values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
    let end = |n_tokens, reward, value| TurnEnd { n_tokens, reward, value };
    let turns = [end(2, 1.0, 0.2), end(2, 0.0, 0.4), end(2, 2.0, 0.6)];
    let both = bilevel_gae(&turns, &[], &values, (1.0, 0.5), 1.0);
    // R_3 = 2, R_2 = 0.5 · R_3, R_1 = 1 + 0.5 · R_2.
    assert!(both.turn_ret.iter().zip([1.5, 1.0, 2.0]).all(|(got, want)| (got - want).abs() < 1e-15), "{both:?}");
    assert!(both.ret.iter().zip([1.5, 1.5, 1.0, 1.0, 2.0, 2.0]).all(|(got, want)| (got - want).abs() < 1e-15));
    let merged = bilevel_gae(&[turns[0], end(4, 2.0, 0.6)], &[], &values, (1.0, 0.5), 1.0);
    assert_eq!(merged.ret[..2], [2.0; 2], "the boundary of a turn discounts");
    // What tokens earn beside stays within their turn.
    let extra = [0.0, 0.0, -0.5, 0.0, 0.0, 0.0];
    let costs = bilevel_gae(&turns, &extra, &values, (1.0, 0.5), 1.0);
    assert!((costs.ret[2] - 0.5).abs() < 1e-15);
    assert_eq!((costs.ret[0], &costs.ret[3..], &costs.turn_ret), (both.ret[0], &both.ret[3..], &both.turn_ret));
}

#[test]
fn bilevel_over_one_turn_or_without_discount_is_gae() {
    let trajectories: Vec<Scored> = batch(7, 20).into_iter().map(|t| Scored::whole(0, t.n_tokens(), t.score)).collect();
    let values = values(&trajectories);
    let config = AlgorithmConfig { gamma: 0.9, lambda: 0.7, turn_gamma: 0.3, ..AlgorithmConfig::default() };
    let bilevel = AlgorithmConfig { estimator: Estimator::BilevelGae, ..config.clone() };
    for placement in PLACEMENTS {
        let inputs = inputs(&trajectories, &values, placement);
        let (a, b) = (estimate(&config, &inputs).unwrap(), estimate(&bilevel, &inputs).unwrap());
        assert!(a.ret.iter().zip(&b.ret).all(|(a, b)| (a - b).abs() < 1e-12), "{placement:?}");
    }
    // With γ = λ = 1 throughout, every return is what is yet to come.
    let trajectories = batch(7, 20);
    let values = self::values(&trajectories);
    for estimator in [Estimator::Gae, Estimator::BilevelGae] {
        let config = group_config(estimator);
        for placement in PLACEMENTS {
            let advantages = estimate(&config, &inputs(&trajectories, &values, placement)).unwrap();
            for (t, ret) in trajectories.iter().zip(by_trajectory(&trajectories, &advantages.ret)) {
                assert!((ret[0] - t.score).abs() < 1e-6);
                let last = if placement == Placement::Turn { t.turns[t.turns.len() - 1].reward } else { t.score };
                assert!((ret[ret.len() - 1] - last).abs() < 1e-6);
            }
        }
    }
}

#[test]
fn rewards_stand_at_ends_and_none_is_lost_to_a_turn_without_tokens() {
    let turn = |n_tokens, reward| Turn { n_tokens, reward, state: 0 };
    let trajectories = [
        Scored {
            group: 0,
            score: 7.0,
            turns: vec![turn(0, 1.0), turn(2, 2.0), turn(0, 4.0), turn(1, 0.0)],
            truncated: false,
        },
        Scored { group: 0, score: -1.0, turns: vec![], truncated: false },
        Scored { group: 1, score: 3.0, turns: vec![turn(2, 3.0)], truncated: false },
    ];
    assert_eq!(token_rewards(&inputs(&trajectories, &[], Placement::Trajectory)), [0.0, 0.0, 7.0, 0.0, 3.0]);
    assert_eq!(token_rewards(&inputs(&trajectories, &[], Placement::Turn)), [0.0, 7.0, 0.0, 0.0, 3.0]);
    let with_extra = Inputs { extra: &[0.5; 5], ..inputs(&trajectories, &[], Placement::Turn) };
    assert_eq!(token_rewards(&with_extra), [0.5, 7.5, 0.5, 0.5, 3.5]);
    for estimator in Estimator::ALL {
        for placement in PLACEMENTS {
            let inputs = inputs(&trajectories, &[0.1; 5], placement);
            let advantages = estimate(&group_config(estimator), &inputs).unwrap();
            assert!(
                advantages.advantage.len() == 5 && advantages.advantage.iter().all(|a| a.is_finite()),
                "{estimator:?}"
            );
        }
    }
}

#[test]
fn what_tokens_earn_beside_counts_in_every_estimator() {
    let trajectories = batch(8, 24);
    let values = values(&trajectories);
    let mut extra = vec![0.0; values.len()];
    extra[3] = -2.0;
    for estimator in Estimator::ALL {
        for placement in PLACEMENTS {
            let without = inputs(&trajectories, &values, placement);
            let with = Inputs { extra: &extra, ..without };
            let config = group_config(estimator);
            assert_ne!(estimate(&config, &with), estimate(&config, &without), "{estimator:?} {placement:?}");
        }
    }
    let error = estimate(
        &group_config(Estimator::Grpo),
        &Inputs { extra: &[0.0], ..inputs(&trajectories, &[], Placement::Turn) },
    );
    assert!(error.unwrap_err().to_string().starts_with("extra has 1 values"));
}

#[test]
fn the_configured_estimator_is_used() {
    let trajectories = [Scored::whole(0, 2, 1.0), Scored { group: 0, ..Scored::default() }, Scored::whole(0, 1, 0.5)];
    let config = AlgorithmConfig { gamma: 0.5, ..AlgorithmConfig::default() };
    let whole = Placement::Trajectory;
    let advantages = estimate(&config, &inputs(&trajectories, &[0.0; 3], whole)).unwrap();
    assert_eq!(advantages.ret, [0.5, 1.0, 0.5]);
    assert!((advantages.advantage.iter().sum::<f64>()).abs() < 1e-7);
    let error = estimate(&config, &inputs(&trajectories, &[], whole)).unwrap_err();
    assert_eq!(error, EstimatorError::Length { what: "values", found: 0, n_tokens: 3 });
    for estimator in [Estimator::Gae, Estimator::ReinforcePlusPlus, Estimator::ReinforcePlusPlusBaseline] {
        let config = AlgorithmConfig { estimator, ..config.clone() };
        let error = estimate(&config, &inputs(&trajectories[2..], &[0.0], whole)).unwrap_err();
        assert_eq!(error, EstimatorError::TooFewTokens { n_tokens: 1 });
    }
    let relative = |estimator, norm_by_std| {
        let config = AlgorithmConfig { estimator, norm_by_std, ..config.clone() };
        estimate(&config, &inputs(&trajectories, &[], whole)).unwrap().advantage
    };
    assert_eq!(relative(Estimator::Grpo, false), [0.5, 0.5, 0.0]);
    assert_eq!(relative(Estimator::Rloo, false), [0.75, 0.75, 0.0]);
    // Discounted returns 0.5, 1, 0.5 and centred scores 0.5, 0.5, 0, both whitened.
    let (two, one) = (2f64 / 3f64.sqrt(), 1f64 / 3f64.sqrt());
    for (estimator, want) in
        [(Estimator::ReinforcePlusPlus, [-one, two, -one]), (Estimator::ReinforcePlusPlusBaseline, [one, one, -two])]
    {
        let got = relative(estimator, true);
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{estimator:?} {got:?}");
    }
}

#[test]
fn names_are_those_of_the_field() {
    for (name, estimator) in [
        ("reinforce_plus_plus_baseline", Estimator::ReinforcePlusPlusBaseline),
        ("bi_level_gae", Estimator::BilevelGae),
        ("gigpo", Estimator::Gigpo),
    ] {
        assert_eq!(serde_json::from_str::<Estimator>(&format!("{name:?}")).unwrap(), estimator);
    }
}

/// By hand, γ = 0.9, λ = 0.5: δ_T = 2 + 0.9 · 1 − 1 where the value of the last token stands for what was cut off, else 2 − 1.
#[test]
fn a_truncated_episode_goes_on_with_its_last_value_if_that_is_asked_for() {
    let turn = |n_tokens, reward| Turn { n_tokens, reward, state: 0 };
    let whole = Scored { group: 0, score: 2.0, turns: vec![turn(2, 2.0)], truncated: false };
    let cut = Scored { truncated: true, ..whole.clone() };
    let empty = Scored { truncated: true, ..Scored::default() };
    let trajectories = [cut, empty, whole];
    let values = [0.5, 1.0, 0.5, 1.0];
    let close = |got: &[f64], want: &[f64]| {
        assert!(
            got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12),
            "{got:?}, not {want:?}"
        );
    };
    let ret =
        |config: &AlgorithmConfig, placement| estimate(config, &inputs(&trajectories, &values, placement)).unwrap().ret;
    let mut config = AlgorithmConfig { gamma: 0.9, lambda: 0.5, turn_gamma: 0.5, ..AlgorithmConfig::default() };
    for placement in PLACEMENTS {
        config.bootstrap_truncated = false;
        close(&ret(&config, placement), &[1.35, 2.0, 1.35, 2.0]);
        config.bootstrap_truncated = true;
        close(&ret(&config, placement), &[1.755, 2.9, 1.35, 2.0]);
    }

    // Over turns, γ_turn = 0.5: H_2 = 2 + 0.5 · 1 − 1 and H_1 = 1 + 0.5 · 1 − 0.5 + 0.25 H_2, against H_2 = 1 and H_1 = 1.25.
    let whole = Scored { group: 0, score: 3.0, turns: vec![turn(1, 1.0), turn(1, 2.0)], truncated: false };
    let trajectories = [Scored { truncated: true, ..whole.clone() }, whole];
    config.estimator = Estimator::BilevelGae;
    let ret =
        |config: &AlgorithmConfig| estimate(config, &inputs(&trajectories, &values, Placement::Turn)).unwrap().ret;
    close(&ret(&config), &[1.875, 2.5, 1.75, 2.0]);
    config.bootstrap_truncated = false;
    close(&ret(&config), &[1.75, 2.0, 1.75, 2.0]);
}

/// Its turns are credited by their returns from an anchor, wherever the reward is said to stand.
#[test]
fn gigpo_has_one_meaning() {
    let trajectories = batch(12, 40);
    let config = AlgorithmConfig { turn_gamma: 0.9, ..group_config(Estimator::Gigpo) };
    let of = |placement| estimate(&config, &inputs(&trajectories, &[], placement)).unwrap();
    assert_eq!(of(Placement::Turn), of(Placement::Trajectory));
}
