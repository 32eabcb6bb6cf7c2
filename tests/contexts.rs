//! Context modes: which turns a prompt shows, as which ids, and that an episode of several rows counts as one.

mod stage;
mod tiny_model;

use ragen::agent_proxy::{Play, Rollout, play};
use ragen::config::{Config, ContextMode, Overflow, PromptStyle, Window};
use ragen::context_manager::ContextManager;
use ragen::env_manager::{EnvManager, Episode, TagRules};
use ragen::estimator::Estimator;
use ragen::plan::Lengths;
use ragen::policy::model::Model;
use ragen::policy::*;
use ragen::train::Trainer;
use ragen::trajectory::{Provenance, Trajectory};
use ragen_envs::{Brief, Legend, Mode, Recap};
use ragen_models::chat_template::Chat;
use ragen_models::device::Cpu;
use ragen_models::optim::AdamWSettings;
use ragen_models::random::Key;
use ragen_models::simd::Isa;
use ragen_models::tokenizer::Tokenizer;
use ragen_models::transformer::Precision;
use stage::*;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

const LINES: [&str; 4] = [
    "<think> a</think><answer> Up</answer>",
    "<think> b</think><answer> Left</answer>",
    "<think> c</think><answer> Up</answer>",
    "<think> d</think><answer> Right</answer>",
];

fn last(turns: usize) -> Window {
    Window::Last(NonZeroUsize::new(turns).unwrap())
}

/// Four turns of doors, the tags written by the policy.
fn config(context: ContextMode, window: Window) -> Config {
    let mut config = small_config();
    (config.rollout.think, config.rollout.force_open_tag) = (true, false);
    (config.rollout.max_turns, config.rollout.max_actions_per_turn) = (4, 1);
    (config.rollout.response_tokens, config.rollout.model_tokens) = (16, 4000);
    (config.rollout.context, config.rollout.context_window) = (context, window);
    config
}

fn perform_in(config: &Config, envs: &mut EnvManager) -> Trajectory {
    let mut policy = Scripted { by_call: true, ..Scripted::new(&LINES) };
    let context = context(config);
    let how = Play::new(&context, &config.rollout, config.rollout.sampling);
    let broken = envs.reset().unwrap();
    let mut rollout = play(&mut policy, envs, broken, how, Key::new(0)).unwrap();
    assert_eq!(policy.n_open(), 0);
    rollout.trajectories.remove(0)
}

fn perform(config: &Config) -> Trajectory {
    perform_in(config, &mut Doors::default().manage(1, 1, Mode::Train))
}

fn texts(t: &Trajectory) -> Vec<String> {
    t.rows.iter().map(|row| TOKENIZER.decode(&row.tokens.ids)).collect()
}

fn shown_from(t: &Trajectory) -> Vec<usize> {
    t.turns.iter().map(|turn| turn.shown_from).collect()
}

/// A row ends with the response that was sampled in it; all responses before it in the row are those of earlier turns, id by id.
fn check_rows_of_turns(t: &Trajectory) {
    assert_eq!(t.rows.len(), t.turns.len());
    for (i, (row, turn)) in t.rows.iter().zip(&t.turns).enumerate() {
        assert_eq!((turn.row, turn.prompt.start, turn.prompt.end), (i, 0, turn.response.start));
        assert_eq!(turn.response.end, row.tokens.len());
        assert_eq!(row.targets, turn.response.clone().map(|at| at as u32).collect::<Vec<_>>());
        assert_eq!(row.logps.len(), row.targets.len());
        let mut history = row.tokens.ids.iter().zip(&row.tokens.provenance).filter(|(_, p)| **p == Provenance::History);
        for earlier in &t.turns[turn.shown_from..i] {
            for id in &t.rows[earlier.row].tokens.ids[earlier.response.clone()] {
                assert_eq!(history.next().map(|(id, _)| id), Some(id));
            }
        }
        assert!(history.next().is_none());
    }
}

