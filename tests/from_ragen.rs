//! RAGEN's configuration: what its files come to, the page about it, and the command lines of its README through the binary.

mod binary;

use binary::{Place, says};
use ragen::config::{Config, Window};
use ragen::estimator::Estimator;
use ragen::from_ragen::{self, Translated, keys::Group, page};
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

fn file(name: &str) -> String {
    format!("{}/tests/ragen_config/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The files of the README's run, with a model that is there.
fn translated(changes: &[&str]) -> Translated {
    let changes: Vec<String> = ["model.path=sokoban"].iter().chain(changes).map(|text| text.to_string()).collect();
    from_ragen::load(&file("_2_sokoban.yaml"), &changes).unwrap_or_else(|e| panic!("{e}"))
}

fn refused(changes: &[&str]) -> String {
    let changes: Vec<String> = ["model.path=sokoban"].iter().chain(changes).map(|text| text.to_string()).collect();
    from_ragen::load(&file("_2_sokoban.yaml"), &changes).unwrap_err().to_string()
}

/// Each key of the files, at the value that it has there.
#[test]
fn the_run_of_the_readme_comes_to_what_it_says() {
    let Translated { config, files, .. } = translated(&[]);
    let names: Vec<&str> = files.iter().map(|name| Path::new(name).file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["envs.yaml", "base.yaml", "_2_sokoban.yaml"]);
    assert_eq!((config.run.name.as_str(), config.run.steps), ("sokoban-main", 200));
    let train = &config.env.train;
    assert_eq!(
        (train.tags.as_slice(), train.groups, train.group_size, train.seed),
        (&["CoordSokoban".to_string()][..], 8, 16, 10000)
    );
    assert_eq!((config.env.val.groups, config.env.val.group_size, config.env.val.seed), (512, 1, 123));
    let tag = &config.envs["CoordSokoban"];
    assert_eq!((tag.r#type.as_str(), tag.max_actions, tag.max_tokens), ("sokoban", 10, 120));
    assert_eq!(tag.instruction, "Push the box onto the target.");
    assert_eq!((&tag.config["dim_x"], &tag.config["observation_format"]), (&6.into(), &"grid_coord".into()));
    assert_eq!((config.rollout.max_turns, config.rollout.max_actions_per_turn), (5, 2));
    assert_eq!((config.rollout.response_tokens, config.rollout.model_tokens), (400, 3600));
    assert_eq!((config.rollout.format_penalty, config.rollout.action_separator.as_str()), (-0.1, "||"));
    assert!(config.rollout.think);
    assert_eq!(config.rollout.sampling.temperature, 1.0);
    let wanted = (Estimator::Gae, 1.0, 1.0, 0.95);
    assert_eq!(
        (config.algorithm.estimator, config.algorithm.gamma, config.algorithm.lambda, config.algorithm.turn_gamma),
        wanted
    );
    assert!(config.model.value_model && config.model.reference);
    assert_eq!(config.model.value_lr_factor, 10.0, "1e-5 over 1e-6");
    let loss = &config.update.loss;
    assert_eq!((loss.clip_low, loss.clip_high, loss.clip_dual), (0.2, 0.28, 3.0));
    assert_eq!((loss.entropy_coef, loss.value_clip, loss.kl.coef), (0.001, 0.5, 0.0));
    assert_eq!((config.update.mini_batch, config.update.epochs), (32, 1));
    assert_eq!((config.optim.lr, config.optim.betas, config.optim.weight_decay), (1e-6, [0.9, 0.999], 0.01));
    assert_eq!((config.filter.value, config.filter.include_zero, config.filter.empty_stop_steps), (0.9, true, 5));
    assert_eq!((config.collapse.every, config.collapse.first_turn, config.collapse.multi_turn), (5, true, true));
    assert_eq!(
        (config.checkpoint.every, config.val.every, config.val.rounds, config.val.temperature),
        (100, 10, 1, 0.5)
    );
}

fn resolved(changes: &[&str]) -> Config {
    translated(changes).config
}

#[test]
fn changes_are_read_as_hydra_reads_them() {
    let grpo = resolved(&["algorithm.adv_estimator=grpo", "++trainer.total_training_steps=7", "algorithm.lambda=0.5"]);
    assert_eq!((grpo.algorithm.estimator, grpo.run.steps, grpo.algorithm.lambda), (Estimator::Grpo, 7, 0.5));
    assert!(!grpo.model.value_model);
    let more = resolved(&["es_manager.train.env_groups=4", "~es_manager.train.env_configs.n_groups", "lora.rank=8"]);
    assert_eq!((more.env.train.groups, more.env.train.n_groups.len(), more.model.lora.rank), (4, 0, 8));
    let mixed =
        ["es_manager.train.env_configs.tags=[CoordSokoban,FrozenLake]", "es_manager.train.env_configs.n_groups=[6,2]"];
    assert_eq!(resolved(&mixed).env.train.n_groups, [6, 2]);
    let warm = resolved(&[
        "trainer.critic_warmup=10",
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1",
        "critic.optim.lr_warmup_steps_ratio=0.1",
    ]);
    assert_eq!((warm.model.value_warmup_steps, warm.optim.warmup_steps), (9, 20));
    let analysis = ["trainer.gradient_analysis_mode=true", "trainer.gradient_analysis_env_groups=2"];
    assert_eq!((resolved(&analysis).gradient_analysis.every, resolved(&analysis).gradient_analysis.groups), (50, 2));
    let window = ["agent_proxy.context_window_mode=limited_multi_turn", "agent_proxy.max_context_window=3"];
    assert_eq!(resolved(&window).rollout.context_window, Window::Last(NonZeroUsize::new(3).unwrap()));
    let greedy = resolved(&["actor_rollout_ref.rollout.val_kwargs.do_sample=False"]);
    assert_eq!(greedy.val.temperature, 0.0);
}

#[test]
fn what_has_no_meaning_here_is_listed_once_and_aliases_are_told() {
    let translated = translated(&[
        "actor_rollout_ref.rollout_filter_strategy=top_k",
        "+trainer.ray_wait_register_center_timeout=300",
    ]);
    let group = |group: Group| translated.ignored[&group].join(" ");
    assert!(group(Group::Sampler).contains("actor_rollout_ref.rollout.name"));
    assert!(group(Group::Spread).contains("trainer.n_gpus_per_node"));
    assert!(group(Group::Spread).contains("ray_wait_register_center_timeout"));
    assert!(group(Group::Hydra).contains("hydra.searchpath"));
    let all: Vec<&String> = translated.ignored.values().flatten().collect();
    let mut once = all.clone();
    once.sort();
    once.dedup();
    assert_eq!(all.len(), once.len());
    let alias =
        "actor_rollout_ref.rollout_filter_strategy is taken as actor_rollout_ref.rollout.rollout_filter_strategy";
    assert!(translated.notices.contains(&alias.to_string()), "{:?}", translated.notices);
    assert!(translated.notices.iter().any(|notice| notice.contains("left out: ") && notice.contains("Spatial")));
    assert_eq!(translated.config.filter.strategy, ragen::filter::Strategy::TopK);
}

#[test]
fn every_mistake_comes_at_once_with_its_place() {
    let said = refused(&[
        "trainer.total_training_step=3",
        "algorithm.adv_estimator=remax",
        "actor_rollout_ref.actor.tis_imp_ratio_cap=2",
        "agent_proxy.max_context_window=0",
        "es_manager.format_penalty=much",
    ]);
    for part in [
        "did you mean trainer.total_training_steps of RAGEN's?",
        "there is no estimator remax here",
        "tis_imp_ratio_cap",
        "0 shows no turn at all",
        "es_manager.format_penalty",
    ] {
        assert!(said.contains(part), "{part:?} is not in\n{said}");
    }
    let used = refused(&["es_manager.val.env_configs.tags=[Spatial]"]);
    assert!(used.contains("custom_envs.Spatial") && used.contains("spatial"), "{used}");
    let hosted = from_ragen::load(&file("_2_sokoban.yaml"), &[]).unwrap_err().to_string();
    assert!(
        hosted.contains("Qwen/Qwen2.5-3B-Instruct is no folder here") && hosted.contains("model.path=DIR"),
        "{hosted}"
    );
}

const SMALL: [&str; 12] = [
    "model.path=sokoban",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=2",
    "es_manager.train.env_configs.n_groups=[2]",
    "es_manager.val.env_groups=2",
    "es_manager.val.env_configs.n_groups=[2]",
    "trainer.total_training_steps=2",
    "agent_proxy.max_turn=2",
    "actor_rollout_ref.rollout.response_length=16",
    "ppo_mini_batch_size=4",
    "rollout.prompt=compact",
    "trainer.save_freq=1",
];

/// `python train.py --config-name _2_sokoban`, the same with top-p filtering, and the evaluation.
#[test]
fn the_command_lines_of_the_readme_run() {
    let place = Place::new();
    let (run, files) = (file("_2_sokoban.yaml"), ["base.yaml", "envs.yaml", "_2_sokoban.yaml"].map(file).join(","));
    let plain = [&["train", "--ragen-config", &run, "--run", "a", "--quiet"], &SMALL[..]].concat();
    place.check(0, &plain);
    let config = place.read("a/config.toml");
    for line in ["name = \"sokoban-main\"", "estimator = \"gae\"", "value_model = true", "steps = 2"] {
        assert!(config.contains(line), "{line} is not in\n{config}");
    }
    assert_eq!(place.read("a/metrics.jsonl").lines().count(), 2);
    // The result is a configuration like any other: it gives the same run, and the run goes on without RAGEN's files.
    place.check(0, &["train", "a/config.toml", "--run", "b", "--quiet"]);
    assert_eq!(place.read("a/metrics.jsonl"), place.read("b/metrics.jsonl"));
    place.check(0, &["train", "--resume", "--run", "b", "run.steps=3", "--quiet"]);
    assert_eq!(place.read("b/metrics.jsonl").lines().count(), 3);

    let filter =
        ["actor_rollout_ref.rollout_filter_strategy=top_p", "actor_rollout_ref.rollout.rollout_filter_value=0.9"];
    let (_, heard) =
        place.check(0, &[&["train", "--ragen-config", &files, "--run", "c"], &SMALL[..], &filter].concat());
    assert!(
        heard.contains("rollout_filter_strategy is taken as actor_rollout_ref.rollout.rollout_filter_strategy"),
        "{heard}"
    );
    assert_eq!(heard.matches("without meaning here: ").count(), 1, "{heard}");
    assert_eq!(place.read("a/metrics.jsonl"), place.read("c/metrics.jsonl"), "base.yaml has the same filter");

    let proxy = [&["eval", "a", "--ragen-config", &run, "--quiet"], &SMALL[1..]].concat();
    place.check(0, &proxy);
    assert!(place.read("a/eval.json").contains("CoordSokoban"));
    let wrong = [&["train", "--ragen-config", &run, "trainer.test_frequency=3"], &SMALL[..]].concat();
    says(&place.check(2, &wrong).1, &["trainer.test_frequency", "did you mean trainer.test_freq"]);
    says(&place.check(2, &["train", "--ragen-config", "absent.yaml"]).1, &["cannot read absent.yaml"]);
}

/// The tables of the page are those of the code; `RAGEN_WRITE_DOCS=1` writes them.
#[test]
fn the_page_has_the_tables_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/from-ragen.md");
    let mut text = fs::read_to_string(&path).unwrap();
    for (name, table) in [("keys", page::keys()), ("without meaning", page::ignored())] {
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n"));
        let start = text.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
        let stop = text.find(&end).unwrap_or_else(|| panic!("no {end}"));
        if std::env::var_os("RAGEN_WRITE_DOCS").is_some() {
            text.replace_range(start..stop, &format!("\n{table}\n"));
            fs::write(&path, &text).unwrap();
        } else {
            assert_eq!(text[start..stop].trim(), table.trim(), "RAGEN_WRITE_DOCS=1 cargo test --test from_ragen");
        }
    }
    // Every place where we differ on purpose, of the algorithms and of the environments.
    for quirk in (1..=44).map(|n| format!("| Q{n} |")).chain((1..=31).map(|n| format!("| E{n} |"))) {
        assert!(text.contains(&quirk), "{quirk} is missing");
    }
}
