//! What prompts show of an episode, which rows it makes and what is left out of them, against recorded conversations.

use crate::cases::{Case, parity, repository_golden};
use ragen::config::{Config, ContextMode, Window};
use ragen::context_manager::{ContextManager, Conversation, first_that_fits};
use ragen::env_manager::{Episode, TagRules};
use ragen::estimator::{Inputs, Scored, token_rewards};
use ragen::policy::Finish;
use ragen::protocol;
use ragen::reward::Placement;
use ragen::trajectory::{Played, Trajectory, Turn};
use ragen_envs::{Env, EnvError, Legend, Mode, Recap, Step};
use ragen_models::chat_template::Chat;
use ragen_models::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// A small tokenizer of a language model, and its way of marking messages.
static SPEAKER: LazyLock<(Arc<Tokenizer>, Arc<Chat>)> = LazyLock::new(|| {
    let dir = repository_golden().join("golden/tokenizers/tiny_gpt2");
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let chat = Chat::load(&dir, &tokenizer).unwrap().unwrap();
    (Arc::new(tokenizer), Arc::new(chat))
});

/// Shows the number of the present turn.
struct Numbered(Arc<AtomicUsize>);

impl Env for Numbered {
    fn reset(&mut self, _: u64, _: u64, _: Mode) -> Result<(), EnvError> {
        Ok(())
    }

    fn observation(&self) -> String {
        state(self.0.load(Ordering::Relaxed))
    }

    fn step(&mut self, _: &str) -> Result<Step, EnvError> {
        Ok(Step::default())
    }

    fn actions(&self) -> Option<Vec<String>> {
        None
    }

    fn instruction(&self) -> String {
        "A task.".into()
    }

    fn state(&self) -> Value {
        Value::Null
    }

    fn load_state(&mut self, _: &Value) -> Result<(), EnvError> {
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        0
    }
}

fn state(turn: usize) -> String {
    format!("state_{turn};")
}

fn response(turn: usize) -> String {
    format!("response_{turn};")
}

fn reward(turn: usize) -> f64 {
    turn as f64 + 0.015625
}

/// A manager with this part of the history in view; −1 is all of it.
fn context(mode: &str, window: i64, think: bool) -> ContextManager {
    let mut config = Config::default();
    let (tokenizer, chat) = SPEAKER.clone();
    config.rollout.context = serde_json::from_value::<ContextMode>(mode.into()).unwrap();
    config.rollout.think = think;
    config.rollout.model_tokens = 1 << 20;
    if let Some(turns) = usize::try_from(window).ok().and_then(NonZeroUsize::new) {
        config.rollout.context_window = Window::Last(turns);
    }
    let new = |config: &Config| ContextManager::new(config, tokenizer.clone(), Some(chat.clone()), 1 << 20);
    if config.rollout.context == ContextMode::Full && config.rollout.context_window != Window::All {
        // A window that has no effect is refused where the reference passes over it.
        assert!(new(&config).is_err());
        config.rollout.context_window = Window::All;
    }
    new(&config).unwrap()
}

/// An episode that is told turn by turn.
struct Tale {
    context: ContextManager,
    conversation: Conversation,
    episode: Episode,
    turn: Arc<AtomicUsize>,
    trajectory: Trajectory,
    /// The text of the row that the last prompt stands in, up to its end.
    read: String,
}

impl Tale {
    fn new(context: ContextManager, first_actions_left: usize) -> Self {
        let turn = Arc::new(AtomicUsize::new(0));
        let rules = TagRules {
            name: "Numbered".into(),
            instruction: "A task.".into(),
            legend: Legend::default(),
            max_actions: first_actions_left,
            single_action: false,
            max_tokens: 0,
            many_starts: false,
            waits: false,
            recap: Recap::Whole,
        };
        let episode = Episode::new(Arc::new(rules), 0, 0, Box::new(Numbered(turn.clone())));
        let (conversation, trajectory) = (Conversation::default(), Trajectory::default());
        Tale { context, conversation, episode, turn, trajectory, read: String::new() }
    }

    /// The present turn's prompt; with a response, the turn is played.
    fn tell(&mut self, response: Option<&str>, played: Played) {
        let prompt = self.context.prompt(&mut self.conversation, &self.episode, &self.trajectory).unwrap();
        let mut read = self.trajectory.clone();
        read.push_prompt(&prompt.tokens, prompt.starts_row);
        self.read = self.context.tokenizer.decode(&read.last_row().tokens.ids);
        let Some(response) = response else { return };
        let ids = self.context.tokenizer.encode_plain(response);
        let place = self.trajectory.push_prompt(&prompt.tokens, prompt.starts_row);
        let row = self.trajectory.last_row();
        let response = row.push_response(&ids, &vec![0.0; ids.len()], &[]);
        let reasoning = self.context.reasoning(&row.tokens.ids, &response);
        self.trajectory.turns.push(Turn {
            observation: self.episode.observation(),
            state_hash: self.episode.env().state_hash(),
            row: self.trajectory.rows.len() - 1,
            shown_from: prompt.shown_from,
            prompt: place,
            response,
            reasoning,
            text: self.context.response_text(&self.episode.rules, &ids, Finish::Stop),
            finish: Finish::Stop,
            format_ok: true,
            played,
        });
        self.turn.fetch_add(1, Ordering::Relaxed);
        self.episode.actions_left -= 1;
    }

