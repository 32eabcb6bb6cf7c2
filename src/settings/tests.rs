use super::*;
use std::collections::BTreeSet;

fn problems(overrides: &[&str]) -> Vec<String> {
    let overrides: Vec<String> = overrides.iter().map(|s| s.to_string()).collect();
    match load(None, &overrides) {
        Err(SettingsError::Invalid(problems)) => problems.iter().map(|p| format!("{}: {}", p.key, p.text)).collect(),
        other => panic!("expected problems, found {:?}", other.map(|_| ())),
    }
}

fn with(overrides: &[&str]) -> Config {
    load(None, &overrides.iter().map(|s| s.to_string()).collect::<Vec<_>>()).unwrap()
}

/// The dotted paths of all values, tags under one name.
fn paths(path: &str, value: &Value, out: &mut BTreeSet<String>) {
    match value {
        Value::Table(table) if path != "envs.TAG.config" => {
            for (name, value) in table {
                let name = if path == "envs" { keys::ANY } else { name };
                paths(&join(path, name), value, out);
            }
        }
        _ => drop(out.insert(path.to_string())),
    }
}

#[test]
fn the_table_of_keys_is_exactly_the_keys_there_are() {
    let mut found = BTreeSet::new();
    paths("", &Value::Table(default_table()), &mut found);
    let listed: BTreeSet<String> = keys::KEYS.iter().map(|key| key.path.to_string()).collect();
    assert_eq!(listed.len(), keys::KEYS.len(), "a key is listed twice");
    assert_eq!(found.symmetric_difference(&listed).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn every_default_and_every_listed_word_is_accepted() {
    let mut table = default_table();
    let mut problems = Vec::new();
    check("", &mut table, &default_table(), &mut problems);
    assert_eq!(problems, []);
    for key in keys::KEYS {
        let Expect::Word(words) = key.expect else { continue };
        let parts: Vec<String> = key.path.split('.').map(str::to_string).collect();
        for word in words {
            let mut table = default_table();
            set(&mut table, &parts, Value::String(word.to_string())).unwrap();
            assert!(table.try_into::<Config>().is_ok(), "{} = {word}", key.path);
        }
    }
}

#[test]
fn every_shipped_configuration_resolves_and_its_toml_gives_it_again() {
    for (name, _) in SHIPPED {
        let config = load(Some(name), &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(config.run.name, *name);
        let again = parse("config.toml", &to_toml(&config), &[]).unwrap();
        assert_eq!(again, config, "{name}");
        assert_eq!(to_toml(&again), to_toml(&config));
    }
    assert_eq!(load(None, &[]).unwrap(), load(Some("sokoban"), &[]).unwrap());
}

#[test]
fn a_tag_stands_for_the_configuration_of_its_type() {
    for tag in ragen_envs::tags() {
        let shipped = load(Some(&tag.env_type), &[]).unwrap_or_else(|e| panic!("{}: {e}", tag.env_type));
        let config = load(Some(&tag.name), &[]).unwrap_or_else(|e| panic!("{}: {e}", tag.name));
        assert_eq!((&config.env.train.tags, &config.env.val.tags), (&vec![tag.name.clone()], &vec![tag.name.clone()]));
        assert!(config.envs.contains_key(&tag.name));
        assert_eq!(config.run.name, tag.name);
        assert_eq!((&config.rollout, &config.optim), (&shipped.rollout, &shipped.optim), "{}", tag.name);
    }
    let mine =
        load(Some("CoordFrozenLake"), &["run.name=mine".into(), "env.val.tags=[\"FrozenLake\"]".into()]).unwrap();
    assert_eq!((mine.run.name.as_str(), mine.env.val.tags[0].as_str()), ("mine", "FrozenLake"));
    assert!(load(Some("SimpleSokobann"), &[]).unwrap_err().to_string().contains("did you mean SimpleSokoban?"));
}

#[test]
fn overrides_win_over_the_file_and_the_file_over_the_default() {
    let config = with(&[
        "filter.value=0.5",
        "run.name=mine",
        "run.seed=7",
        "optim.lr=1",
        "rollout.context=single_turn",
        "rollout.context_window=2",
        "envs.TinySokoban.config.num_boxes=2",
        "val.temperature=0.7",
    ]);
    assert_eq!(
        (config.filter.value, config.run.name.as_str(), config.run.seed, config.optim.lr),
        (0.5, "mine", 7, 1.0)
    );
    assert_eq!(config.envs["TinySokoban"].config["num_boxes"], 2);
    assert_eq!(config.envs["TinySokoban"].config["generator"], "open", "tables merge");
    assert_eq!(config.env.train.group_size, 8, "from the file");
    assert_eq!(config.rollout.format_penalty, -0.1, "from the default");
    assert!(to_toml(&config).contains("temperature = 0.7\n"), "as it was written");
    // A text stays a text, whatever it looks like, and RAGEN's spellings are taken.
    assert_eq!(with(&["run.name=12"]).run.name, "12");
    assert_eq!(with(&["filter.metric=reward_std"]).filter.metric, crate::filter::Metric::RewardVariance);
    assert_eq!(with(&["collapse.num_samples=all"]).collapse.num_samples, crate::collapse::SampleCount::All);
    assert_eq!(with(&["run.name=\"a b\""]).run.name, "a b");
}

#[test]
fn all_problems_come_at_once_each_with_its_key() {
    let found = problems(&[
        "filter.valeu=0.9",
        "run.steps=many",
        "optim.lr=-1",
        "rollout.prompt=ful",
        "filter=3",
        "run.seed.x=1",
        "env.train.tags=TinySokoban",
        "update.clip_low=0.1",
    ]);
    let expected = [
        "filter: is a section and cannot be 3; its keys are set as filter.KEY=VALUE",
        "run.steps: expected a whole number, found \"many\"",
        "run.seed: expected a whole number, found { x = 1 }",
        "optim.lr: expected a number from 0 to 1, found -1",
        "rollout.prompt: expected one of full, compact, found \"ful\"",
        "env.train.tags: expected a list of texts, found \"TinySokoban\"",
        "update.clip_low: unknown key; did you mean update.loss.clip_low (a number from 0 to 1)?",
    ];
    for line in expected {
        assert!(found.iter().any(|f| f == line), "{line}\nis not in\n{}", found.join("\n"));
    }
    assert_eq!(found.len(), expected.len(), "{}", found.join("\n"));
    assert_eq!(
        problems(&["filter.valeu=0.9"]),
        ["filter.valeu: unknown key; did you mean filter.value (a number of at least 0)?"]
    );
}

#[test]
fn ways_of_crediting_that_cannot_work_are_named() {
    let found = problems(&[
        "algorithm.estimator=gigpo",
        "algorithm.soft_reweight=true",
        "reward.placement=turn",
        "reward.overlong_buffer_tokens=1000",
        "reward.kl.target=0.1",
        "reward.kl.kind=unbiased",
        "update.loss.kl.target=0.1",
        "update.correction.kind=tis",
        "update.batch_adjust=copy",
        "update.mini_batches=2",
    ]);
    let keys = [
        "reward.placement",
        "reward.overlong_buffer_tokens",
        "update.correction.kind",
        "update.batch_adjust",
        "reward.kl.target",
        "update.loss.kl.target",
        "reward.kl.kind",
    ];
    let named: Vec<&str> = found.iter().filter_map(|f| f.split(": ").next()).collect();
    assert_eq!(named, keys, "{}", found.join("\n"));
    let found = problems(&["algorithm.estimator=reinforce_plus_plus", "algorithm.soft_reweight=true"]);
    assert!(found[0].starts_with("algorithm.soft_reweight: ") && found.len() == 1, "{found:?}");
    let found = problems(&["algorithm.estimator=gigpo", "reward.placement=turn"]);
    assert!(found.len() == 1 && found[0].contains("each turn's return from its state"), "{found:?}");
    assert!(with(&["algorithm.estimator=gae", "algorithm.bootstrap_truncated=true"]).algorithm.bootstrap_truncated);
    let found = problems(&["algorithm.estimator=grpo", "algorithm.bootstrap_truncated=true"]);
    assert!(found[0].starts_with("algorithm.bootstrap_truncated: ") && found.len() == 1, "{found:?}");
    let found = problems(&["algorithm.estimator=gae", "model.value_warmup_steps=3"]);
    assert!(found[0].starts_with("model.value_warmup_steps: ") && found.len() == 1, "{found:?}");
    let found = problems(&["algorithm.estimator=rloo", "env.train.group_size=1", "filter.value=1"]);
    assert!(found[0].contains("\"rloo\" compares the members of a group"), "{found:?}");
    let found = problems(&["update.loss.policy=gppo", "update.loss.polic=ppo", "algorithm.turn_gama=1"]);
    assert!(found.iter().any(|f| f.contains("did you mean algorithm.turn_gamma")), "{found:?}");
    assert!(found.iter().any(|f| f.contains("did you mean update.loss.policy")), "{found:?}");
    assert!(found.iter().any(|f| f.contains("expected one of ppo, gspo, cispo")), "{found:?}");
}

#[test]
fn what_is_seldom_meant_is_noticed() {
    assert!(notices(&with(&[])).is_empty());
    let all = [
        "update.loss.kl.coef=0.1",
        "update.loss.kl.kind=kl",
        "update.loss.policy=gspo",
        "reward.kl.coef=0.1",
        "reward.kl.kind=k3",
    ];
    let notices = notices(&with(&all));
    assert_eq!(notices.len(), 3);
    for (notice, word) in notices.iter().zip(["pulls nowhere", "gradient is right in the reward", "hardly ever clip"]) {
        assert!(notice.contains(word), "{notice}");
    }
}

#[test]
fn combinations_that_cannot_work_come_at_once() {
    let found = problems(&[
        "model.n_heads=5",
        "model.n_kv_heads=3",
        "env.train.group_size=1",
        "env.val.tags=[\"TinySokobn\"]",
        "env.train.n_groups=[3]",
        "rollout.response_tokens=512",
        "optim.betas=[0.9, 1]",
        "run.device=gpu",
        "envs.TinySokoban.config.num_boxs=1",
        "envs.Mine.max_actions=3",
    ]);
    for key in [
        "model.n_heads",
        "model.n_kv_heads",
        "env.train.group_size",
        "env.val.tags",
        "env.train.n_groups",
        "filter.metric",
        "rollout.response_tokens",
        "optim.betas",
        "run.device",
        "envs.TinySokoban.config.num_boxs",
        "envs.Mine.type",
    ] {
        assert_eq!(
            found.iter().filter(|f| f.starts_with(&format!("{key}: "))).count(),
            1,
            "{key} in\n{}",
            found.join("\n")
        );
    }
    assert_eq!(found.len(), 11, "{}", found.join("\n"));
    assert!(found.iter().any(|f| f.contains("the nearest is TinySokoban")), "{}", found.join("\n"));
}

#[test]
fn windows_and_rounds_that_have_no_effect_are_refused() {
    for (overrides, problem) in [
        (&["rollout.context_window=2"][..], "rollout.context_window: has no effect with rollout.context = \"full\""),
        (
            &["rollout.context_window=0", "rollout.context=single_turn"],
            "rollout.context_window: expected a whole number of at least 1, or \"all\", found 0",
        ),
        (&["rollout.context=single_turns"], "rollout.context: expected one of full, limited_multi_turn, single_turn"),
        (&["rollout.contxt_window=3"], "rollout.contxt_window: unknown key; did you mean rollout.context_window"),
        (
            &["rollout.context=limited_multi_turn", "rollout.history=append"],
            "rollout.history: is \"append\", but with this rollout.context",
        ),
        (
            &["filter.value=1", "filter.max_rounds=3"],
            "filter.max_rounds: is above 1, but the filter passes every group",
        ),
        (&["filter.full_groups=33"], "filter.full_groups: is more than the 32 groups of filter.max_rounds rollouts"),
        (
            &["filter.metric=success_variance", "env.train.group_size=1", "algorithm.estimator=gae"],
            "filter.metric: is the spread within a group",
        ),
    ] {
        let found = problems(overrides);
        assert!(found.len() == 1 && found[0].starts_with(problem), "{problem}\nis not\n{}", found.join("\n"));
    }
    let config = with(&["rollout.context=limited_multi_turn", "rollout.context_window=all"]);
    assert_eq!(config.rollout.context_window, crate::config::Window::All);
    assert!(
        to_toml(&with(&["rollout.context=single_turn", "rollout.context_window=3"])).contains("context_window = 3\n")
    );
}

#[test]
fn what_is_no_configuration() {
    let text = |config: &str, overrides: &[String]| load(Some(config), overrides).unwrap_err().to_string();
    assert!(text("sokobn", &[]).contains("did you mean sokoban?"), "{}", text("sokobn", &[]));
    assert!(
        text("absent.toml", &[])
            .contains("neither a file, nor a tag (`ragen envs` lists them), nor one of sokoban, frozen_lake")
    );
    assert!(text("sokoban", &["filter.value".into()]).contains("is not KEY=VALUE"));
    assert!(parse("x.toml", "a = = 1", &[]).unwrap_err().to_string().contains("x.toml is not TOML"));
}

#[test]
fn differences_are_named_with_both_values() {
    let (a, b) = (with(&[]), with(&["optim.lr=1e-3", "run.steps=70", "envs.TinySokoban.config.num_boxes=2"]));
    assert_eq!(
        differences(&a, &b, |key| key == "run.steps"),
        ["envs.TinySokoban.config.num_boxes: 1 here, 2 there", "optim.lr: 0.0002 here, 0.001 there"]
    );
    assert_eq!(differences(&a, &a, |_| false), Vec::<String>::new());
}

/// The same configuration serves the small model and one that brings a chat template.
#[test]
fn a_language_model_takes_the_section_made_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display().to_string();
    let model = |name: &str, changes: &[&str]| {
        let changes =
            [&[format!("model.path={path:?}")], &changes.iter().map(|s| s.to_string()).collect::<Vec<_>>()[..]];
        load(Some(name), &changes.concat()).unwrap()
    };
    for (name, _) in SHIPPED {
        assert_eq!(model(name, &[]).rollout, load(Some(name), &[]).unwrap().rollout, "no template, no language model");
    }
    fs::write(dir.path().join("tokenizer_config.json"), r#"{"chat_template": "x"}"#).unwrap();
    for (name, _) in SHIPPED {
        let config = model(name, &[]);
        assert_eq!(config.rollout.prompt, crate::config::PromptStyle::Full, "{name}");
        assert!(
            config.rollout.force_open_tag && !config.rollout.force_close_tag && config.rollout.response_tokens >= 16
        );
        assert!(config.optim.lr < 1e-4 && config.env.train.groups < 32, "{name}");
        assert_eq!(config.optim.betas, load(Some(name), &[]).unwrap().optim.betas, "the rest of the file stays");
        // What was resolved says it all, and the command line wins.
        let toml = to_toml(&config);
        assert!(!toml.contains("[lm"));
        assert_eq!(parse("config.toml", &toml, &[]).unwrap(), config);
        assert_eq!(model(name, &["rollout.response_tokens=70"]).rollout.response_tokens, 70);
    }
    // A run of such a model is one, and so is a file that says so.
    let run = tempfile::tempdir().unwrap();
    assert!(!is_language_model(run.path()));
    fs::create_dir_all(run.path().join("checkpoints/step-000001")).unwrap();
    fs::write(run.path().join("checkpoints/step-000001/chat_template.jinja"), "x").unwrap();
    fs::write(run.path().join("x.gguf"), "").unwrap();
    assert!(is_language_model(run.path()) && is_language_model(&run.path().join("x.gguf")));

    let wrong = parse("x.toml", "[lm.rollout]\nresponse_token = 3\n[lm]\noptim = 4\n", &[]).unwrap_err().to_string();
    assert!(wrong.contains("lm.rollout.response_token: unknown key"), "{wrong}");
    assert!(wrong.contains("lm.optim: is a section and cannot be 4"), "{wrong}");
    assert_eq!(problems(&["lm.rollout.think=true"]).len(), 1);
}
