//! The agent proxy: plays a rollout. Policy and environments take turns until every episode has ended.
//!
//! All members are sampled at once, one call a turn; a member that ends frees its place. Every random number is a
//! function of (key of the rollout, group, member, turn, position), so the order of play reaches no result (decision D8).

use crate::config;
use crate::context_manager::{ContextError, ContextManager, Conversation, Prompt};
use crate::env_manager::metrics::{Metrics, add_pass_at_k, aggregate, episode_metrics};
use crate::env_manager::{EnvManager, EnvManagerError, Episode, side_by_side};
use crate::policy::{Finish, Policy, PolicyError, Request, Response, Sampling, Says, SequenceId, Stop};
use crate::protocol::parse;
use crate::trajectory::{Outcome, Played, Provenance, Trajectory, Turn};
use ragen_envs::EnvError;
use ragen_models::random::Key;
use std::collections::{BTreeMap, BTreeSet};

/// Why a rollout cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// The policy refused.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Its levels cannot be chosen.
    #[error(transparent)]
    EnvManager(#[from] EnvManagerError),
    /// A prompt cannot be laid out.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// Not one environment works.
    #[error("every environment of the rollout is broken; the first says: {0}")]
    AllBroken(EnvError),
    /// Not one first prompt leaves room for a response.
    #[error(
        "no first prompt fits: the shortest has {prompt_tokens} tokens, which with rollout.response_tokens = {response_tokens} is more \
         than the context of {context_tokens} (the smaller of rollout.model_tokens and the model's own max_position_embeddings)"
    )]
    NoRoom {
        /// Length of the shortest first prompt.
        prompt_tokens: usize,
        /// `rollout.response_tokens`.
        response_tokens: usize,
        /// The context that they must fit into.
        context_tokens: usize,
    },
}

/// Episodes that are played at once where nothing else is said: enough to fill the products.
pub const PLACES: usize = 256;

/// How the episodes of a rollout are played.
#[derive(Clone, Copy)]
pub struct Play<'a> {
    /// Lays out prompts.
    pub context: &'a ContextManager,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Turns of an episode at most.
    pub max_turns: usize,
    /// Episodes played at once at most. Results do not depend on it.
    pub places: usize,
    /// Charged for each turn that holds an unknown action or none; 0 or negative.
    pub format_penalty: f64,
}

impl<'a> Play<'a> {
    /// Episodes as `[rollout]` has them.
    pub fn new(context: &'a ContextManager, rollout: &config::Rollout, sampling: Sampling) -> Self {
        let places = if rollout.places == 0 { PLACES } else { rollout.places };
        let (max_turns, format_penalty) = (rollout.max_turns, rollout.format_penalty);
        Play { context, sampling, max_turns, places, format_penalty }
    }
}

/// What was played.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rollout {
    /// The whole trajectories, groups in order and members in order.
    pub trajectories: Vec<Trajectory>,
    /// Episodes dropped because their environment broke, with what it said.
    pub dropped: Vec<String>,
    /// Metrics of all episodes, keys `TAG/name` and `name`.
    pub metrics: Metrics,
    /// How often all environments were played, each time on other levels.
    pub rounds: usize,
}

/// An episode while it is played.
struct Seat {
    index: usize,
    sequence: SequenceId,
    trajectory: Trajectory,
    conversation: Conversation,
    /// The present turn's prompt.
    prompt: Prompt,
    observation: String,
    state_hash: u64,
}

