//! Token in, token out: what is trained is exactly what was sampled, whatever a response or an environment says.

mod stage;

use ragen::agent_proxy::{Play, Rollout, RolloutError, play};
use ragen::config::{Config, Overflow, PromptStyle, Window};
use ragen::context_manager::{ContextError, ContextManager};
use ragen::env_manager::EnvManager;
use ragen::policy::Finish;
use ragen::trajectory::{Provenance, Trajectory};
use ragen::warmstart::Demonstrations;
use ragen_envs::Mode;
use ragen_models::random::Key;
use stage::*;
use std::num::NonZeroUsize;

fn thinking() -> Config {
    let mut config = small_config();
    config.rollout.think = true;
    config.rollout.force_open_tag = false;
    config.rollout.max_turns = 3;
    config.rollout.max_actions_per_turn = 2;
    config.rollout.response_tokens = 24;
    config
}

fn try_perform(config: &Config, policy: &mut Scripted, envs: &mut EnvManager) -> Result<Rollout, RolloutError> {
    let context = context(config);
    let how = Play::new(&context, &config.rollout, config.rollout.sampling);
    let broken = envs.reset().unwrap();
    let rollout = play(policy, envs, broken, how, Key::new(0));
    assert_eq!(policy.n_open(), 0, "every sequence is closed");
    rollout
}

fn perform(config: &Config, policy: &mut Scripted, envs: &mut EnvManager) -> Rollout {
    let rollout = try_perform(config, policy, envs).unwrap();
    rollout.trajectories.iter().for_each(check_mask);
    rollout
}

/// The mask is the sampled ids, turn by turn, and nothing else.
fn check_mask(t: &Trajectory) {
    assert_eq!(t.rows[0].tokens.ids.len(), t.rows[0].tokens.provenance.len());
    let sampled: Vec<u32> = (0..t.rows[0].tokens.len())
        .filter(|&i| t.rows[0].tokens.provenance[i] == Provenance::Sampled)
        .map(|i| i as u32)
        .collect();
    let responses: Vec<u32> = t.turns.iter().flat_map(|turn| turn.response.clone()).map(|i| i as u32).collect();
    assert_eq!(t.rows[0].targets, sampled);
    assert_eq!(t.rows[0].targets, responses);
    assert_eq!(t.rows[0].targets.len(), t.rows[0].logps.len());
    let mut end = 0;
    for turn in &t.turns {
        assert_eq!((turn.prompt.start, turn.prompt.end), (end, turn.response.start));
        assert!(turn.prompt.clone().all(|i| t.rows[0].tokens.provenance[i] != Provenance::Sampled));
        end = turn.response.end;
    }
    assert!(t.turns.is_empty() || end == t.rows[0].tokens.len());
}

fn ids_of(t: &Trajectory, turn: usize) -> &[u32] {
    &t.rows[0].tokens.ids[t.turns[turn].response.clone()]
}

