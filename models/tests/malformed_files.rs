//! Every reader against damaged files: an error or a valid load, never a panic, never memory that the file does not account for.
//!
//! Whole files are cut, overwritten with extreme numbers, flipped bit by bit, shuffled, and replaced by noise, from fixed
//! seeds; `RAGEN_FUZZ_SECONDS` goes on with other seeds for that long. The allocator of this program counts, so that a length in
//! a file cannot be believed without being noticed. It is one test, since the count is of the whole process.

use ragen_models::chat_template::Chat;
use ragen_models::config::Config;
use ragen_models::device::Cpu;
use ragen_models::params::{Params, Table};
use ragen_models::tokenizer::Tokenizer;
use ragen_models::{gguf, peft, pretrained, weights};
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The system's allocator, counting.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every call is passed on as it is; the counters are atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may exist for a moment.
        grown(size);
        // SAFETY: the caller's promise.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        LIVE.fetch_sub(layout.size(), Relaxed);
        moved
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A stream of numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(n).collect()
    }
}

/// Numbers that lengths, counts, offsets and types are not.
fn extreme(random: &mut Random, len: usize) -> u64 {
    let some = random.next();
    *random.of(&[
        0,
        1,
        len as u64,
        len as u64 + 1,
        100_000_000,
        u64::from(u32::MAX),
        1 << 32,
        1 << 40,
        1 << 62,
        1 << 63,
        i64::MAX as u64,
        u64::MAX,
        u64::MAX - 7,
        some,
        some >> 40,
    ])
}

/// What stands in a text instead of a number.
const TEXTS: [&str; 22] = [
    "0",
    "1",
    "2",
    "3",
    "-1",
    "0.5",
    "1e308",
    "-1e308",
    "1e400",
    "4294967295",
    "4294967296",
    "100000000",
    "1000000000000",
    "9007199254740993",
    "18446744073709551615",
    "18446744073709551616",
    "null",
    "true",
    "\"x\"",
    "[]",
    "{}",
    "[[]]",
];

/// A damaged copy of a file.
fn damaged(random: &mut Random, whole: &[u8], is_text: bool) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..1 + random.below(3) {
        let len = bytes.len();
        let at = random.below(len);
        match random.below(if is_text { 9 } else { 6 }) {
            0 => bytes.truncate(at),
            1 => {
                let value = extreme(random, len).to_le_bytes();
                // Headers are at the beginning, and that is where most of the meaning is.
                let at = if random.below(2) == 0 { at } else { random.below(len.min(4096)) };
                let n = *random.of(&[1, 2, 4, 8]);
                let end = len.min(at + n);
                bytes[at..end].copy_from_slice(&value[..end - at]);
            }
            2 => (0..1 + random.below(16)).for_each(|_| {
                let at = random.below(len);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }),
            3 => drop(bytes.drain(at..len.min(at + 1 + random.below(64)))),
            4 => {
                let piece = bytes[at..len.min(at + 1 + random.below(64))].to_vec();
                let to = random.below(len);
                bytes.splice(to..to, piece);
            }
            5 => {
                let n = random.below(32);
                let noise = random.bytes(n);
                bytes.splice(at..at, noise);
            }
            6 | 7 => replace_a_number(random, &mut bytes),
            _ => swap_two_words(random, &mut bytes),
        }
    }
    bytes
}

/// Puts something else where a text has a number.
fn replace_a_number(random: &mut Random, bytes: &mut Vec<u8>) {
    let from = random.below(bytes.len());
    let Some(start) = (from..bytes.len()).find(|&i| bytes[i].is_ascii_digit()) else { return };
    let end = (start..bytes.len()).find(|&i| !bytes[i].is_ascii_digit()).unwrap_or(bytes.len());
    bytes.splice(start..end, random.of(&TEXTS).bytes());
}

/// Exchanges two quoted words of a text.
fn swap_two_words(random: &mut Random, bytes: &mut Vec<u8>) {
    let mut word = || {
        let from = random.below(bytes.len());
        let start = (from..bytes.len()).find(|&i| bytes[i] == b'"')?;
        let end = (start + 1..bytes.len()).find(|&i| bytes[i] == b'"')?;
        Some(start..end + 1)
    };
    let (Some(a), Some(b)) = (word(), word()) else { return };
    let copy = bytes[b].to_vec();
    bytes.splice(a, copy);
}

/// A file that is damaged, in a folder where the others are whole.
struct Target {
    name: &'static str,
    folder: PathBuf,
    file: &'static str,
    whole: Vec<u8>,
    is_text: bool,
    /// Memory in bytes beside a multiple of the files' bytes.
    allowance: usize,
    read: fn(&Path),
}

/// Memory may be this many times the bytes of the folder: a token of a vocabulary or an entry of a table takes some hundred
/// bytes where the file has ten, and packed weights become f32.
const TIMES: usize = 64;