    fn rows(&self) -> Vec<String> {
        self.trajectory.rows.iter().map(|row| self.context.tokenizer.decode(&row.tokens.ids)).collect()
    }
}

/// The messages of a row, each as what it shows; the prompt for the next response is none.
fn messages(text: &str, with_last: bool) -> Vec<Value> {
    let mut parts: Vec<&str> = text.split("<|im_start|>").skip(1).collect();
    if !with_last {
        parts.pop();
    }
    let which = |text: &str, marker: &dyn Fn(usize) -> String| -> Vec<usize> {
        (0..100).filter(|i| text.contains(&marker(*i))).collect()
    };
    let describe = |part: &str| {
        let (role, text) = part.split_once('\n').unwrap();
        let left = text.split("Actions left: ").skip(1);
        let left = left.map(|rest| rest.split('\n').next().unwrap().parse::<usize>().unwrap());
        json!({
            "role": role,
            "states": which(text, &state),
            "responses": which(text, &response),
            "rewards": which(text, &|turn| format!("{:?}\n", reward(turn))),
            "turn_labels": which(text, &|turn| format!("Turn {turn}\n")),
            "invalid_notice": text.contains("named no action"),
            "actions_left": left.collect::<Vec<_>>(),
        })
    };
    parts.into_iter().map(describe).collect()
}

fn check_messages(case: &mut Case) {
    let mode: String = case.inputs.take("mode");
    let phase: String = case.inputs.take("phase");
    let completed: usize = case.inputs.take("completed_turns");
    let invalid: Vec<usize> = case.inputs.take("invalid_on_state");
    // A row ends with a response; the state after the last one is no part of it either way.
    case.inputs.take::<bool>("has_pending_state");
    let context = context(&mode, case.inputs.take("max_context_window"), true);
    let mut tale = Tale::new(context, case.inputs.take("first_actions_left"));
    for turn in 0..completed {
        let played = Played { reward: reward(turn), invalid: invalid.contains(&(turn + 1)), ..Played::default() };
        tale.tell(Some(&response(turn)), played);
    }
    let got: Vec<Vec<Value>> = match phase.as_str() {
        "train" => tale.rows().iter().map(|row| messages(row, true)).collect(),
        "infer" => {
            tale.tell(None, Played::default());
            vec![messages(&tale.read, false)]
        }
        phase => panic!("{}: unknown phase {phase}", case.name),
    };
    assert_eq!(json!(got), case.expected.take::<Value>("samples"), "{}", case.name);
    if let Some(episodes) = case.expected.find::<Vec<usize>>("episode_ids") {
        assert_eq!(episodes, vec![0; got.len()], "{}", case.name);
    }
}

fn check_rows(case: &mut Case) {
    let mode: String = case.inputs.take("mode");
    let window: i64 = case.inputs.take("max_context_window");
    let turn_rewards: Vec<Vec<f64>> = case.inputs.take("turn_rewards");
    let penalties: Vec<f64> = case.inputs.take("penalties");
    let groups: Vec<usize> = case.inputs.take("group");
    // Each row as the published code takes it, an episode of its own.
    let (mut rows, mut episodes) = (Vec::new(), Vec::new());
    for (i, (rewards, penalty)) in turn_rewards.iter().zip(penalties).enumerate() {
        let mut tale = Tale::new(context(&mode, window, true), 10);
        for (turn, reward) in rewards.iter().enumerate() {
            let penalty = if turn == 0 { penalty } else { 0.0 };
            tale.tell(Some(&response(turn)), Played { reward: *reward, penalty, ..Played::default() });
        }
        let (score, group) = (tale.trajectory.score(), groups[i]);
        rows.extend(tale.trajectory.rows.iter().map(|row| Scored::whole(group, row.targets.len(), score)));
        episodes.resize(rows.len(), i);
    }
    assert_eq!(rows.len(), case.expected.take::<usize>("n_rows"), "{}", case.name);
    let scores: Vec<f64> = rows.iter().map(|row| row.score).collect();
    let want: Vec<f64> = case.expected.take("row_scores");
    case.all_close("row_scores", &scores, &want, 1e-4);
    let inputs = Inputs { trajectories: &rows, placement: Placement::Trajectory, extra: &[], values: &[] };
    let rewards = token_rewards(&inputs);
    let mut first = 0;
    let on_last = rows.iter().all(|row| {
        let tokens = &rewards[first..first + row.n_tokens()];
        first += row.n_tokens();
        let (last, others) = tokens.split_last().unwrap();
        *last == row.score && others.iter().all(|reward| *reward == 0.0)
    });
    assert_eq!(on_last, case.expected.take::<bool>("score_on_last_token_only"), "{}", case.name);
    assert_eq!(episodes, case.expected.take::<Vec<usize>>("env_ids"), "{}", case.name);
    assert_eq!(episodes, case.expected.find("episode_ids").unwrap_or(episodes.clone()), "{}", case.name);
    let groups: Vec<usize> = rows.iter().map(|row| row.group).collect();
    assert_eq!(groups, case.expected.take::<Vec<usize>>("group_ids"), "{}", case.name);
}