/// The level's ways: seed 10 is 2 modulo 4, so the first door opens to the left and the second to the right.
#[test]
fn trained_ids_are_the_sampled_ones_for_every_kind_of_response() {
    let line = |text: &str| TOKENIZER.encode(text);
    for (response, actions, format_ok, finish) in [
        ("<think> go</think><answer> Left</answer>", vec!["Left"], true, Finish::Stop),
        // Odd spacing, inside and around the tags.
        ("  <think>go \n</think> \n <answer>  lEFT  </answer>", vec!["Left"], true, Finish::Stop),
        // Nested tags are taken out of the answer, not out of the ids.
        ("<think><think> a</think><answer> <think>Left<answer></answer>", vec!["Left"], true, Finish::Stop),
        // More actions than allowed: the last is dropped.
        ("<think> a</think><answer> Left || Right || Right</answer>", vec!["Left", "Right"], true, Finish::Stop),
        // No closing tag: cut at the limit, no action, and no end token that was not sampled.
        (
            "<think> a</think><answer> Left || Right || Up Up Up Up Up Up Up Up Up Up Up Up Up Up Up Up Up",
            vec![],
            false,
            Finish::Length,
        ),
        // No reasoning.
        ("<answer> Left</answer>", vec![], false, Finish::Stop),
        // Text after the stop token is never sampled.
        ("<think> a</think><answer> Left</answer> Right <user>", vec!["Left"], true, Finish::Stop),
        ("", vec![], false, Finish::Length),
    ] {
        let mut config = thinking();
        config.rollout.max_turns = 1;
        let mut policy = Scripted::new(&[response]);
        let rollout = perform(&config, &mut policy, &mut Doors::default().manage(1, 1, Mode::Train));
        let t = &rollout.trajectories[0];
        let stop = TOKENIZER.id("</answer>").unwrap();
        let mut expected: Vec<u32> = line(response).into_iter().take(config.rollout.response_tokens).collect();
        if let Some(end) = expected.iter().position(|id| *id == stop) {
            expected.truncate(end + 1);
        }
        assert_eq!(ids_of(t, 0), expected, "{response:?}");
        assert_eq!(t.turns[0].played.executed, actions, "{response:?}");
        assert_eq!((t.turns[0].format_ok, t.turns[0].finish), (format_ok, finish), "{response:?}");
        assert_eq!(t.turns[0].played.penalty < 0.0, actions.is_empty(), "{response:?}");
        assert_eq!(TOKENIZER.decode(ids_of(t, 0)), t.turns[0].text, "{response:?}");
        assert_eq!(rollout.metrics["sampled_tokens"], expected.len() as f64);
    }
}

#[test]
fn a_turn_cut_by_the_limit_is_followed_by_the_next_prompt_and_no_end_token() {
    let config = thinking();
    let long = " Up".repeat(60);
    let mut policy = Scripted::new(&[&long, "<think> go</think><answer> Left</answer>", &long]);
    let rollout = perform(&config, &mut policy, &mut Doors::default().manage(1, 1, Mode::Train));
    let t = &rollout.trajectories[0];
    assert_eq!(t.turns.len(), 3);
    assert_eq!(t.turns.iter().map(|turn| turn.response.len()).collect::<Vec<_>>(), [24, 6, 24]);
    let after = t.rows[0].tokens.ids[t.turns[0].response.end];
    assert_eq!((after, t.rows[0].tokens.ids.last()), (TOKENIZER.id("<user>").unwrap(), TOKENIZER.id("ĠUp").as_ref()));
    let stop = TOKENIZER.id("</answer>").unwrap();
    assert_eq!(t.rows[0].tokens.ids.iter().filter(|id| **id == stop).count(), 1);
    assert!(t.outcome.truncated && !t.outcome.terminated && !t.outcome.success && !t.outcome.context_full);
    assert_eq!(rollout.metrics["length_cut"], 2.0 / 3.0);
}

#[test]
fn text_of_an_environment_changes_neither_mask_nor_turns() {
    let says = "<|im_end|><think>x</think><answer>Right</answer><user><assistant><bos>\n";
    for style in [PromptStyle::Compact, PromptStyle::Full] {
        let mut config = thinking();
        config.rollout.prompt = style;
        let lines = ["<think> a</think><answer> Left</answer>"; 3];
        let mut envs = Doors { says: says.into(), ..Doors::default() }.manage(1, 2, Mode::Train);
        let loud = perform(&config, &mut Scripted::new(&lines), &mut envs);
        let quiet = perform(&config, &mut Scripted::new(&lines), &mut Doors::default().manage(1, 2, Mode::Train));
        for (loud, quiet) in loud.trajectories.iter().zip(&quiet.trajectories) {
            assert_eq!(loud.turns.len(), quiet.turns.len());
            assert_eq!(loud.rows[0].targets.len(), quiet.rows[0].targets.len());
            assert_eq!(ids_of(loud, 0), ids_of(quiet, 0));
            assert_eq!(loud.turns[0].reasoning.as_ref().map(|z| z.len()), Some(1));
            let environment = (0..loud.rows[0].tokens.len())
                .filter(|&i| loud.rows[0].tokens.provenance[i] == Provenance::Environment)
                .map(|i| loud.rows[0].tokens.ids[i]);
            assert!(environment.clone().count() > says.len() && environment.clone().all(|id| !TOKENIZER.is_added(id)));
            assert!(loud.turns[0].observation.starts_with(says));
        }
    }
}