impl Target {
    fn new(name: &'static str, folder: &Path, file: &'static str, allowance: usize, read: fn(&Path)) -> Self {
        let whole = std::fs::read(folder.join(file)).unwrap();
        let is_text = file.ends_with("json");
        Target { name, folder: folder.to_path_buf(), file, whole, is_text, allowance, read }
    }

    /// Reads the folder with these bytes as the file.
    fn check(&self, bytes: &[u8], what: &str) {
        std::fs::write(self.folder.join(self.file), bytes).unwrap();
        let before = LIVE.load(Relaxed);
        PEAK.store(before, Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.read)(&self.folder)));
        let peak = PEAK.load(Relaxed) - before;
        let files: usize = std::fs::read_dir(&self.folder)
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len() as usize)
            .sum();
        let allowed = TIMES * files + self.allowance;
        if outcome.is_err() || peak > allowed {
            let kept = std::env::temp_dir().join(format!("ragen-malformed-{}-{}", self.name, self.file));
            std::fs::write(&kept, bytes).unwrap();
            let how = if outcome.is_err() { "panics" } else { "takes too much memory" };
            panic!("{}: {what} {how} ({peak} bytes of {allowed}); the file is kept as {}", self.name, kept.display());
        }
    }

    fn run(&self, seed: u64) {
        let mut random = Random(seed);
        self.check(&damaged(&mut random, &self.whole, self.is_text), &format!("seed {seed}"));
    }

    /// Cut at every length, or at some two hundred of them.
    fn cut(&self) {
        let len = self.whole.len();
        let lengths = (0..len.min(64)).chain((64..len).step_by(len / 200 + 1)).chain(len.saturating_sub(16)..len);
        for len in lengths {
            self.check(&self.whole[..len], &format!("cut at {len}"));
        }
    }

    /// Every number of a text (some forty of many) replaced by each of [`TEXTS`]; every byte of the beginning of another file
    /// by an extreme number of eight bytes.
    fn numbers(&self) {
        let whole = &self.whole;
        if !self.is_text {
            for at in (0..whole.len().min(1024) - 8).step_by(if whole.len() < 1024 { 1 } else { 4 }) {
                for value in [u64::MAX, 1 << 62, 1 << 40, u64::from(u32::MAX), 100_000_000] {
                    let mut bytes = whole.clone();
                    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                    self.check(&bytes, &format!("{value} at {at}"));
                }
            }
            return;
        }
        let is_digit = |i: usize| whole[i].is_ascii_digit();
        let starts: Vec<usize> = (0..whole.len()).filter(|&i| is_digit(i) && (i == 0 || !is_digit(i - 1))).collect();
        for &start in starts.iter().step_by(starts.len() / 40 + 1) {
            let end = (start..whole.len()).find(|&i| !is_digit(i)).unwrap_or(whole.len());
            for text in TEXTS {
                let bytes = [&whole[..start], text.as_bytes(), &whole[end..]].concat();
                self.check(&bytes, &format!("{text} at {start}"));
            }
        }
    }

    /// Ten megabytes of noise, alone and behind a beginning that promises more.
    fn noise(&self) {
        let mut random = Random(7);
        let noise = random.bytes(10 << 20);
        self.check(&noise, "noise");
        self.check(&[&self.whole[..self.whole.len().min(24)], &noise].concat(), "noise behind a beginning");
        self.check(&[&(noise.len() as u64).to_le_bytes(), &noise[..]].concat(), "noise behind its length");
        self.check(&[&100_000_000u64.to_le_bytes()[..], b"{", &noise].concat(), "noise behind a length of 100 MB");
    }
}

fn read_config(folder: &Path) {
    if let Ok(text) = std::fs::read_to_string(folder.join("config.json")) {
        let _ = Config::from_hf_json(&text);
    }
}

fn read_weights(folder: &Path) {
    let _ = weights::load(folder);
}

fn read_all(folder: &Path) {
    if let Ok(opened) = pretrained::open(folder) {
        let _ = opened.load();
    }
}

fn read_adapters(folder: &Path) {
    let (Ok(description), Ok(text)) = (peft::describe(folder), std::fs::read_to_string(folder.join("config.json")))
    else {
        return;
    };
    if let Ok(config) = Config::from_hf_json(&text) {
        let _ = peft::load(folder, &config, &description.lora);
    }
}

fn read_gguf(folder: &Path) {
    let Ok(file) = gguf::open(&folder.join("model.gguf")) else { return };
    let _ = file.load();
    let _ = (file.bos(), file.eos(), file.eot(), file.pad(), file.add_bos(), file.chat_template());
    let _ = file.tokenizer_config_json();
    if let Ok(json) = file.tokenizer_json() {
        let _ = Tokenizer::from_json(json);
    }
}

fn read_text(folder: &Path) {
    let Ok(tokenizer) = Tokenizer::load(folder) else { return };
    let text = "<|im_start|>Ünïcode 𝕏 12 <think>\n";
    let ids = [tokenizer.encode(text), tokenizer.encode_plain(text), vec![0, 5, u32::MAX]].concat();
    let _ = (tokenizer.decode(&ids), tokenizer.decode_without_special(&ids));
    let _ = Chat::load(folder, &tokenizer);
}

