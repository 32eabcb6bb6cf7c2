use super::*;
use crate::config::{Family, Rope};
use crate::random::Key;
use safetensors::tensor::SafeTensors;
use serde_json::{Map, Value, json};
use std::path::Path;

fn small(tied_embeddings: bool, value_head: bool) -> Checkpoint {
    let config = Config {
        family: Family::Qwen2,
        vocab: 12,
        d_model: 8,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 4,
        d_ff: 6,
        rope: Rope::plain(500.0),
        sliding_window: None,
        norm_eps: 1e-5,
        tied_embeddings,
        qkv_bias: true,
        qk_norm: false,
        value_head,
        max_positions: 64,
    };
    let mut params = Params::zeros(Arc::new(Table::new(&config)));
    for (i, x) in params.data.iter_mut().enumerate() {
        *x = Key::new(5).normal(i as u64) as f32;
    }
    Checkpoint { config, params }
}

fn bytes(dir: &Path) -> Vec<u8> {
    [CONFIG, MODEL].iter().flat_map(|name| std::fs::read(dir.join(name)).unwrap()).collect()
}

/// A safetensors file of these tensors, made by the crate rather than by [`save`].
fn write_tensors(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (*name, safetensors::tensor::TensorView::new(*dtype, shape.to_vec(), data).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn raw(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Name, format, shape and bytes of a tensor.
type Raw<'a> = (&'a str, Dtype, &'a [usize], Vec<u8>);

/// The model's tensors as raw f32, to be changed and written by a test.
fn tensors(model: &Checkpoint) -> Vec<Raw<'_>> {
    let entries = model.params.table.entries.iter();
    entries.map(|e| (e.name.as_str(), Dtype::F32, e.shape.as_slice(), raw(&model.params.data[e.range()]))).collect()
}

#[test]
fn saved_loaded_and_saved_again_is_byte_equal() {
    for (tied, value) in [(false, false), (true, false), (false, true), (true, true)] {
        let model = small(tied, value);
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        save(a.path(), &model.config, &model.params).unwrap();
        let back = load(a.path()).unwrap();
        assert_eq!(back.config, model.config);
        assert_eq!(back.params.data, model.params.data);
        save(&b.path().join("new/folder"), &back.config, &back.params).unwrap();
        assert_eq!(bytes(a.path()), bytes(&b.path().join("new/folder")));
        // What was written is a file that the crate itself reads.
        let file = std::fs::read(a.path().join(MODEL)).unwrap();
        let parsed = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(parsed.tensor("model.norm.weight").unwrap().data(), raw(model.params.get("model.norm.weight")));
        assert_eq!(std::fs::read_dir(a.path()).unwrap().count(), 2, "no temporary file is left");
    }
}

#[test]
fn half_precision_formats_are_widened() {
    let model = small(false, false);
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), &model.config, &model.params).unwrap();
    for dtype in [Dtype::BF16, Dtype::F16] {
        let mut rounded = Vec::new();
        let mut half = tensors(&model);
        for (_, format, _, data) in &mut half {
            *format = dtype;
            let numbers = data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            *data = numbers
                .flat_map(|x| {
                    let (wide, bits) = match dtype {
                        Dtype::BF16 => (half::bf16::from_f32(x).to_f32(), half::bf16::from_f32(x).to_bits()),
                        _ => (half::f16::from_f32(x).to_f32(), half::f16::from_f32(x).to_bits()),
                    };
                    rounded.push(wide);
                    bits.to_le_bytes()
                })
                .collect();
        }
        write_tensors(&dir.path().join(MODEL), &half);
        assert_eq!(load(dir.path()).unwrap().params.data, rounded);
    }
}