/// Plays all episodes of `envs`, which has just been reset; `broken` is what that reset returned.
pub fn play(
    policy: &mut dyn Policy,
    envs: &mut EnvManager,
    broken: Vec<(usize, EnvError)>,
    how: Play<'_>,
    key: Key,
) -> Result<Rollout, RolloutError> {
    let dropped = broken.iter().map(|(_, error)| error.to_string()).collect();
    let mut rollout = Rollout { dropped, rounds: 1, ..Rollout::default() };
    let lost: BTreeSet<usize> = broken.iter().map(|(index, _)| *index).collect();
    let mut first_error = broken.into_iter().next().map(|(_, error)| error);
    let mut waiting = (0..envs.episodes.len()).filter(|index| !lost.contains(index));
    let mut seats: Vec<Seat> = Vec::new();
    let mut done: BTreeMap<usize, Trajectory> = BTreeMap::new();
    let stop_ids = how.context.stop_ids();
    let completes_answer: Says<'_> = &|response| how.context.completes_answer(response);
    let stop = Stop { ids: &stop_ids, says: how.context.stops_by_text().then_some(completes_answer) };
    loop {
        // An episode that ends frees its place for the next one.
        while seats.len() < how.places
            && let Some(index) = waiting.next()
        {
            seats.push(Seat::new(index, &envs.episodes[index], policy.open()));
        }
        if seats.is_empty() {
            break;
        }
        let mut playing = Vec::with_capacity(seats.len());
        for mut seat in seats {
            let episode = &mut envs.episodes[seat.index];
            seat.read(how.context, episode)?;
            match how.context.has_room(seat.row_tokens() + seat.prompt.tokens.len()) {
                true => {
                    seat.begin_row(policy);
                    playing.push(seat);
                }
                false => {
                    episode.outcome = Outcome { truncated: true, context_full: true, ..episode.outcome };
                    seat.leave(policy, episode, &mut done);
                }
            }
        }
        let requests: Vec<Request<'_>> = playing.iter().map(|seat| seat.request(how.context, key)).collect();
        let responses = policy.generate(&requests, &how.sampling, &stop)?;
        seats = Vec::with_capacity(playing.len());
        for (seat, answered) in answer_all(how, envs, playing, responses) {
            let episode = &mut envs.episodes[seat.index];
            match answered {
                Err(error) => {
                    policy.close(seat.sequence);
                    rollout.dropped.push(error.to_string());
                    first_error.get_or_insert(error);
                }
                Ok(()) => {
                    episode.outcome.truncated |= seat.turn() > how.max_turns && !episode.outcome.ended();
                    match episode.outcome.ended() {
                        true => seat.leave(policy, episode, &mut done),
                        false => seats.push(seat),
                    }
                }
            }
        }
    }
    if let (true, Some(error)) = (done.is_empty(), first_error) {
        return Err(RolloutError::AllBroken(error));
    }
    rollout.trajectories = done.into_values().collect();
    let never_played = rollout.trajectories.iter().all(|t| t.turns.is_empty() && t.outcome.context_full);
    if let (true, Some(prompt_tokens)) = (never_played, rollout.trajectories.iter().map(Trajectory::n_tokens).min()) {
        let (response_tokens, context_tokens) = (how.context.response_tokens, how.context.context_tokens);
        return Err(RolloutError::NoRoom { prompt_tokens, response_tokens, context_tokens });
    }
    rollout.metrics = measure(&rollout, envs);
    Ok(rollout)
}

/// Lets each seat take in its response; those whose environments wait for something outside do so side by side.
fn answer_all(
    how: Play<'_>,
    envs: &mut EnvManager,
    playing: Vec<Seat>,
    responses: Vec<Response>,
) -> Vec<(Seat, Result<(), EnvError>)> {
    let workers = envs.workers;
    let mut episodes: Vec<Option<&mut Episode>> = envs.episodes.iter_mut().map(Some).collect();
    let turns: Vec<(Seat, &mut Episode, Response)> = playing
        .into_iter()
        .zip(responses)
        .filter_map(|(seat, response)| episodes[seat.index].take().map(|episode| (seat, episode, response)))
        .collect();
    let answer = |(mut seat, episode, response): (Seat, &mut Episode, Response)| {
        let answered = seat.answer(how, episode, response);
        (seat, answered)
    };
    side_by_side(turns, workers, |(_, episode, _)| episode.rules.waits, answer)
}

impl Rollout {
    /// What to say where episodes were dropped: how many, and what the first environment said.
    pub fn told_of_dropped(&self) -> Option<String> {
        let first = self.dropped.first()?;
        let (n, all) = (self.dropped.len(), self.dropped.len() + self.trajectories.len());
        Some(format!("{n} of {all} episodes were dropped, their environments failed; the first says: {first}"))
    }

    /// Takes in another rollout of the same step, on other levels of `envs`; its groups come behind those that are there.
    pub fn append(&mut self, more: Rollout, envs: &EnvManager) {
        let shift = self.rounds * envs.n_groups();
        self.trajectories.extend(more.trajectories.into_iter().map(|t| Trajectory { group: t.group + shift, ..t }));
        self.dropped.extend(more.dropped);
        self.rounds += more.rounds;
        self.metrics = measure(self, envs);
    }
}

impl Seat {
    fn new(index: usize, episode: &Episode, sequence: SequenceId) -> Self {
        let trajectory = Trajectory {
            tag: episode.rules.name.clone(),
            group: episode.group,
            member: episode.member,
            seed: episode.seed,
            state_hash: episode.state_hash,
            ..Trajectory::default()
        };
        Seat {
            index,
            sequence,
            trajectory,
            conversation: Conversation::default(),
            prompt: Prompt::default(),
            observation: String::new(),
            state_hash: 0,
        }
    }

    /// The turn that is played next, from 1.
    fn turn(&self) -> usize {
        self.trajectory.turns.len() + 1
    }

    /// Lays out the next prompt.
    fn read(&mut self, context: &ContextManager, episode: &Episode) -> Result<(), ContextError> {
        self.prompt = context.prompt(&mut self.conversation, episode, &self.trajectory)?;
        (self.observation, self.state_hash) = (episode.observation(), episode.env().state_hash());
        Ok(())
    }

    /// Tokens before the prompt in its row.
    fn row_tokens(&self) -> usize {
        if self.prompt.starts_row { 0 } else { self.trajectory.rows.last().map_or(0, |row| row.tokens.len()) }
    }

    /// Begins another sequence if the prompt has a row of its own.
    fn begin_row(&mut self, policy: &mut dyn Policy) {
        if !self.prompt.starts_row {
            return;
        }
        if !self.trajectory.rows.is_empty() {
            policy.close(self.sequence);
            self.sequence = policy.open();
        }
    }