#[test]
fn a_limited_conversation_shows_the_last_turns_id_by_id() {
    let t = perform(&config(ContextMode::LimitedMultiTurn, last(2)));
    check_rows_of_turns(&t);
    assert_eq!((t.turns.len(), shown_from(&t)), (4, vec![0, 0, 1, 2]));
    assert!(t.outcome.success);
    assert_eq!(
        texts(&t),
        [
            format!("<bos><user>2 0<assistant>{}", LINES[0]),
            format!("<bos><user>2 0<assistant>{}<user>2 0<assistant>{}", LINES[0], LINES[1]),
            format!("<bos><user>2 0<assistant>{}<user>2 1<assistant>{}", LINES[1], LINES[2]),
            format!("<bos><user>2 1<assistant>{}<user>2 1<assistant>{}", LINES[2], LINES[3]),
        ]
    );
    // One turn is the present one; all turns are those of the one row of a full context, in rows.
    let t = perform(&config(ContextMode::LimitedMultiTurn, last(1)));
    check_rows_of_turns(&t);
    assert_eq!(texts(&t)[3], format!("<bos><user>2 1<assistant>{}", LINES[3]));
    let t = perform(&config(ContextMode::LimitedMultiTurn, Window::All));
    check_rows_of_turns(&t);
    let full = perform(&config(ContextMode::Full, Window::All));
    assert_eq!((full.rows.len(), &full.rows[0].tokens.ids), (1, &t.rows[3].tokens.ids));
    for (turn, own) in full.turns.iter().zip(&t.turns) {
        assert_eq!(full.rows[0].tokens.ids[..turn.prompt.end], t.rows[own.row].tokens.ids[..own.prompt.end]);
    }
}

#[test]
fn a_single_turn_sums_up_the_last_turns() {
    let t = perform(&config(ContextMode::SingleTurn, last(2)));
    check_rows_of_turns(&t);
    assert_eq!(shown_from(&t), [0, 0, 1, 2]);
    assert_eq!(texts(&t)[2], format!("<bos><user>2 0\n{}\n2 1<assistant>{}", LINES[1], LINES[2]));

    let mut config = config(ContextMode::SingleTurn, last(3));
    config.rollout.prompt = PromptStyle::Full;
    let t = perform(&config);
    check_rows_of_turns(&t);
    let text = &texts(&t)[3];
    let mut rest = text.as_str();
    for part in [
        "<bos><system>You act",
        "<user>Turns done: 3. The last 2:\n\nTurn 2\n2 0\nYour response: <think> b</think><answer> Left</answer>\nReward: 0.5",
        "Turn 3\n2 1\nYour response: <think> c</think><answer> Up</answer>\nReward: 0.0\n\nTurn 4\n2 1",
        "The last response named no action",
        "Actions left: 3",
        "<assistant><think> d</think>",
    ] {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is not in the rest {rest:?} of {text:?}"));
        rest = &rest[at + part.len()..];
    }
    assert!(!text.contains("Reward of the last turn"));
    // The tags of a response that is told again are the policy's own tokens.
    let close = TOKENIZER.id("</answer>").unwrap();
    let row = &t.rows[3].tokens;
    let told = row.ids.iter().zip(&row.provenance).filter(|(id, p)| **id == close && **p == Provenance::History);
    assert_eq!(told.count(), 2);
    // With one turn in view there is nothing to sum up.
    config.rollout.context_window = last(1);
    assert!(texts(&perform(&config)).iter().all(|text| text.contains("<user>Turn ") && !text.contains("Turns done")));
}

#[test]
fn a_type_may_tell_its_turns_in_brief() {
    let brief = Brief {
        task: |state| state.split_once("Task: ").map_or(String::new(), |(_, task)| task[..4].to_string()),
        gist: |state| state.split(" | ").next().unwrap_or_default().replace("Task: open.", ""),
        offers: |state| state.split_once(" | ").map_or(String::new(), |(_, offers)| offers.to_string()),
        max_chars: 6,
    };
    let rules = TagRules {
        name: "Doors".into(),
        instruction: String::new(),
        legend: Legend::default(),
        max_actions: 4,
        single_action: false,
        max_tokens: 0,
        many_starts: false,
        waits: false,
        recap: Recap::Brief(brief),
    };
    let doors = Doors { says: "Task: open.You see door ".into(), ..Doors::default() };
    let episode = Episode::new(Arc::new(rules), 0, 0, Box::new(doors));
    let mut config = config(ContextMode::SingleTurn, last(3));
    config.rollout.prompt = PromptStyle::Full;
    let t = perform_in(&config, &mut EnvManager::from_episodes(vec![episode], 1, 10, Mode::Train));
    check_short(&texts(&t)[3]);
}

/// Of the turns before, the task, the count of steps, and a few words with the action alone.
fn check_short(text: &str) {
    let told = "<user>Task: open\nSteps taken: 1. The last 2 turns:\n- You se -> Left\n- You se -> Up\n\nTurn 4\nYou see door 2 1";
    assert!(text.contains(told), "{text}");
}