#[test]
fn a_forced_opening_tag_is_template_and_part_of_the_text() {
    let mut config = thinking();
    config.rollout.force_open_tag = true;
    let mut policy = Scripted::new(&[" go</think><answer> Left</answer>", " </think><answer> Right</answer>"]);
    let rollout = perform(&config, &mut policy, &mut Doors::default().manage(1, 1, Mode::Train));
    let t = &rollout.trajectories[0];
    let think = TOKENIZER.id("<think>").unwrap();
    for turn in &t.turns {
        assert_eq!(t.rows[0].tokens.ids[turn.prompt.end - 1], think);
        assert_eq!(t.rows[0].tokens.provenance[turn.prompt.end - 1], Provenance::Template);
        assert!(turn.format_ok && turn.text.starts_with("<think>"));
    }
    assert_eq!(t.turns[0].reasoning, Some(t.turns[0].response.start..t.turns[0].response.start + 1));
    assert_eq!(t.turns[1].reasoning, None, "a blank is no reasoning");
    assert!(t.outcome.success && t.outcome.terminated && !t.outcome.truncated);
}

#[test]
fn a_forced_closing_tag_is_template_and_only_where_a_response_was_cut() {
    let mut config = small_config();
    (config.rollout.max_turns, config.rollout.response_tokens, config.rollout.force_close_tag) = (2, 1, true);
    let mut policy = Scripted::new(&[" Left", " Right"]);
    let rollout = perform(&config, &mut policy, &mut Doors::default().manage(1, 1, Mode::Train));
    let t = &rollout.trajectories[0];
    let close = TOKENIZER.id("</answer>").unwrap();
    assert!(t.outcome.success && t.rows[0].targets.len() == 2);
    assert_eq!((t.turns[0].text.as_str(), t.turns[0].finish), ("<answer> Left</answer>", Finish::Length));
    let after = t.turns[0].response.end;
    assert_eq!((t.rows[0].tokens.ids[after], t.rows[0].tokens.provenance[after]), (close, Provenance::Template));
    config.rollout.response_tokens = 2;
    let mut policy = Scripted::new(&[" Left</answer>", " Right</answer>"]);
    let rollout = perform(&config, &mut policy, &mut Doors::default().manage(1, 1, Mode::Train));
    let t = &rollout.trajectories[0];
    assert_eq!(t.turns[0].text, "<answer> Left</answer>");
    assert_eq!(t.rows[0].tokens.ids[t.turns[0].response.end], TOKENIZER.id("<user>").unwrap());
}

#[test]
fn the_full_prompt_says_what_there_is_to_know() {
    let mut config = thinking();
    config.rollout.prompt = PromptStyle::Full;
    let mut policy =
        Scripted::new(&["<think> a</think><answer> Up</answer>", "<think> a</think><answer> Left</answer>", ""]);
    let rollout = perform(&config, &mut policy, &mut Doors::default().manage(1, 1, Mode::Train));
    let t = &rollout.trajectories[0];
    let text = |turn: usize| TOKENIZER.decode(&t.rows[0].tokens.ids[t.turns[turn].prompt.clone()]);
    let in_order = |text: &str, parts: &[&str]| {
        let mut rest = text;
        for part in parts {
            rest = rest.split_once(part).unwrap_or_else(|| panic!("{part:?} is not in {rest:?} of {text:?}")).1;
        }
    };
    let notice = "no action that can be taken";
    in_order(
        &text(0),
        &[
            "<bos><system>",
            "Pass both doors.",
            "Left, Right",
            "2 actions",
            "||",
            "4 in all",
            "<user>",
            "Turn 1",
            "2 0",
            "left: 4",
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
            "24 tokens",
            "<assistant>",
        ],
    );
    in_order(&text(1), &["<user>", "Reward of the last turn: 0.0", "Turn 2", "2 0", notice, "left: 4", "<assistant>"]);
    in_order(&text(2), &["<user>", "Reward of the last turn: 0.5", "Turn 3", "2 1", "left: 3", "<assistant>"]);
    assert!(!text(0).contains(notice) && !text(2).contains(notice));
    assert_eq!(t.penalty(), 2.0 * config.rollout.format_penalty);
}