fn golden(path: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    std::env::var_os("RAGEN_GOLDEN").map_or(repository, PathBuf::from).join("golden").join(path)
}

/// A folder of its own with copies of these files.
fn folder(root: &Path, name: &str, files: &[PathBuf]) -> PathBuf {
    let folder = root.join(name);
    std::fs::create_dir(&folder).unwrap();
    for file in files {
        std::fs::copy(file, folder.join(file.file_name().unwrap())).unwrap();
    }
    folder
}

/// A model so small that most of its file is header.
fn tiny(root: &Path) -> PathBuf {
    let text = std::fs::read_to_string(golden("models/qwen2_tied/config.json")).unwrap();
    let config = Config {
        vocab: 6,
        d_model: 4,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 2,
        d_ff: 3,
        ..Config::from_hf_json(&text).unwrap()
    };
    let params = Params::zeros(Arc::new(Table::new(&config)));
    weights::save(&root.join("tiny"), &config, &params).unwrap();
    root.join("tiny")
}

fn targets(root: &Path) -> Vec<Target> {
    let in_model = |model: &str, files: &[&str]| -> Vec<PathBuf> {
        files.iter().map(|file| golden(&format!("models/{model}/{file}"))).collect()
    };
    let config = |name, model: &str| {
        let at = folder(root, name, &in_model(model, &["config.json"]));
        Target::new(name, &at, "config.json", 1 << 20, read_config)
    };
    let text: Vec<PathBuf> = ["tokenizer.json", "tokenizer_config.json"]
        .iter()
        .map(|file| golden(&format!("tokenizers/tiny_qwen/{file}")))
        .collect();
    let sharded = [
        "config.json",
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ];
    let (sharded, tiny) = (folder(root, "sharded", &in_model("llama_sharded", &sharded)), tiny(root));
    let adapters = ["config.json", "adapter_config.json", "adapter_model.safetensors"];
    let adapters = folder(root, "adapters", &in_model("llama_lora", &adapters));
    let gguf = |name, model: &str| {
        let at = folder(root, name, &[golden(&format!("gguf_models/{model}/model.gguf"))]);
        // Patterns of a damaged pre-tokenizer are compiled up to a size that the library bounds.
        Target::new(name, &at, "model.gguf", 1 << 24, read_gguf)
    };
    let whole = folder(root, "whole", &in_model("qwen2_tied", &["config.json", "model.safetensors"]));
    for file in &text {
        std::fs::copy(file, whole.join(file.file_name().unwrap())).unwrap();
    }
    let text = folder(root, "text", &text);
    const REGEX: usize = 1 << 26;
    vec![
        config("config_qwen2", "qwen2_tied"),
        config("config_yarn", "llama_rope_yarn"),
        config("config_llama3", "llama_rope_llama3"),
        config("config_window", "mistral_window"),
        Target::new("config_of_weights", &tiny, "config.json", 1 << 20, read_weights),
        Target::new("safetensors", &tiny, "model.safetensors", 1 << 20, read_weights),
        Target::new("shards", &sharded, "model-00002-of-00003.safetensors", 1 << 20, read_weights),
        Target::new("index", &sharded, "model.safetensors.index.json", 1 << 20, read_weights),
        Target::new("adapter_config", &adapters, "adapter_config.json", 1 << 20, read_adapters),
        Target::new("adapters", &adapters, "adapter_model.safetensors", 1 << 20, read_adapters),
        gguf("gguf_llama", "llama_q4_1"),
        gguf("gguf_qwen2", "qwen2_f16"),
        Target::new("tokenizer", &text, "tokenizer.json", REGEX, read_text),
        Target::new("tokenizer_config", &text, "tokenizer_config.json", REGEX, read_text),
        Target::new("config_of_all", &whole, "config.json", REGEX, read_all),
        Target::new("tokenizer_of_all", &whole, "tokenizer.json", REGEX, read_all),
    ]
}

#[test]
fn damaged_files_are_errors_and_cost_no_more_than_their_size() {
    // What is set up once for all is no file's cost.
    let _cpu = Cpu::new(2).unwrap();
    // In memory where that can be, since thousands of files are written.
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let targets = targets(root.path());
    let longer = std::env::var("RAGEN_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    for target in &targets {
        target.check(&target.whole, "the whole file");
        target.cut();
        target.numbers();
        target.noise();
        (0..150).for_each(|seed| target.run(seed));
        std::fs::write(target.folder.join(target.file), &target.whole).unwrap();
    }
    let end = Instant::now() + Duration::from_secs(longer.unwrap_or(0));
    for seed in 150.. {
        for target in &targets {
            if Instant::now() >= end {
                return;
            }
            target.run(seed);
            std::fs::write(target.folder.join(target.file), &target.whole).unwrap();
        }
    }
}