#[test]
fn what_does_not_fit_is_left_out_in_whole_turns() {
    let whole = perform(&config(ContextMode::Full, Window::All));
    let mut config = config(ContextMode::Full, Window::All);
    // Room for two turns and a response, not for three.
    config.rollout.model_tokens = whole.turns[1].response.end + config.rollout.response_tokens;
    let t = perform(&config);
    assert_eq!((t.turns.len(), shown_from(&t)), (4, vec![0, 0, 1, 2]));
    assert_eq!(t.turns.iter().map(|turn| turn.row).collect::<Vec<_>>(), [0, 0, 1, 2]);
    assert!(t.outcome.success && !t.outcome.context_full);
    assert_eq!(texts(&t)[1], format!("<bos><user>2 0<assistant>{}<user>2 1<assistant>{}", LINES[1], LINES[2]));
    for row in &t.rows {
        assert!(row.tokens.len() <= config.rollout.model_tokens);
        let sampled: Vec<u32> = (0..row.tokens.len() as u32)
            .filter(|at| row.tokens.provenance[*at as usize] == Provenance::Sampled)
            .collect();
        assert_eq!(row.targets, sampled);
    }
    let json = t.to_json(&|ids| TOKENIZER.decode(ids), serde_json::Map::new());
    assert_eq!(
        json["turns"].as_array().unwrap().iter().map(|t| t["shown_from"].as_u64()).collect::<Vec<_>>(),
        [Some(0), Some(0), Some(1), Some(2)]
    );
    // One token less: the second prompt fits no more behind the first turn either.
    config.rollout.model_tokens = whole.turns[1].prompt.end + config.rollout.response_tokens - 1;
    assert_eq!(shown_from(&perform(&config)), [0, 1, 2, 3]);
    // A window is cut as well, and so is a summary; whoever wants no cut has the episode end.
    for mode in [ContextMode::LimitedMultiTurn, ContextMode::SingleTurn] {
        let mut windowed = config.clone();
        windowed.rollout.context = mode;
        let t = perform(&windowed);
        check_rows_of_turns(&t);
        assert!(t.outcome.success && *shown_from(&t).last().unwrap() > 0, "{mode:?}");
        assert!(t.rows.iter().all(|row| row.tokens.len() <= windowed.rollout.model_tokens));
        windowed.rollout.overflow = Overflow::End;
        let t = perform(&windowed);
        assert!(
            t.outcome.context_full && t.turns.len() < 4 && shown_from(&t).iter().all(|from| *from == 0),
            "{mode:?}"
        );
    }
}

fn chat() -> (Arc<Tokenizer>, Arc<Chat>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/golden/tokenizers/tiny_qwen");
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let chat = Chat::load(&dir, &tokenizer).unwrap().unwrap();
    (Arc::new(tokenizer), Arc::new(chat))
}

/// Every mode with both layouts and both styles, with the room that makes turns drop out.
fn settings() -> Vec<(String, Config, ContextManager)> {
    let (tokenizer, chat) = chat();
    let mut settings = Vec::new();
    for (mode, window, model_tokens) in [
        (ContextMode::Full, Window::All, 4000),
        (ContextMode::Full, Window::All, 0),
        (ContextMode::LimitedMultiTurn, last(2), 4000),
        (ContextMode::LimitedMultiTurn, Window::All, 0),
        (ContextMode::SingleTurn, last(3), 4000),
        (ContextMode::SingleTurn, Window::All, 0),
    ] {
        for layout in ["compact", "full", "chat"] {
            let mut config = config(mode, window);
            config.rollout.force_open_tag = layout == "chat";
            config.rollout.format_penalty = 0.0;
            if layout != "compact" {
                config.rollout.prompt = PromptStyle::Full;
            }
            let narrow = match layout {
                "compact" => 60,
                "full" => 330,
                _ => 620,
            };
            config.rollout.model_tokens = if model_tokens == 0 { narrow } else { model_tokens };
            let (tokenizer, chat) = match layout {
                "chat" => (tokenizer.clone(), Some(chat.clone())),
                _ => (TOKENIZER.clone(), None),
            };
            let name = format!("{mode:?} {window:?} {layout} {}", config.rollout.model_tokens);
            let context = ContextManager::new(&config, tokenizer, chat, usize::MAX).unwrap();
            settings.push((name, config, context));
        }
    }
    settings
}