/// The published rule: three messages from the front where the third tells a reward, else two, else one.
fn reference_kept(messages: &[(String, String)], fits: impl Fn(&[usize]) -> bool) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..messages.len()).collect();
    while !fits(&kept) && kept.len() > 3 {
        let role = |i: usize| kept.get(i).map_or("", |&k| messages[k].0.as_str());
        let is_pair = role(1) == "user" && role(2) == "assistant";
        let tells_reward = role(3) == "user" && messages[kept[3]].1.contains("Reward");
        let n = if is_pair && tells_reward { 3 } else { 1 + usize::from(is_pair) };
        kept.drain(1..1 + n);
    }
    kept
}

fn check_truncate(case: &mut Case) {
    let messages: Vec<(String, String)> = case.inputs.take("messages");
    let room: usize = case.inputs.take("max_len");
    let prompt = 2 * usize::from(case.inputs.take::<bool>("add_generation_prompt"));
    case.inputs.take::<String>("token_cost");
    let cost =
        |kept: &[usize]| kept.iter().map(|&i| 4 + messages[i].1.split_whitespace().count()).sum::<usize>() + prompt;
    let fits = |kept: &[usize]| cost(kept) <= room;
    let (plain, sane): (Vec<usize>, Vec<usize>) = (case.expected.take("kept"), case.expected.take("sane_kept"));
    let alternates = case.expected.take::<bool>("alternation_ok");
    case.expected.find::<String>("reference_bug");
    if parity() {
        let kept = reference_kept(&messages, fits);
        assert_eq!((messages[kept[1]].0 == "user", kept), (alternates, plain), "{}", case.name);
        return;
    }
    // A turn begins with its user message.
    let turns: Vec<usize> = (0..messages.len()).filter(|&i| messages[i].0 == "user").collect();
    let from = |turn: usize| std::iter::once(0).chain(turns[turn]..messages.len()).collect::<Vec<usize>>();
    let first = first_that_fits(0..=turns.len() - 1, |turn| Ok::<bool, ()>(fits(&from(turn)))).unwrap();
    assert_eq!(from(first), sane, "{}", case.name);
}

fn check_reasoning(case: &mut Case) {
    let responses: Vec<String> = case.inputs.take("responses");
    let think: bool = case.inputs.take("enable_think");
    let mut tale = Tale::new(context("full", -1, think), 10);
    let opening = if think { "<think>" } else { "<answer>" };
    let (mut reasonings, mut ends, mut states) = (Vec::new(), Vec::new(), Vec::new());
    let mut first_turn = String::new();
    for (turn, said) in responses.iter().enumerate() {
        // The prompt ends with the opening tag; a response without it is one that went on otherwise.
        let said = said.strip_prefix(opening).unwrap_or(said);
        tale.tell(Some(said), Played::default());
        let told = tale.trajectory.turns.last().unwrap();
        let reasoning = if think { protocol::reasoning(&told.text) } else { None };
        assert_eq!(told.reasoning.is_some(), reasoning.is_some(), "{}", case.name);
        let Some(reasoning) = reasoning else { continue };
        let reasoning = reasoning.split_whitespace().collect::<Vec<_>>().join(" ");
        if turn == 0 {
            first_turn.clone_from(&reasoning);
        }
        reasonings.push(reasoning);
        ends.push(tale.read.ends_with("<think>"));
        states.push((0..10).filter(|i| tale.read.contains(&state(*i))).collect::<Vec<usize>>());
    }
    assert_eq!(first_turn, case.expected.take::<String>("first_turn"), "{}", case.name);
    assert_eq!(reasonings.len(), case.expected.take::<usize>("turn_count"), "{}", case.name);
    assert_eq!(reasonings, case.expected.take::<Vec<String>>("all_turns"), "{}", case.name);
    assert_eq!(responses.len(), case.expected.take::<usize>("turn_total"), "{}", case.name);
    assert_eq!(ends, case.expected.take::<Vec<bool>>("prompt_ends_with_think"), "{}", case.name);
    assert_eq!(states, case.expected.take::<Vec<Vec<usize>>>("states_in_prompt"), "{}", case.name);
}

/// Checks one case; false for an unknown operation.
pub fn check(case: &mut Case) -> bool {
    match case.op.as_str() {
        "messages" => check_messages(case),
        "rows" => check_rows(case),
        "truncate" => check_truncate(case),
        "reasoning" => check_reasoning(case),
        _ => return false,
    }
    true
}
