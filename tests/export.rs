//! `ragen export`: what it writes loads again with the same numbers, and writing it again gives the same bytes.

use ragen_models::pretrained;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn ragen(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ragen")).current_dir(dir).args(args).output().unwrap()
}

fn ok(dir: &Path, args: &[&str]) {
    let output = ragen(dir, args);
    assert!(output.status.success(), "ragen {args:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

/// The JSON text with another number under a key.
fn with_number(json: &str, key: &str, number: &str) -> String {
    let start = json.find(key).unwrap() + key.len() + 3;
    let end = start + json[start..].find([',', '\n']).unwrap();
    [&json[..start], number, &json[end..]].concat()
}

fn golden(path: &str) -> String {
    format!("{}/tests/golden/golden/{path}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_gguf_becomes_a_folder_and_a_folder_stays_as_it_is() {
    for name in ["llama_q4_1", "qwen2_f16"] {
        let dir = tempfile::tempdir().unwrap();
        let gguf = golden(&format!("gguf_models/{name}/model.gguf"));
        ok(dir.path(), &["export", &gguf, "first", "--quiet"]);
        ok(dir.path(), &["export", "first", "second", "--quiet"]);
        let (first, second) = (files(&dir.path().join("first")), files(&dir.path().join("second")));
        for wanted in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            assert!(first.contains_key(wanted), "{name}: {:?}", first.keys());
        }
        assert!(first == second, "{name}: {:?} and {:?}", first.keys(), second.keys());
        let from = pretrained::open(Path::new(&gguf)).unwrap();
        let to = pretrained::open(&dir.path().join("first")).unwrap();
        assert_eq!(from.config, to.config, "{name}");
        assert_eq!(from.load().unwrap().params.data, to.load().unwrap().params.data, "{name}");
        let text = "Move Up || Down: <|im_end|> 42\n";
        assert_eq!(from.tokenizer.encode(text), to.tokenizer.encode(text), "{name}");
        let (from, to) = (from.chat.as_ref().unwrap(), to.chat.as_ref().unwrap());
        assert_eq!((from.template.source(), &from.stop_ids), (to.template.source(), &to.stop_ids), "{name}");
    }
}

#[test]
fn weights_can_be_halved_and_split() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = golden("gguf_models/llama_q4_1/model.gguf");
    let form = ["--dtype", "bf16", "--shard-bytes", "40000", "--quiet"];
    ok(dir.path(), &[&["export", &gguf, "first"], &form[..]].concat());
    ok(dir.path(), &[&["export", "first", "second"], &form[..]].concat());
    let first = files(&dir.path().join("first"));
    assert!(first == files(&dir.path().join("second")));
    let shards = first.keys().filter(|name| name.starts_with("model-0000")).count();
    assert!(shards > 2 && first.contains_key("model.safetensors.index.json"), "{:?}", first.keys());
    assert!(String::from_utf8_lossy(&first["config.json"]).contains("bfloat16"));
    let load = |path: &Path| pretrained::open(path).unwrap().load().unwrap().params.data;
    let (exact, halved) = (load(Path::new(&gguf)), load(&dir.path().join("first")));
    for (exact, halved) in exact.iter().zip(&halved) {
        assert!((exact - halved).abs() <= exact.abs() / 256.0, "{exact} became {halved}");
    }
    let refused = ragen(dir.path(), &["export", &gguf, "x", "--dtype", "f16"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn files_beside_the_weights_go_along_byte_for_byte_also_through_a_run() {
    let dir = tempfile::tempdir().unwrap();
    ok(dir.path(), &["export", &golden("gguf_models/llama_q4_1/model.gguf"), "model", "--quiet"]);
    let model = dir.path().join("model");
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    let longer = with_number(&config, "max_position_embeddings", "2048");
    fs::write(model.join("config.json"), longer).unwrap();
    // Somebody's own spacing and a file that only others read.
    for (name, text) in [("generation_config.json", "{ \"eos_token_id\":[ 1,2 ],\n\"x\": 1 }"), ("vocab.json", "{}")] {
        fs::write(model.join(name), text).unwrap();
    }
    let small = "env.train.groups=2 env.train.group_size=2 val.every=0 val.before_train=false collapse.every=0 \
                 run.steps=1 rollout.response_tokens=6 rollout.model_tokens=2048 checkpoint.every=1";
    let mut train = vec!["train", "bandit", "model.path=model", "--run", "run", "--quiet"];
    train.extend(small.split_whitespace());
    ok(dir.path(), &train);
    ok(dir.path(), &["export", "run", "trained", "--quiet"]);
    let (before, after) = (files(&model), files(&dir.path().join("trained")));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (name, bytes) in before.iter().filter(|(name, _)| *name != "model.safetensors") {
        assert!(after[name] == *bytes, "{name}");
    }
}

#[test]
fn adapters_are_merged_or_kept_apart() {
    let dir = tempfile::tempdir().unwrap();
    let small = "model.lora.rank=3 model.lora.alpha=6.0 optim.lr=0.05 env.train.groups=2 env.train.group_size=4 val.every=0 \
                 val.before_train=false collapse.every=0 run.steps=3 filter.value=1.0 algorithm.estimator=gae";
    let mut train = vec!["train", "sokoban", "--run", "run", "--quiet"];
    train.extend(small.split_whitespace());
    ok(dir.path(), &train);
    ok(dir.path(), &["export", "run", "merged", "--quiet"]);
    ok(dir.path(), &["export", "run", "apart", "--adapters", "--quiet"]);
    ok(dir.path(), &["export", "sokoban", "base", "--quiet"]);
    assert!(dir.path().join("apart/adapter_model.safetensors").exists());
    let weights = |name: &str| pretrained::open(&dir.path().join(name)).unwrap().load().unwrap();
    let (base, merged) = (weights("base"), weights("merged"));
    assert!(!merged.config.value_head, "other programs do not know a value head");
    let changed = |name: &str| base.params.get(name) != merged.params.get(name);
    assert!(changed("model.layers.0.self_attn.q_proj.weight") && changed("model.layers.2.mlp.down_proj.weight"));
    assert!(!changed("model.embed_tokens.weight") && !changed("model.norm.weight"));
    let refused = ragen(dir.path(), &["export", "sokoban", "x", "--adapters"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(!dir.path().join("x").exists());
    let refused = ragen(dir.path(), &["export", "sokoban", "merged"]);
    assert_eq!(refused.status.code(), Some(2), "nothing is overwritten");
}

#[test]
fn a_model_that_could_not_listen_or_stop_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    ok(dir.path(), &["export", &golden("gguf_models/qwen2_f16/model.gguf"), "model", "--quiet"]);
    let refused = |name: &str, text: &str, wanted: &str| {
        let path = dir.path().join("model").join(name);
        let before = fs::read_to_string(&path).unwrap();
        fs::write(&path, text).unwrap();
        let output = ragen(dir.path(), &["export", "model", "again"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(wanted), "{error}");
        fs::write(&path, before).unwrap();
    };
    for template in ["", "hello", "{{ messages[0].role }}"] {
        let text = format!(r#"{{"chat_template": "{template}"}}"#);
        refused("tokenizer_config.json", &text, "does not show a user's message");
    }
    refused("generation_config.json", r#"{"eos_token_id": [1, 1000000000]}"#, "eos_token_id 1000000000 is no token");
    ok(dir.path(), &["export", "model", "again", "--quiet"]);
}