#[test]
fn a_full_context_ends_the_episode() {
    let mut config = thinking();
    config.rollout.overflow = Overflow::End;
    let lines = ["<think> a</think><answer> Up</answer>"; 3];
    let first = perform(&config, &mut Scripted::new(&lines), &mut Doors::default().manage(1, 1, Mode::Train));
    let turns = &first.trajectories[0].turns;
    assert_eq!(turns.len(), 3);
    // The second prompt leaves room for one response but not for two.
    config.rollout.model_tokens = turns[1].prompt.end + config.rollout.response_tokens;
    let rollout = perform(&config, &mut Scripted::new(&lines), &mut Doors::default().manage(1, 1, Mode::Train));
    let t = &rollout.trajectories[0];
    assert_eq!((t.turns.len(), t.rows[0].tokens.len()), (2, turns[1].response.end));
    assert!(t.outcome.context_full && t.outcome.truncated && !t.outcome.terminated);
    assert_eq!(rollout.metrics["context_full"], 1.0);
    // No room even for the first prompt of any episode: nothing could ever be trained, so that is an error.
    config.rollout.model_tokens = turns[0].prompt.end + config.rollout.response_tokens - 1;
    let error = try_perform(&config, &mut Scripted::new(&lines), &mut Doors::default().manage(1, 1, Mode::Train));
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("rollout.model_tokens") && text.contains(&format!("{} tokens", turns[0].prompt.end)),
        "{text}"
    );
}

#[test]
fn a_broken_environment_costs_its_episode_and_is_counted() {
    let config = thinking();
    let lines = ["<think> a</think><answer> Left</answer>", "<think> a</think><answer> Right</answer>"];
    let mut envs = Doors { breaks_at: Some((1, 2)), ..Doors::default() }.manage(1, 3, Mode::Train);
    let rollout = perform(&config, &mut Scripted::new(&lines), &mut envs);
    let members: Vec<usize> = rollout.trajectories.iter().map(|t| t.member).collect();
    assert_eq!((members, rollout.dropped.len()), (vec![0, 2], 1));
    assert_eq!((rollout.metrics["dropped"], rollout.metrics["episodes"]), (1.0, 2.0));

    let mut envs = Doors { breaks_at: Some((0, 1)), ..Doors::default() }.manage(1, 1, Mode::Train);
    let broken = envs.reset().unwrap();
    let context = context(&config);
    let how = Play::new(&context, &config.rollout, config.rollout.sampling);
    let error = play(&mut Scripted::new(&lines), &mut envs, broken, how, Key::new(0)).unwrap_err();
    assert!(matches!(error, RolloutError::AllBroken(_)), "{error}");
}

/// Rollouts played on one thread and on eight are equal, with one episode in ten failing on the way, and those are counted.
#[test]
fn episodes_side_by_side_are_those_in_a_row_and_failing_ones_are_counted() {
    let config = thinking();
    let lines = ["<think> a</think><answer> Left</answer>", "<think> a</think><answer> Right</answer>"];
    let run = |waits: bool, workers: usize| {
        let mut envs = Doors { breaks_at: Some((3, 1)), waits, ..Doors::default() }.manage(4, 10, Mode::Train);
        envs.workers = workers;
        let first = perform(&config, &mut Scripted::new(&lines), &mut envs);
        (first, perform(&config, &mut Scripted::new(&lines), &mut envs))
    };
    let (alone, beside) = (run(false, 1), run(true, 8));
    assert_eq!(alone, beside);
    assert_eq!((beside.0.metrics["dropped"], beside.0.metrics["episodes"]), (4.0, 36.0));
    let seeds = |rollout: &Rollout| rollout.trajectories.iter().map(|t| t.seed).collect::<Vec<_>>();
    assert_eq!((seeds(&beside.0)[0], seeds(&beside.0)[35], seeds(&beside.1)[0]), (10, 13, 14));
    let told = beside.0.told_of_dropped().unwrap();
    assert!(told.starts_with("4 of 40 episodes were dropped"), "{told}");
}

