//! MetaMathQA: a problem in words, answered by a number or an expression; a wrong answer may be mended for half the pay.
//!
//! It knows questions with a label, and nothing of other tasks. The page docs/environments/metamathqa.md has the rest.
//!
//! **Source** MetaMath (Yu et al. 2023) as RAGEN plays it.

mod generator;
mod scoring;

pub use scoring::{Scoring, choice, extract, normalised, number};

use crate::dataset::{self, Parts, Shared};
use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Demonstration, Env, EnvError, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TYPE: &str = "metamathqa";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "dataset_path",
        default: "\"meta-math/MetaMathQA\"",
        meaning: "file of questions (JSON, JSON lines, Parquet), or the name of the data set, whose file `MetaMathQA-395K.json` is looked for below `cache_dir`",
    },
    Setting { name: "cache_dir", default: "\"./data\"", meaning: "folder of downloaded data sets" },
    Setting { name: "split", default: "\"train\"", meaning: "train, the only split that the data set has" },
    Setting {
        name: "scoring",
        default: "\"strict\"",
        meaning: "strict (equal but for whitespace and case), lenient (or numbers of equal value), exact (also but for punctuation), numeric (first number), choice (letter A to D)",
    },
    Setting {
        name: "backend",
        default: "\"auto\"",
        meaning: "embedded (generated problems), files (`dataset_path`), or auto: files if the file is there",
    },
    Setting {
        name: "parity",
        default: "false",
        meaning: "RAGEN's rules: validation and test draw from the training questions; numeric leaves out signs and stops at commas, choice finds letters inside words",
    },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "solve a problem of school mathematics in words",
    many_starts: true,
    waits: false,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags: || vec![Tag { single_action: true, ..Tag::new("MetamathQA", TYPE, 1, 100, json!({})) }],
    unavailable: || None,
    build: |config| Ok(Box::new(Metamathqa::new(config)?)),
};

/// A question with its label and solution.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    query: String,
    answer: Option<String>,
    /// In one line.
    solution: String,
    /// Which kind of problem it is.
    kind: String,
}

impl Item {
    fn hash(&self) -> u64 {
        hash_bytes(self.query.bytes())
    }
}

/// The label of a solution: what follows the first `The answer is: `, to the end.
pub fn label(response: &str) -> Option<String> {
    response.split_once("The answer is: ").map(|(_, answer)| answer.trim().to_owned())
}

/// Generated problems of each part.
const SIZES: [u64; 3] = [20_000, 1_000, 1_000];

/// The generated problem of a row: the first of the row's draws that belongs to the part.
fn generate(row: u64, mode: Mode) -> Item {
    let mut draws = Stream::derive(TYPE, row % SIZES[mode as usize], "problem").branch(mode as u64);
    loop {
        let item = generator::generate(&mut draws);
        if dataset::part(item.hash()) == mode {
            return item;
        }
    }
}

static FILES: Shared<Parts<Item>> = Shared::new();

/// The questions of a file, read once in a process.
fn load(path: &Path) -> Result<Arc<Parts<Item>>, String> {
    FILES.get(&path.display().to_string(), || {
        let records = dataset::records(path)?;
        let rows = records
            .iter()
            .enumerate()
            .map(|(i, record)| item(record).map_err(|what| format!("{} row {}: {what}", path.display(), i + 1)));
        // Questions made of one original belong together.
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let hashes: Vec<u64> =
            records.iter().map(|record| original(record).map_or(0, |o| hash_bytes(o.bytes()))).collect();
        let mut hashes = hashes.into_iter();
        match rows.is_empty() {
            true => Err(format!("{} has no rows", path.display())),
            false => Ok(Parts::new(rows, |_| hashes.next().unwrap_or(0))),
        }
    })
}

fn original(record: &Value) -> Option<&str> {
    ["original_question", "query", "question"].iter().find_map(|name| record.get(name)?.as_str())
}

/// A row of MetaMathQA (`query`, `response`), GSM8K (`question`, `answer` with `#### 42`) or MMLU (`question`, `choices`,
/// `answer` 0 to 3).
fn item(record: &Value) -> Result<Item, String> {
    let text = |name: &str| record.get(name).and_then(Value::as_str);
    let kind = text("type").unwrap_or_default().to_owned();
    if let Some(query) = text("query") {
        let response = text("response").ok_or("there is no text in a column `response`")?;
        return Ok(Item { query: query.to_owned(), answer: label(response), solution: one_line(response), kind });
    }
    let question = text("question").ok_or("there is no text in a column `query` or `question`")?;
    if let Some(choices) = record.get("choices").and_then(Value::as_array) {
        let answer = record.get("answer").and_then(Value::as_u64).and_then(|i| ["A", "B", "C", "D"].get(i as usize));
        let answer = answer.ok_or("column `answer` must be a number from 0 to 3")?;
        let choices = choices.iter().zip(["A", "B", "C", "D"]);
        let lines = choices.map(|(choice, letter)| format!("\n{letter}. {}", choice.as_str().unwrap_or_default()));
        let query = format!("{question}{}", lines.collect::<String>());
        return Ok(Item { query, answer: Some((*answer).to_owned()), solution: String::new(), kind });
    }
    let answer = text("answer").ok_or("there is no text in a column `answer`")?;
    let label = answer.split_once("####").map(|(_, label)| label.trim().to_owned());
    Ok(Item { query: question.to_owned(), answer: label, solution: one_line(answer), kind })
}