#[test]
fn a_value_head_comes_from_either_file_or_starts_at_zero() {
    let plain = small(false, false);
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), &plain.config, &plain.params).unwrap();
    let grown = load(dir.path()).unwrap().with_value_head();
    assert_eq!(grown.params.data[..plain.params.data.len()], plain.params.data);
    assert!(grown.params.get("value_head.weight").iter().all(|&w| w == 0.0));
    assert_eq!(grown.params.get("value_head.bias"), [0.0]);

    let head: Vec<f32> = (0..8).map(|i| i as f32).collect();
    let tensors = [
        ("value_head.weight", Dtype::F32, &[1, 8][..], raw(&head)),
        ("value_head.bias", Dtype::F32, &[1][..], raw(&[0.5])),
    ];
    write_tensors(&dir.path().join(VALUE_HEAD), &tensors);
    let model = load(dir.path()).unwrap().with_value_head();
    assert!(model.config.value_head);
    assert_eq!(model.params.get("value_head.weight"), head);
    assert_eq!(model.params.get("value_head.bias"), [0.5]);

    save(dir.path(), &model.config, &model.params).unwrap();
    assert_eq!(load(dir.path()).unwrap().params.data, model.params.data, "the head's own file is gone");
    write_tensors(&dir.path().join(VALUE_HEAD), &tensors);
    let twice = load(dir.path()).unwrap_err().to_string();
    assert!(twice.contains("value_head.safetensors has tensor value_head.bias once more"), "{twice}");
}

#[test]
fn shards_are_read_through_their_index() {
    let model = small(false, false);
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), &model.config, &model.params).unwrap();
    std::fs::remove_file(dir.path().join(MODEL)).unwrap();
    let all = tensors(&model);
    let (first, second) = all.split_at(7);
    write_tensors(&dir.path().join("a.safetensors"), first);
    write_tensors(&dir.path().join("b.safetensors"), second);
    let index = |names: [&str; 2]| {
        let text = json!({"weight_map": {"model.norm.weight": names[0], "lm_head.weight": names[1]}}).to_string();
        std::fs::write(dir.path().join(INDEX), text).unwrap();
    };
    index(["b.safetensors", "a.safetensors"]);
    assert_eq!(load(dir.path()).unwrap().params.data, model.params.data);
    index(["b.safetensors", "b.safetensors"]);
    let message = load(dir.path()).unwrap_err().to_string();
    let wanted =
        "model.safetensors.index.json has no tensor model.layers.0.input_layernorm.weight, which config.json asks for";
    assert!(message.ends_with(wanted), "{message}");
    index(["b.safetensors", "c.safetensors"]);
    let (at, message) = (dir.path().display(), load(dir.path()).unwrap_err().to_string());
    let wanted = format!("{at}/c.safetensors is not there, though {at}/model.safetensors.index.json lists it");
    assert!(message.starts_with(&wanted), "{message}");
    write_tensors(&dir.path().join("b.safetensors"), &second[..second.len() - 1]);
    index(["b.safetensors", "a.safetensors"]);
    let message = load(dir.path()).unwrap_err().to_string();
    let wanted = format!("{at}/a.safetensors has no tensor lm_head.weight, which config.json asks for");
    assert_eq!(message, wanted, "the file that the index says");
    index(["b.safetensors", "../a.safetensors"]);
    assert!(matches!(load(dir.path()), Err(WeightsError::Index(_))));
}