fn model(context: &ContextManager, estimator: Estimator) -> Model {
    let shape = tiny_model::shape(context.tokenizer.vocab(), 4000, estimator == Estimator::Gae);
    let params = tiny_model::weights(&shape, 20.0);
    Model::new(Arc::new(Cpu::with(Isa::available()[0], 2)), shape, params, Precision::F32, AdamWSettings::default())
}

fn rollout(config: &Config, context: &ContextManager, policy: &mut Model) -> Rollout {
    let how = Play::new(context, &config.rollout, config.rollout.sampling);
    let mut envs = Doors::default().manage(2, 3, Mode::Train);
    let broken = envs.reset().unwrap();
    play(policy, &mut envs, broken, how, Key::new(1)).unwrap()
}

#[test]
fn in_every_mode_what_is_scored_has_the_bits_it_was_sampled_with() {
    let mut n_dropped = 0;
    for (name, config, context) in settings() {
        let mut policy = model(&context, Estimator::Grpo);
        let rollout = rollout(&config, &context, &mut policy);
        let trajectories = &rollout.trajectories;
        assert!(trajectories.iter().all(|t| t.turns.len() == 4), "{name}: {:?}", rollout.metrics);
        n_dropped += trajectories.iter().filter(|t| shown_from(t) != shown_from(&trajectories[0])).count();
        n_dropped += usize::from(shown_from(&trajectories[0])[3] > 0 && config.rollout.context_window == Window::All);
        let rows: Vec<Row<'_>> = trajectories.iter().flat_map(Trajectory::views).collect();
        assert!(config.rollout.context == ContextMode::Full || rows.len() == 24, "{name}: {} rows", rows.len());
        let sampled: Vec<u32> =
            trajectories.iter().flat_map(|t| &t.rows).flat_map(|row| &row.logps).map(|l| l.to_bits()).collect();
        assert!(sampled.len() > 100);
        let scored = policy.score(Weights::Policy, &rows, 1.0).unwrap().logp;
        assert_eq!(scored.iter().map(|l| l.to_bits()).collect::<Vec<_>>(), sampled, "{name}");
    }
    assert!(n_dropped >= 7, "turns were left out {n_dropped} times");
}

#[test]
fn in_every_mode_the_plan_has_room_for_the_rows_that_are_played() {
    for (name, config, context) in settings() {
        let mut config = config.clone();
        config.env.train.tags = vec!["SimpleSokoban".into()];
        config.val.before_train = false;
        config.val.every = 0;
        config.rollout.model_tokens = 4000;
        let context = match name.contains("chat") {
            true => {
                let (tokenizer, chat) = chat();
                ContextManager::new(&config, tokenizer, Some(chat), usize::MAX).unwrap()
            }
            false => ContextManager::new(&config, context.tokenizer.clone(), None, usize::MAX).unwrap(),
        };
        let lengths = Lengths::measure(&config, &context).unwrap();
        let several = config.rollout.context != ContextMode::Full || name.contains("chat");
        assert_eq!((lengths.rows, lengths.first == 0), if several { (4, true) } else { (1, false) }, "{name}");
        let mut trainer = Trainer::new(config.clone(), context).unwrap();
        let broken = trainer.train_envs.reset().unwrap();
        let how = Play::new(&trainer.context, &config.rollout, config.rollout.sampling);
        // Words that end nothing, as many tokens as there may be.
        let line =
            "<think> I walk left, then up again; perhaps the box moves if it is pushed from there, or not at all?";
        let tokenizer = trainer.context.tokenizer.clone();
        let mut policy = Scripted { tokenizer, by_call: true, ..Scripted::new(&[line; 4]) };
        let rollout = play(&mut policy, &mut trainer.train_envs, broken, how, Key::new(1)).unwrap();
        let longest = rollout.trajectories.iter().flat_map(|t| &t.rows).map(|row| row.tokens.len()).max().unwrap();
        // A level's text may take a few tokens more than those of the few levels that are measured.
        assert!(20 * longest <= 21 * lengths.row, "{name}: a row of {longest} tokens, {} planned", lengths.row);
        assert!(2 * longest > lengths.row, "{name}: a row of {longest} tokens, {} planned", lengths.row);
    }
}

/// A cast: the first member goes wrong at once, the second at the second door, the others pass both; one of them dallies.
struct Members {
    base: Key,
    inner: Scripted,
}