/// At most 300 characters, in one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect()
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Episode {
    #[serde(default)]
    query: String,
    correct_answer: Option<String>,
    #[serde(default)]
    solution: String,
    /// Answers given.
    step_num: u32,
    #[serde(default)]
    solved: bool,
}

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct Metamathqa {
    scoring: Scoring,
    is_parity: bool,
    file: Option<(PathBuf, Arc<Parts<Item>>)>,
    episode: Option<Episode>,
}

impl Metamathqa {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`], also if the file cannot be used.
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        reader.choice("split", &["train"]);
        let [given, cache] = ["dataset_path", "cache_dir"]
            .map(|name| reader.read(name, "a path", |value| value.as_str().map(PathBuf::from)));
        let file = "MetaMathQA-395K.json";
        let places = [given.clone(), cache.join(&given), cache.join(&given).join(file), cache.join(file)];
        let found = places.into_iter().find(|path| path.is_file());
        let path = match reader.choice("backend", &["auto", "embedded", "files"]) {
            0 => found,
            1 => None,
            _ => Some(found.unwrap_or(given)),
        };
        let questions = path.as_deref().map(load).transpose().unwrap_or_else(|error| {
            reader.problem("dataset_path", error);
            None
        });
        let metamathqa = Metamathqa {
            scoring: Scoring::ALL[reader.choice("scoring", &Scoring::WORDS)],
            is_parity: reader.flag("parity"),
            file: path.zip(questions),
            episode: None,
        };
        reader.finish(metamathqa)
    }
}

impl Env for Metamathqa {
    fn reset(&mut self, seed: u64, _member: u64, mode: Mode) -> Result<(), EnvError> {
        let mode = if self.is_parity { Mode::Train } else { mode };
        let row = Stream::derive(TYPE, seed, "row").bits();
        let filed = self.file.as_ref().and_then(|(_, questions)| questions.item(row, mode, self.is_parity));
        let Item { query, answer, solution, .. } = filed.cloned().unwrap_or_else(|| generate(row, mode));
        self.episode = Some(Episode { query, correct_answer: answer, solution, step_num: 0, solved: false });
        Ok(())
    }

    fn observation(&self) -> String {
        match &self.episode {
            None => String::new(),
            Some(Episode { solved: true, .. }) => "Correct!".to_owned(),
            Some(Episode { step_num: 0, query, .. }) => query.clone(),
            Some(_) => "Incorrect. Please think again.".to_owned(),
        }
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let episode = self.episode.as_mut().ok_or(EnvError::NotReset { env_type: TYPE })?;
        if episode.solved {
            return Ok(Step { terminated: true, success: true, ..Step::default() });
        }
        let label = episode.correct_answer.as_deref().unwrap_or_default();
        let valid = !action.trim().is_empty();
        let success = valid && self.scoring.is_correct(action, label, self.is_parity);
        let reward = if success { 0.5_f64.powi(episode.step_num.min(2000) as i32) } else { 0.0 };
        episode.step_num = episode.step_num.saturating_add(1);
        episode.solved = success;
        Ok(Step { reward, terminated: success, success, valid, effective: valid, ..Step::default() })
    }

    fn actions(&self) -> Option<Vec<String>> {
        None
    }

    fn instruction(&self) -> String {
        "You solve a problem of mathematics. Answer with the result alone: a number, a fraction as \\frac{a}{b}, or an expression, \
         without words or units."
            .to_owned()
    }

    fn backend(&self) -> Option<String> {
        Some(match &self.file {
            Some((path, questions)) => format!("{} questions of {}", questions.all().len(), path.display()),
            None => "embedded problems, generated".to_owned(),
        })
    }

    fn state(&self) -> Value {
        self.episode.as_ref().map_or(Value::Null, |episode| json!(episode))
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        let wrong = |reason: String| EnvError::State { env_type: TYPE, reason };
        self.episode = Option::<Episode>::deserialize(state).map_err(|error| wrong(error.to_string()))?;
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        self.episode.as_ref().map_or(0, |episode| hash_bytes(episode.query.bytes()))
    }

    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let episode = self.episode.as_ref().filter(|episode| !episode.solved)?;
        let label = episode.correct_answer.clone().filter(|label| !label.trim().is_empty())?;
        let answer = if draws.chance(options.noise) { draws.below(100).to_string() } else { label };
        let thought = if episode.solution.is_empty() { format!("it is {answer}") } else { episode.solution.clone() };
        Some(Turn { thought, actions: vec![answer] })
    }
}

#[cfg(test)]
mod tests;
