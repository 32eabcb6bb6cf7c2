//! What stands between the policy and the environments: prompts laid out in rows, and groups filtered.
//!
//!     cargo bench --bench rollout

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ragen::config::{Config, ContextMode, PromptStyle, Window};
use ragen::context_manager::{ContextManager, Conversation};
use ragen::env_manager::EnvManager;
use ragen::filter::{FilterConfig, Measurement, filter};
use ragen::policy::Finish;
use ragen::settings;
use ragen::trajectory::{Trajectory, Turn};
use ragen_envs::Mode;
use ragen_models::random::Key;
use ragen_models::tokenizer::Tokenizer;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Turns of an episode.
const TURNS: usize = 10;

/// Lays out an episode in which nothing is done, and returns how many rows it has.
fn tell(context: &ContextManager, envs: &mut EnvManager, response: &[u32]) -> usize {
    let episode = &mut envs.episodes[0];
    let (mut conversation, mut trajectory) = (Conversation::default(), Trajectory::default());
    for _ in 0..TURNS {
        let prompt = context.prompt(&mut conversation, episode, &trajectory).expect("a prompt");
        let read = trajectory.push_prompt(&prompt.tokens, prompt.starts_row);
        let place = trajectory.last_row().push_response(response, &vec![0.0; response.len()], &[]);
        trajectory.turns.push(Turn {
            observation: episode.observation(),
            state_hash: episode.env().state_hash(),
            row: trajectory.rows.len() - 1,
            shown_from: prompt.shown_from,
            prompt: read,
            response: place,
            reasoning: None,
            text: context.response_text(&episode.rules, response, Finish::Stop),
            finish: Finish::Stop,
            format_ok: true,
            played: episode.play(&[], 0.0).expect("a turn"),
        });
    }
    trajectory.rows.len()
}

fn contexts(c: &mut Criterion) {
    let mut group = c.benchmark_group("context manager, rows");
    let config: Config = settings::load(Some("sokoban"), &[]).expect("a shipped configuration");
    let tokenizer = Arc::new(Tokenizer::tiny());
    let response = tokenizer.encode("<think> push Down from 1 2 go Up Left</think><answer> Up || Left</answer>");
    let window = Window::Last(NonZeroUsize::new(5).expect("above 0"));
    for (name, mode, window) in [
        ("full", ContextMode::Full, Window::All),
        ("limited_multi_turn", ContextMode::LimitedMultiTurn, window),
        ("single_turn", ContextMode::SingleTurn, window),
    ] {
        for (style, prompt) in [("compact", PromptStyle::Compact), ("full", PromptStyle::Full)] {
            let mut config = config.clone();
            (config.rollout.context, config.rollout.context_window, config.rollout.prompt) = (mode, window, prompt);
            config.rollout.model_tokens = 1 << 16;
            let context = ContextManager::new(&config, tokenizer.clone(), None, 1 << 16).expect("a context manager");
            let mut envs = EnvManager::new(&config.env.train, &config.envs, Mode::Train).expect("environments");
            envs.reset().expect("levels");
            let rows = tell(&context, &mut envs, &response);
            group.throughput(Throughput::Elements(rows as u64));
            group.bench_function(format!("{name}, {style} prompts, {TURNS} turns"), |b| {
                b.iter(|| tell(&context, &mut envs, &response));
            });
        }
    }
    group.finish();
}

fn filters(c: &mut Criterion) {
    let mut group = c.benchmark_group("filter, rows");
    for (groups, size) in [(32, 8), (512, 16)] {
        let row = |i: usize| Measurement {
            group: i / size,
            trajectory: i,
            reward: Key::new(1).uniform(i as u64),
            success: i.is_multiple_of(3),
            n_tokens: 60,
            entropy: 1.0,
        };
        let rows: Vec<Measurement> = (0..groups * size).map(row).collect();
        group.throughput(Throughput::Elements(rows.len() as u64));
        for scale_free in [false, true] {
            let config = FilterConfig { value: 0.9, include_zero: false, scale_free, ..FilterConfig::default() };
            let name = format!("top_p of {groups} groups x {size}{}", if scale_free { ", scale free" } else { "" });
            group.bench_function(name, |b| b.iter(|| filter(&config, &rows).n_kept()));
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = contexts, filters
}
criterion_main!(benches);