#[test]
fn errors_name_the_file_and_the_tensor() {
    let model = small(true, false);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(MODEL);
    let message = || load(dir.path()).unwrap_err().to_string();
    let at = dir.path().display();
    assert!(message().starts_with(&format!("cannot read {at}/config.json: ")));
    save(dir.path(), &model.config, &model.params).unwrap();
    let whole = std::fs::read(&path).unwrap();

    std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let cut = format!("{at}/model.safetensors is cut short: tensor model.norm.weight ends beyond the end of the file");
    assert!(message().starts_with(&cut), "{}", message());
    for len in (0..whole.len()).step_by(97) {
        std::fs::write(&path, &whole[..len]).unwrap();
        assert!(matches!(load(dir.path()), Err(WeightsError::Truncated { .. } | WeightsError::Format { .. })));
    }

    let mut fewer = tensors(&model);
    let name = fewer.remove(3).0;
    write_tensors(&path, &fewer);
    assert_eq!(message(), format!("{at}/model.safetensors has no tensor {name}, which config.json asks for"));
    let mut more = tensors(&model);
    more.push(("lm_head.weight", Dtype::F32, more[0].2, more[0].3.clone()));
    more.push(("model.rotary_emb.inv_freq", Dtype::F32, &[1], raw(&[1.0])));
    write_tensors(&path, &more);
    assert_eq!(load(dir.path()).unwrap().params.data, model.params.data, "what follows from the rest is ignored");
    more.push(("model.layers.0.self_attn.o_proj.bias", Dtype::F32, &[1], raw(&[1.0])));
    write_tensors(&path, &more);
    let unexpected = "has a tensor model.layers.0.self_attn.o_proj.bias that config.json does not ask for";
    assert!(message().ends_with(unexpected), "{}", message());

    let mut other = tensors(&model);
    other[0].2 = &[8, 12];
    write_tensors(&path, &other);
    let shape = "tensor model.embed_tokens.weight has shape [8, 12], but config.json asks for [12, 8]";
    assert!(message().ends_with(shape), "{}", message());
    other[0] = (other[0].0, Dtype::I32, &[12, 8], other[0].3.clone());
    write_tensors(&path, &other);
    assert!(message().ends_with("tensor model.embed_tokens.weight holds I32; F32, BF16 and F16 can be read"));

    std::fs::remove_file(&path).unwrap();
    assert_eq!(message(), format!("{at} has neither model.safetensors nor model.safetensors.index.json"));
    let blocked = save(&path.join("config.json"), &model.config, &model.params);
    assert!(blocked.is_ok(), "a folder that is not there is made");
    let blocked = save(&path.join("config.json/config.json"), &model.config, &model.params).unwrap_err();
    assert!(blocked.to_string().starts_with("cannot write "), "{blocked}");
}

/// The folder's weight files, by name.
fn weight_files(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != CONFIG).collect();
    names.sort();
    names
}

fn everything(dir: &Path) -> Vec<(String, Vec<u8>)> {
    weight_files(dir)
        .into_iter()
        .chain([CONFIG.into()])
        .map(|name| (name.clone(), std::fs::read(dir.join(name)).unwrap()))
        .collect()
}

#[test]
fn shards_are_written_as_hugging_face_does_and_come_back_byte_equal() {
    for (tied, stored) in [(false, Stored::F32), (true, Stored::F32), (false, Stored::Bf16)] {
        let model = small(tied, true);
        // The embedding alone has 12 · 8 numbers and gets a file of its own.
        let options = SaveOptions { stored, shard_bytes: 300 };
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        save_as(a.path(), &model.config, &model.params, options).unwrap();
        let back = load(a.path()).unwrap();
        save_as(b.path(), &back.config, &back.params, options).unwrap();
        assert_eq!(everything(a.path()), everything(b.path()));
        let rounded = |x: &f32| if stored == Stored::Bf16 { half::bf16::from_f32(*x).to_f32() } else { *x };
        assert_eq!(back.params.data, model.params.data.iter().map(rounded).collect::<Vec<_>>());

        let size = if stored == Stored::Bf16 { 2 } else { 4 };
        let index: Value = serde_json::from_slice(&std::fs::read(a.path().join(INDEX)).unwrap()).unwrap();
        assert_eq!(index["metadata"]["total_size"], size * model.params.data.len());
        let map = index["weight_map"].as_object().unwrap();
        assert_eq!(map.len(), model.params.table.entries.len());
        assert!(map.keys().is_sorted());
        let files = weight_files(a.path());
        assert!(files.len() > 4, "{files:?}");
        for (tensor, file) in map {
            let bytes = std::fs::read(a.path().join(file.as_str().unwrap())).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            assert!(file.tensor(tensor).is_ok());
            assert!(file.len() == 1 || file.tensors().iter().map(|(_, t)| t.data().len()).sum::<usize>() <= 300);
        }
        assert_eq!(files[0], format!("model-00001-of-{:05}.safetensors", files.len() - 1));
        let config = std::fs::read_to_string(a.path().join(CONFIG)).unwrap();
        assert!(config.contains(if size == 2 { "\"bfloat16\"" } else { "\"float32\"" }));
    }
}

