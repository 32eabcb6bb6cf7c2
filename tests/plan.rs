//! The memory plan: what is counted, what is chosen as memory gets scarce, and how it is refused.

use ragen::config::Config;
use ragen::plan::{Lengths, Machine, Plan, PlanError, machine_bytes, peak_bytes};
use ragen::settings;
use ragen_models::config::Config as Shape;
use ragen_models::gpu::Gpu;
use ragen_models::memory::page_bytes;

/// SmolLM2-135M.
fn shape() -> Shape {
    let json = r#"{"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": true, "max_position_embeddings": 8192, "rope_theta": 100000.0}"#;
    Shape::from_hf_json(json).unwrap()
}

fn config(changes: &[&str]) -> Config {
    settings::load(Some("sokoban"), &changes.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
}

fn plan(config: &Config, budget: usize) -> Result<Plan, PlanError> {
    Plan::new(
        config,
        &shape(),
        config.model.lora.settings(),
        Lengths { first: 250, row: 1200, rows: 1 },
        true,
        &CPU,
        budget,
    )
}

const GIB: usize = 1 << 30;
const CPU: Machine = Machine::Cpu { threads: 2 };

#[test]
fn counts_the_weights_gradients_and_moments_of_a_real_model() {
    let memory = plan(&config(&[]), 64 * GIB).unwrap().memory;
    let n = 134_515_008;
    assert_eq!(memory.gradients, 4 * (n + 49_152 * 576), "the tied head gathers apart");
    assert_eq!(memory.optimiser, 8 * n);
    // Flat, and packed without norms; heads of 960 and 1,152 rows are whole panels.
    assert_eq!(memory.weights, 4 * n + 4 * (n - 61 * 576));
    // The analysis holds the task's gradient and a noisy one, or those of two terms.
    let analysed = |changes: &[&str]| {
        let all = [
            &["gradient_analysis.every=5", "gradient_analysis.noise_draws=1", "update.loss.entropy_coef=0.1"],
            changes,
        ];
        plan(&config(&all.concat()), 64 * GIB).unwrap().memory.gradients - memory.gradients
    };
    assert_eq!(analysed(&[]), 2 * 4 * n);
    assert_eq!(analysed(&["update.loss.kl.coef=0.1"]), 3 * 4 * n);
    assert_eq!(analysed(&["update.loss.entropy_coef=0.0", "gradient_analysis.noise_draws=0"]), 4 * n);
    let bf16 = plan(&config(&["model.dtype=\"bf16\""]), 64 * GIB).unwrap().memory;
    assert_eq!(memory.weights - bf16.weights, 2 * (n - 61 * 576));
    let lora = config(&["model.lora.rank=8", "model.path=sokoban", "model.lora.targets=[\"q_proj\", \"v_proj\"]"]);
    let lora = plan(&lora, 64 * GIB).unwrap().memory;
    let adapters = 30 * 8 * (576 + 576 + 576 + 192);
    assert_eq!((lora.gradients, lora.optimiser), (4 * adapters, 8 * adapters));
}

#[test]
fn takes_what_fits_and_computes_again_before_it_plays_alone() {
    let config = config(&["rollout.model_tokens=2048"]);
    let ample = plan(&config, 64 * GIB).unwrap();
    assert_eq!((ample.work.packed_tokens, ample.work.recompute), (2048, false), "more would gain no speed");
    assert!(ample.memory.kv_cache <= GIB && ample.places >= 16, "{ample:?}");
    let mut last = ample.memory.total();
    let mut seen = Vec::new();
    for mib in (2500..6000).rev().step_by(50) {
        let Ok(plan) = plan(&config, mib << 20) else { break };
        let total = plan.memory.total();
        assert!(total <= mib << 20, "{total} of {mib} MiB");
        assert!(plan.work.packed_tokens >= 1200, "the longest row fits");
        last = last.min(total);
        let step = (plan.work.recompute, plan.places >= 16);
        if seen.last() != Some(&step) {
            seen.push(step);
        }
    }
    assert_eq!(seen, [(false, true), (true, true), (false, false), (true, false)]);
    assert!(last < 3600 << 20, "{last}");
}

#[test]
fn a_gpu_gets_all_at_once_and_less_as_its_memory_gets_scarce() {
    let gpu = Machine::Gpu { gpu: Gpu::counting().0, positions: 2048 };
    let config = config(&["rollout.model_tokens=2048", "model.dtype=\"bf16\""]);
    let lengths = Lengths { first: 250, row: 1200, rows: 1 };
    let plan = |budget: usize| Plan::new(&config, &shape(), None, lengths, true, &gpu, budget);
    let episodes = config.env.val.groups.max(config.env.train.groups * config.env.train.group_size);
    let ample = plan(140 * GIB).unwrap();
    assert_eq!((ample.work.packed_tokens, ample.places, ample.work.recompute), (8192, episodes, false));
    let mut seen = Vec::new();
    for mib in (2000..20_000).rev().step_by(1000) {
        let Ok(plan) = plan(mib << 20) else { break };
        assert!(plan.memory.total() <= mib << 20 && plan.work.packed_tokens >= 1200, "{mib}: {plan:?}");
        seen.push((plan.places, plan.work.packed_tokens, plan.work.recompute));
    }
    assert!(seen.len() > 10 && seen.iter().any(|(places, ..)| *places < episodes), "{seen:?}");
    assert!(seen.iter().any(|(_, tokens, _)| *tokens < 8192) && seen.iter().any(|(.., again)| *again), "{seen:?}");
    let error = plan(GIB).unwrap_err().to_string();
    for wanted in ["1024 MiB", "device memory of a machine that only counts", "gradients 514", "model.lora.rank"] {
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}

#[test]
fn refuses_with_the_numbers() {
    let error = plan(&config(&[]), 1 << 30).unwrap_err().to_string();
    for wanted in ["1024 MiB", "run.memory_bytes", "weights 1027", "optimiser 1027", "model.lora.rank"] {
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
    // What the user fixes stays as it is.
    let fixed = config(&["update.packed_tokens=1300", "update.recompute=\"none\"", "rollout.places=7"]);
    let plan = plan(&fixed, 64 * GIB).unwrap();
    assert_eq!((plan.work.packed_tokens, plan.work.recompute, plan.places), (1300, false, 7));
}

#[test]
fn only_a_choice_that_binds_is_written_down() {
    let mut small = config(&[]);
    let tiny =
        Shape { n_layers: 2, vocab: 352, d_model: 96, n_heads: 4, n_kv_heads: 4, head_dim: 24, d_ff: 256, ..shape() };
    let plan = Plan::new(&small, &tiny, None, Lengths { first: 60, row: 400, rows: 1 }, true, &CPU, 8 * GIB).unwrap();
    assert_eq!((plan.work.packed_tokens, plan.places), (8192, 256));
    plan.settle(&mut small);
    assert_eq!(small.update.packed_tokens, 0, "micro_batch_tokens already says so");
    let mut large = config(&[]);
    self::plan(&large, 64 * GIB).unwrap().settle(&mut large);
    assert_eq!(large.update.packed_tokens, 2048);
}

#[test]
fn pages_are_shared_by_members_and_whole() {
    let pages = |changes: &[&str], places: usize| {
        let mut config = config(changes);
        config.rollout.places = places;
        config.val.before_train = false;
        config.val.every = 0;
        // 40 tokens of prompt fill one page, which a group shares; 100 tokens take 4 pages.
        let plan =
            Plan::new(&config, &shape(), None, Lengths { first: 40, row: 100, rows: 1 }, true, &CPU, 64 * GIB).unwrap();
        plan.memory.kv_cache / page_bytes(&shape())
    };
    assert_eq!(pages(&["env.train.groups=2", "env.train.group_size=4"], 8), 8 * 3 + 2);
    assert_eq!(pages(&["env.train.groups=2", "env.train.group_size=4"], 5), 5 * 3 + 2);
    assert_eq!(pages(&["env.train.groups=2", "env.train.group_size=4"], 100), 8 * 3 + 2);
    // A rollout of the gradient analysis may have more groups, and fewer members that share.
    let own =
        ["env.train.groups=2", "env.train.group_size=4", "gradient_analysis.every=9", "gradient_analysis.groups=8"];
    assert_eq!(pages(&own, 100), 32 * 3 + 8);
    assert_eq!(pages(&[&own[..], &["gradient_analysis.group_size=2"]].concat(), 100), 16 * 3 + 8);
    assert_eq!(page_bytes(&shape()), 30 * 3 * 2 * 32 * 64 * 4);
}

#[test]
fn this_process_has_used_memory() {
    if cfg!(target_os = "linux") {
        assert!(peak_bytes().unwrap() > 1 << 20 && machine_bytes().unwrap() > 1 << 20);
    }
}