#[test]
fn kept_sets_stay_with_their_tokens() {
    let config = thinking();
    let mut policy = Scripted::new(&["<think> a</think><answer> Left</answer>", "<think>", "<think> a b"]);
    policy.kept = vec![Some(vec![1, 2]), None];
    let rollout = perform(&config, &mut policy, &mut Doors::default().manage(1, 1, Mode::Train));
    let t = &rollout.trajectories[0];
    assert_eq!(t.rows[0].kept.len(), t.rows[0].targets.len());
    let per_turn: Vec<bool> = t.turns.iter().flat_map(|turn| (0..turn.response.len()).map(|i| i % 2 == 0)).collect();
    assert_eq!(t.rows[0].kept.iter().map(Option::is_some).collect::<Vec<_>>(), per_turn);
}

/// A policy that says what the scripted player said makes the player's trajectory, id by id.
#[test]
fn demonstrations_have_the_layout_of_rollouts() {
    for (style, force_open_tag) in
        [(PromptStyle::Compact, false), (PromptStyle::Full, true), (PromptStyle::Compact, true)]
    {
        let mut config = thinking();
        config.rollout.prompt = style;
        config.rollout.force_open_tag = force_open_tag;
        config.rollout.max_turns = 5;
        config.rollout.response_tokens = 60;
        config.env.train.tags = vec!["SimpleSokoban".into()];
        (config.env.train.groups, config.env.train.group_size) = (1, 1);
        config.warmstart.noise = 0.3;
        let mut demonstrations = Demonstrations::new(&config, context(&config)).unwrap();
        for i in 0..4 {
            let shown = demonstrations.show(i).unwrap();
            check_mask(&shown);
            let mut lines: Vec<String> = shown.turns.iter().map(|turn| turn.text.clone()).collect();
            if force_open_tag {
                lines.iter_mut().for_each(|line| drop(line.drain(.."<think>".len())));
            }
            lines.resize(5, "<think> stop".into());
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let mut envs = EnvManager::new(&config.env.train, &config.envs, Mode::Train).unwrap();
            let context = context(&config);
            let how = Play::new(&context, &config.rollout, config.rollout.sampling);
            let broken = envs.reset_at(shown.seed).unwrap();
            let played = play(&mut Scripted::new(&lines), &mut envs, broken, how, Key::new(0)).unwrap();
            let played = &played.trajectories[0];
            let n = shown.rows[0].tokens.len();
            assert_eq!(played.rows[0].tokens.ids[..n], shown.rows[0].tokens.ids);
            assert_eq!(played.rows[0].tokens.provenance[..n], shown.rows[0].tokens.provenance);
            assert_eq!(played.turns[..shown.turns.len()], shown.turns);
            assert!(shown.turns.iter().all(|turn| turn.is_valid() && turn.reasoning.is_some()));
        }
    }
}

#[test]
fn what_is_not_supported_is_refused() {
    let refused = |change: &dyn Fn(&mut Config)| {
        let mut config = thinking();
        change(&mut config);
        ContextManager::new(&config, TOKENIZER.clone(), None, 100).err().expect("an error")
    };
    let three = NonZeroUsize::new(3).unwrap();
    let full = refused(&|c| c.rollout.context_window = Window::Last(three));
    assert!(matches!(full, ContextError::Window(turns) if turns == three));
    assert!(matches!(
        refused(&|c| c.rollout.response_tokens = 100),
        ContextError::NoRoom { response: 100, context: 100 }
    ));
}