#[test]
fn another_layout_leaves_nothing_behind() {
    let (old, new) = (small(false, true), small(true, false));
    let dir = tempfile::tempdir().unwrap();
    let save = |model: &Checkpoint, shard_bytes| {
        let options = SaveOptions { shard_bytes, ..SaveOptions::default() };
        save_as(dir.path(), &model.config, &model.params, options).unwrap();
        let back = load(dir.path()).unwrap();
        assert_eq!((back.config, back.params.data), (model.config.clone(), model.params.data.clone()));
        weight_files(dir.path())
    };
    std::fs::write(dir.path().join("model-card.safetensors"), "not ours").unwrap();
    assert_eq!(save(&old, 1 << 20), ["model-card.safetensors", MODEL]);
    let many = save(&new, 300).len();
    let fewer = save(&old, 900).len();
    assert!(fewer < many && fewer > 4, "{fewer} and {many}");
    assert_eq!(save(&old, 900).len(), fewer);
    assert_eq!(save(&new, 1 << 20), ["model-card.safetensors", MODEL]);
}

#[test]
fn the_weights_tell_what_the_configuration_leaves_open_about_the_head() {
    let (tied, untied) = (small(true, false), small(false, false));
    let dir = tempfile::tempdir().unwrap();
    let try_load = |model: &Checkpoint, says: Value, change: &dyn Fn(&mut Vec<Raw<'_>>)| {
        let mut config: Map<String, Value> = serde_json::from_str(&model.config.to_hf_json()).unwrap();
        match says {
            Value::Null => config.remove("tie_word_embeddings"),
            says => config.insert("tie_word_embeddings".into(), says),
        };
        std::fs::write(dir.path().join(CONFIG), Value::Object(config).to_string()).unwrap();
        let mut all = tensors(model);
        change(&mut all);
        write_tensors(&dir.path().join(MODEL), &all);
        load(dir.path())
    };
    let as_is = |_: &mut Vec<Raw<'_>>| {};
    let tied_data = |got: Checkpoint| got.config.tied_embeddings && got.params.data == tied.params.data;
    let untied_data = |got: Checkpoint| !got.config.tied_embeddings && got.params.data == untied.params.data;
    assert!(tied_data(try_load(&tied, true.into(), &as_is).unwrap()));
    assert!(tied_data(try_load(&tied, Value::Null, &as_is).unwrap()), "no head and no word: tied");
    assert!(untied_data(try_load(&untied, false.into(), &as_is).unwrap()));
    assert!(untied_data(try_load(&untied, Value::Null, &as_is).unwrap()), "a head and no word: untied");
    assert!(untied_data(try_load(&untied, true.into(), &as_is).unwrap()), "another head: not tied, whatever is said");
    let twice =
        try_load(&tied, true.into(), &|all| all.push(("lm_head.weight", Dtype::F32, all[0].2, all[0].3.clone())));
    assert!(tied_data(twice.unwrap()), "the same head again");
    assert!(tied_data(try_load(&tied, true.into(), &|all| all[0].0 = "lm_head.weight").unwrap()), "by its other name");
    let error = try_load(&tied, false.into(), &as_is).unwrap_err().to_string();
    assert!(error.ends_with("has no tensor lm_head.weight, which config.json asks for"), "{error}");
}

#[test]
fn a_folder_is_opened_without_reading_numbers_and_a_huge_shape_without_making_room() {
    let model = small(true, false);
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), &model.config, &model.params).unwrap();
    let opened = open(dir.path()).unwrap();
    assert_eq!(opened.config, model.config);
    assert_eq!(opened.load().params.data, model.params.data);
    assert_eq!(opened.load().params.data, model.params.data, "pages that were let go are read again");
    for (key, value) in
        [("num_hidden_layers", 65_536), ("hidden_size", 4_000_000_000u32), ("vocab_size", 4_000_000_000)]
    {
        let mut config: Value = serde_json::from_str(&model.config.to_hf_json()).unwrap();
        config[key] = value.into();
        std::fs::write(dir.path().join(CONFIG), config.to_string()).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(matches!(error, WeightsError::Missing { .. } | WeightsError::Shape { .. }), "{key}: {error}");
    }
}

#[test]
fn the_shipped_models_come_back_byte_for_byte() {
    for name in ["sokoban", "frozen_lake"] {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("shipped").join(name);
        let (model, dir) = (load(&shipped).unwrap(), tempfile::tempdir().unwrap());
        save(dir.path(), &model.config, &model.params).unwrap();
        assert!(bytes(dir.path()) == bytes(&shipped), "{name}");
    }
}