impl Members {
    fn line(&self, key: Key) -> &'static str {
        let of = |group: u64, member: u64, turn: u64| self.base.with(group).with(member).with(turn) == key;
        let all =
            (0..2).flat_map(|group| (0..4).flat_map(move |member| (1..=4).map(move |turn| (group, member, turn))));
        let (group, member, turn) = all.into_iter().find(|&(g, m, t)| of(g, m, t)).expect("a key of the rollout");
        // Seeds 10 and 11: the doors of level 2 open left and right, those of level 3 right and right.
        let first = if group == 0 { LINES[1] } else { LINES[3] };
        let wrong = if group == 0 { LINES[3] } else { LINES[1] };
        match (member, turn) {
            (0, _) => wrong,
            (1, 2) => LINES[1],
            (3, 1) => LINES[0],
            (3, 2) | (_, 1) => first,
            _ => LINES[3],
        }
    }
}

impl Policy for Members {
    fn generate(
        &mut self,
        requests: &[Request<'_>],
        how: &Sampling,
        stop: &Stop<'_>,
    ) -> Result<Vec<Response>, PolicyError> {
        let mut responses = Vec::new();
        for request in requests {
            self.inner.by_call = true;
            self.inner.calls = 0;
            self.inner.lines = vec![self.line(request.key).to_string()];
            responses.extend(self.inner.generate(std::slice::from_ref(request), how, stop)?);
        }
        Ok(responses)
    }

    fn max_positions(&self) -> usize {
        self.inner.max_positions()
    }

    fn has_value(&self) -> bool {
        false
    }

    fn open(&mut self) -> SequenceId {
        self.inner.open()
    }

    fn close(&mut self, sequence: SequenceId) {
        self.inner.close(sequence);
    }

    fn score(&mut self, weights: Weights, rows: &[Row<'_>], temperature: f32) -> Result<TokenValues, PolicyError> {
        self.inner.score(weights, rows, temperature)
    }

    fn freeze_reference(&mut self) -> Result<(), PolicyError> {
        Ok(())
    }

    fn accumulate(
        &mut self,
        rows: &[Row<'_>],
        temperature: f32,
        objective: &mut dyn FnMut(&TokenValues) -> TokenSeeds,
    ) -> Result<TokenValues, PolicyError> {
        self.inner.accumulate(rows, temperature, objective)
    }

    fn update(&mut self, lr: f64) -> Result<Update, PolicyError> {
        self.inner.update(lr)
    }
}

/// What the environments paid does not depend on how it was shown, so neither does what a group is worth or an episode is
/// trained towards.
#[test]
fn an_episode_counts_once_however_many_rows_it_has() {
    let mut seen: Vec<(Vec<f64>, Vec<f64>)> = Vec::new();
    for (mode, window) in
        [(ContextMode::Full, Window::All), (ContextMode::LimitedMultiTurn, last(2)), (ContextMode::SingleTurn, last(2))]
    {
        let mut config = config(mode, window);
        config.algorithm.estimator = Estimator::Grpo;
        (config.update.mini_batches, config.update.mini_batch) = (0, 2);
        config.update.micro_batch = 3;
        let mut trainer = Trainer::new(config.clone(), context(&config)).unwrap();
        trainer.train_envs = Doors::default().manage(2, 4, Mode::Train);
        let base = Key::new(config.run.seed).named("rollout").with(1);
        let mut policy = Members { base, inner: Scripted::new(&[]) };
        let report = trainer.step(&mut policy, 1).unwrap();
        let metrics = &report.metrics;
        let groups: Vec<f64> = report.groups.iter().flat_map(|g| [g.score, g.reward_std]).collect();
        assert!(groups[0] > 0.0 && report.groups[0].rewards.len() == 4);
        let advantages: Vec<f64> = report.advantages.iter().map(|(_, advantage)| *advantage).collect();
        assert_eq!(advantages.len(), 8);
        // Eight episodes, two a mini-batch.
        assert_eq!((metrics["update/optimiser_steps"], metrics["train/episodes"]), (4.0, 8.0), "{mode:?}");
        let n_turns: usize = report.rollout.trajectories.iter().map(|t| t.turns.len()).sum();
        let n_rows = if mode == ContextMode::Full { 8 } else { n_turns };
        assert!(n_turns > 8);
        assert_eq!(metrics["batch/rows"], n_rows as f64, "{mode:?}");
        seen.push((groups, advantages));
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}