    fn request<'a>(&'a self, context: &ContextManager, key: Key) -> Request<'a> {
        let of = &self.trajectory;
        Request {
            sequence: self.sequence,
            prompt: &self.prompt.tokens.ids,
            key: key.with(of.group as u64).with(of.member as u64).with(self.turn() as u64),
            max_new_tokens: context.response_tokens,
        }
    }

    /// Takes in a response: its tokens as they are, and what the environment makes of its text.
    fn answer(&mut self, how: Play<'_>, episode: &mut Episode, response: Response) -> Result<(), EnvError> {
        let prompt = self.trajectory.push_prompt(&self.prompt.tokens, self.prompt.starts_row);
        let row = self.trajectory.last_row();
        let place = row.push_response(&response.ids, &response.logps, &response.kept);
        let reasoning = how.context.reasoning(&row.tokens.ids, &place);
        let text = how.context.response_text(&episode.rules, &response.ids, response.finish);
        let parsed = parse(&text, &how.context.answer_format(&episode.rules));
        let played = episode.play(&parsed.actions, how.format_penalty)?;
        if response.finish == Finish::Context && !episode.outcome.ended() {
            episode.outcome = Outcome { truncated: true, context_full: true, ..episode.outcome };
        }
        self.trajectory.turns.push(Turn {
            observation: std::mem::take(&mut self.observation),
            state_hash: self.state_hash,
            reasoning,
            row: self.trajectory.rows.len() - 1,
            shown_from: self.prompt.shown_from,
            prompt,
            response: place,
            text,
            finish: response.finish,
            format_ok: parsed.format_ok,
            played,
        });
        Ok(())
    }

    /// Ends the episode and frees its place. A prompt that was never answered is no part of the trajectory, but for the
    /// very first, which shows why there is nothing else.
    fn leave(mut self, policy: &mut dyn Policy, episode: &Episode, done: &mut BTreeMap<usize, Trajectory>) {
        policy.close(self.sequence);
        if self.trajectory.rows.is_empty() {
            self.trajectory.last_row().tokens.extend(&self.prompt.tokens);
        }
        self.trajectory.outcome = episode.outcome;
        done.insert(self.index, self.trajectory);
    }
}

/// The published metrics of a rollout, and those of our own under a bare name.
fn measure(rollout: &Rollout, envs: &EnvManager) -> Metrics {
    let trajectories = &rollout.trajectories;
    let describe = |t: &Trajectory| {
        let turns: Vec<&Played> = t.turns.iter().map(|turn| &turn.played).collect();
        episode_metrics(&t.tag, t.outcome, &turns)
    };
    let mut episodes: Vec<Metrics> = trajectories.iter().map(describe).collect();
    let places: Vec<(&str, usize)> = trajectories.iter().map(|t| (t.tag.as_str(), t.group)).collect();
    add_pass_at_k(&places, envs.group_size(), &mut episodes);
    let mut n_episodes: BTreeMap<String, usize> = BTreeMap::new();
    for episode in &envs.episodes {
        *n_episodes.entry(episode.rules.name.clone()).or_default() += rollout.rounds;
    }
    let mut metrics = aggregate(&episodes, &n_episodes);

    let all_turns: Vec<&Turn> = trajectories.iter().flat_map(|t| &t.turns).collect();
    let over_turns = |what: &dyn Fn(&Turn) -> f64| mean(all_turns.iter().map(|turn| what(turn)));
    let over = |what: &dyn Fn(&Trajectory) -> f64| mean(trajectories.iter().map(what));
    let flag = |on: bool| f64::from(u8::from(on));
    let sampled: usize = trajectories.iter().map(Trajectory::n_sampled).sum();
    let prompts: usize = trajectories
        .iter()
        .flat_map(|t| &t.rows)
        .flat_map(|row| &row.tokens.provenance)
        .filter(|provenance| **provenance != Provenance::Sampled)
        .count();
    let ours = [
        ("success", over(&|t| flag(t.outcome.success))),
        ("reward", over(&|t| t.reward())),
        ("score", over(&|t| t.score())),
        ("terminated", over(&|t| flag(t.outcome.terminated))),
        ("truncated", over(&|t| flag(t.outcome.truncated))),
        ("context_full", over(&|t| flag(t.outcome.context_full))),
        ("turns", over(&|t| t.turns.len() as f64)),
        ("actions", over(&|t| t.n_actions() as f64)),
        ("response_length", over(&|t| t.n_sampled() as f64)),
        ("format_valid", over_turns(&|turn| flag(turn.is_valid()))),
        ("length_cut", over_turns(&|turn| flag(turn.finish != Finish::Stop))),
        ("episodes", trajectories.len() as f64),
        ("dropped", rollout.dropped.len() as f64),
        ("sampled_tokens", sampled as f64),
        ("prompt_tokens", prompts as f64),
    ];
    metrics.extend(ours.map(|(key, value)| (key.to_string(), value)));
    metrics
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut n) = (0.0, 0u64);
    for value in values {
        sum += value;
        n += 1;
    }
    sum / n.max(1) as f64
}
