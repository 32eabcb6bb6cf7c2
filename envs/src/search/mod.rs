//! Search: a question that takes several documents to answer, and a search engine.
//!
//! It knows questions and where results come from, and nothing of other tasks. [`index`] ranks, [`world`] is the embedded
//! world, [`scoring`] reads and scores answers. The page docs/environments/search.md has the rest.
//!
//! **Source** HotpotQA (Yang et al. 2018) as RAGEN plays it.

pub mod index;
pub mod library;
pub mod scoring;
pub mod world;

use crate::dataset::{self, Parts, Shared};
use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Demonstration, Env, EnvError, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use library::Retriever;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const TYPE: &str = "search";
const ACTIONS: &str = "Available actions: search[<query>], finish[<answer>]";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "backend",
        default: "\"auto\"",
        meaning: "where results come from: embedded (a generated world), corpus (`corpus_path`), server (`retrieval_server_url`), or auto: the server if one is named, else the corpus if one is, else embedded",
    },
    Setting { name: "dataset_name", default: "\"hotpotqa\"", meaning: "the questions' name; it decides nothing" },
    Setting {
        name: "train_path",
        default: "\"data/search/train.parquet\"",
        meaning: "file of questions (question, ground_truth); if it is not there, questions are asked about the embedded world",
    },
    Setting { name: "max_instances", default: "20000", meaning: "questions read of the file at most, 1 to 100000000" },
    Setting {
        name: "corpus_path",
        default: "null",
        meaning: "file of documents: texts, or records with contents or text, and title",
    },
    Setting {
        name: "retrieval_server_url",
        default: "null",
        meaning: "address of a retrieval server, such as http://127.0.0.1:8001; null: the variable RETRIEVAL_SERVER_URL",
    },
    Setting { name: "retrieval_timeout", default: "30", meaning: "seconds that a server is given, 0.001 to 86400" },
    Setting { name: "max_search_results", default: "5", meaning: "documents of a search, 1 to 50" },
    Setting {
        name: "max_total_chars",
        default: "4000",
        meaning: "characters of a search's results at most, 1 to 1000000",
    },
    Setting { name: "max_steps", default: "10", meaning: "actions of an episode at most, 1 to 1000000" },
    Setting { name: "mock_mode", default: "false", meaning: "whether a search gives two placeholder documents" },
    Setting {
        name: "correct_reward",
        default: "1.0",
        meaning: "what an exact answer pays; another correct one pays this times its F1",
    },
    Setting { name: "incorrect_reward", default: "0.0", meaning: "what a wrong answer pays" },
    Setting { name: "f1_threshold", default: "0.3", meaning: "F1 from which an answer is correct, 0 to 1" },
    Setting {
        name: "parity",
        default: "false",
        meaning: "RAGEN's rules: validation and test draw from the training questions; an answer in free text counts as effective",
    },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "answer a question over several documents with a search engine",
    many_starts: true,
    waits: true,
    recap: Recap::Whole,
    settings: SETTINGS,
    tags: || {
        let tag = |name, config| Tag { single_action: true, ..Tag::new(name, TYPE, 10, 300, config) };
        let usual = json!({"max_steps": 10, "max_search_results": 5});
        vec![
            tag("SearchQA", usual.clone()),
            tag("SearchQAMock", json!({"max_steps": 10, "max_search_results": 5, "mock_mode": true})),
        ]
    },
    unavailable: || None,
    build: |config| Ok(Box::new(Search::new(config)?)),
};

/// A question with its truths; what leads to the answer is known of the embedded world alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Item {
    question: String,
    ground_truth: Vec<String>,
    #[serde(default)]
    titles: Vec<String>,
    #[serde(default)]
    clues: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Episode {
    item: Item,
    steps: usize,
    /// What the last action led to; the question at first.
    text: String,
    /// Which of the documents that are needed have been shown.
    seen: Vec<bool>,
    is_over: bool,
}

static FILES: Shared<Parts<Item>> = Shared::new();

/// Questions of each part that are asked about the embedded world.
const SIZES: [u64; 3] = [20_000, 1_000, 1_000];

/// The question of a row: the first of the row's draws that belongs to the part.
fn ask(row: u64, mode: Mode) -> Item {
    let world = library::world();
    let mut draws = Stream::derive(TYPE, row % SIZES[mode as usize], "question").branch(mode as u64);
    loop {
        let world::Question { text, answer, titles, clues } = world.ask(&mut draws);
        if dataset::part(hash_bytes(text.bytes())) == mode {
            return Item { question: text, ground_truth: vec![answer], titles, clues };
        }
    }
}

fn load(path: &Path, most: usize) -> Result<Arc<Parts<Item>>, String> {
    FILES.get(&format!("{most} {}", path.display()), || {
        let row = |(i, record): (usize, &Value)| {
            let question = record["question"].as_str().map(str::to_owned);
            let ground_truth = truths(&record["ground_truth"]);
            question
                .zip(ground_truth)
                .map(|(question, ground_truth)| Item { question, ground_truth, ..Item::default() })
                .ok_or_else(|| {
                    format!(
                        "{} row {}: question and ground_truth (a text or a list of texts) are needed",
                        path.display(),
                        i + 1
                    )
                })
        };
        let records = dataset::records(path)?;
        let items = records.iter().take(most).enumerate().map(row).collect::<Result<Vec<_>, _>>()?;
        match items.is_empty() {
            true => Err(format!("{} has no rows", path.display())),
            false => Ok(Parts::new(items, |item| hash_bytes(item.question.bytes()))),
        }
    })
}

/// One text, or a list of texts.
fn truths(value: &Value) -> Option<Vec<String>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match value {
        Value::Array(list) if !list.is_empty() => list.iter().map(text).collect(),
        other => Some(vec![text(other)?]),
    }
}

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct Search {
    retriever: Retriever,
    questions: Option<Arc<Parts<Item>>>,
    backend: String,
    max_results: usize,
    max_chars: usize,
    max_steps: usize,
    correct: f64,
    incorrect: f64,
    threshold: f64,
    parity: bool,
    episode: Option<Episode>,
}

impl Search {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`].
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        reader.read("dataset_name", "a text", |value| value.as_str().map(str::to_owned));
        let seconds = reader.number("retrieval_timeout", 0.001..=86_400.0);
        let most = reader.integer("max_instances", 1..=100_000_000);
        let any = f64::NEG_INFINITY..=f64::INFINITY;
        let (retriever, results) = retriever(&mut reader, Duration::from_secs_f64(seconds));
        let (questions, asked) = questions(&mut reader, most);
        let search = Search {
            retriever,
            questions,
            backend: format!("{results}; {asked}"),
            max_results: reader.integer("max_search_results", 1..=50),
            max_chars: reader.integer("max_total_chars", 1..=1_000_000),
            max_steps: reader.integer("max_steps", 1..=1_000_000),
            correct: reader.number("correct_reward", any.clone()),
            incorrect: reader.number("incorrect_reward", any),
            threshold: reader.number("f1_threshold", 0.0..=1.0),
            parity: reader.flag("parity"),
            episode: None,
        };
        reader.finish(search)
    }

    /// What an answer pays, and whether it is correct.
    fn pay(&self, answer: &str, truths: &[String]) -> (f64, bool) {
        let agreement = scoring::agreement(answer, truths);
        let reward = match agreement.exact {
            true => self.correct,
            false if agreement.f1 >= self.threshold && agreement.f1 > 0.0 => self.correct * agreement.f1,
            false => self.incorrect,
        };
        (reward, agreement.exact || reward > 0.0)
    }

    #[cfg(test)]
    pub(crate) fn with(config: &Value, question: &str, ground_truth: &Value, results: &Value) -> Search {
        let results = serde_json::from_value(results.clone()).unwrap();
        let item = Item { question: question.into(), ground_truth: truths(ground_truth).unwrap(), ..Item::default() };
        let mut search = Search::new(config).unwrap();
        search.retriever = Retriever::Recorded(results);
        search.episode = Some(Episode { text: String::new(), seen: Vec::new(), steps: 0, is_over: false, item });
        search
    }

    #[cfg(test)]
    pub(crate) fn reward(&self, answer: &str, ground_truth: &Value) -> f64 {
        self.pay(answer, &truths(ground_truth).unwrap()).0
    }
}

/// Who is asked, and that in words.
fn retriever(reader: &mut Reader, limit: Duration) -> (Retriever, String) {
    let text = |value: &Value| match value {
        Value::Null => Some(None),
        Value::String(text) if !text.is_empty() => Some(Some(text.clone())),
        _ => None,
    };
    let named = reader.read("retrieval_server_url", "null or an address such as http://127.0.0.1:8001", |value| {
        text(value).filter(|url| url.as_ref().is_none_or(|url| url.starts_with("http://")))
    });
    let corpus = reader.read("corpus_path", "null or the path of a file", text);
    let server = named.or_else(|| std::env::var("RETRIEVAL_SERVER_URL").ok().filter(|url| !url.is_empty()));
    let choice = reader.choice("backend", &["auto", "embedded", "corpus", "server"]);
    if reader.flag("mock_mode") {
        return (Retriever::Mock, "placeholder documents".to_owned());
    }
    match (choice, server, corpus) {
        (0 | 3, Some(url), _) => {
            let told = format!("retrieval server {url}");
            (Retriever::Server(url, limit), told)
        }
        (0 | 2, _, Some(path)) => match library::corpus(Path::new(&path)) {
            Ok(library) => {
                let told = format!("{} documents of {path}", library.len());
                (Retriever::Library(library), told)
            }
            Err(why) => {
                reader.problem("corpus_path", why);
                (Retriever::Mock, String::new())
            }
        },
        (2 | 3, _, _) => {
            let key = if choice == 2 { "corpus_path" } else { "retrieval_server_url" };
            reader.problem(key, "is missing, but `backend` asks for it");
            (Retriever::Mock, String::new())
        }
        _ => {
            let library = library::embedded();
            let told = format!("embedded world of {} documents", library.len());
            (Retriever::Library(library), told)
        }
    }
}

/// The questions of the file, if it is there, and that in words.
fn questions(reader: &mut Reader, most: usize) -> (Option<Arc<Parts<Item>>>, String) {
    let path = reader.read("train_path", "the path of a file", |value| value.as_str().map(PathBuf::from));
    if !path.exists() {
        return (None, "questions about the embedded world".to_owned());
    }
    match load(&path, most) {
        Ok(items) => {
            let told = format!("{} questions of {}", items.all().len(), path.display());
            (Some(items), told)
        }
        Err(why) => {
            reader.problem("train_path", why);
            (None, String::new())
        }
    }
}

/// What stands between the brackets of `NAME[…]`.
fn argument<'a>(action: &'a str, name: &str) -> Option<&'a str> {
    action.strip_prefix(name)?.strip_prefix('[')?.strip_suffix(']')
}

impl Env for Search {
    fn reset(&mut self, seed: u64, _member: u64, mode: Mode) -> Result<(), EnvError> {
        let mode = if self.parity { Mode::Train } else { mode };
        let item = match &self.questions {
            Some(items) => items.item(seed, mode, self.parity).cloned().unwrap_or_default(),
            None => ask(seed, mode),
        };
        let text = format!("Question: {}\n{ACTIONS}", item.question);
        let seen = vec![false; item.titles.len()];
        self.episode = Some(Episode { item, steps: 0, text, seen, is_over: false });
        Ok(())
    }

    fn observation(&self) -> String {
        self.episode.as_ref().map_or(String::new(), |episode| episode.text.clone())
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let mut episode = self.episode.take().ok_or(EnvError::NotReset { env_type: TYPE })?;
        episode.steps += 1;
        let at_limit = episode.steps >= self.max_steps;
        let action = action.trim();
        let mut step = Step { valid: true, effective: true, ..Step::default() };
        if let Some(query) = argument(action, "search") {
            let results = self.retriever.tell(query, self.max_results, self.max_chars);
            for (title, seen) in episode.item.titles.iter().zip(&mut episode.seen) {
                *seen |= results.contains(&format!(")\n{title}\n"));
            }
            let rest = if at_limit { "The limit of actions is reached." } else { ACTIONS };
            episode.text = format!("Search results for '{query}':\n{results}\n\n{rest}");
            step.truncated = at_limit;
        } else if action.is_empty() {
            episode.text = format!("Nothing was asked or answered.\n{ACTIONS}");
            step = Step { truncated: at_limit, ..Step::default() };
        } else {
            let finish = argument(action, "finish");
            let answer = finish.map_or_else(|| scoring::extract(action), str::to_owned);
            let (reward, correct) = self.pay(&answer, &episode.item.ground_truth);
            episode.text = format!("Your answer: {answer}. Reward: {reward:.2}");
            let valid = finish.is_some();
            step = Step { reward, terminated: true, success: correct, valid, effective: valid || self.parity, ..step };
        }
        episode.is_over |= step.ended();
        self.episode = Some(episode);
        Ok(step)
    }

    fn actions(&self) -> Option<Vec<String>> {
        None
    }

    fn instruction(&self) -> String {
        "You answer a question with the help of a search engine. search[QUERY] shows documents, finish[ANSWER] answers and ends the task. \
         Most questions take two documents: search for what the question names, then for what you find there. Answer with a name, a \
         number, or yes or no, without a sentence around it."
            .to_owned()
    }

    fn backend(&self) -> Option<String> {
        Some(self.backend.clone())
    }

    fn state(&self) -> Value {
        self.episode.as_ref().map_or(Value::Null, |episode| json!(episode))
    }

    fn load_state(&mut self, state: &Value) -> Result<(), EnvError> {
        if state.is_null() {
            self.episode = None;
            return Ok(());
        }
        let wrong = |reason: String| EnvError::State { env_type: TYPE, reason };
        let episode = Episode::deserialize(state).map_err(|error| wrong(error.to_string()))?;
        let Item { titles, clues, .. } = &episode.item;
        if titles.len() != episode.seen.len() || titles.len() != clues.len() {
            return Err(wrong("titles, clues and seen must be equally many".to_owned()));
        }
        self.episode = Some(episode);
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        let Some(episode) = &self.episode else { return 0 };
        hash_bytes(episode.item.question.bytes().chain(episode.text.bytes()))
    }

    /// Looks up what is needed and was not shown yet, then answers; one action a turn, since results must be read.
    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let Episode { item, seen, .. } = self.episode.as_ref().filter(|episode| !episode.is_over)?;
        // Of a question from a file nobody knows the way.
        let last = item.titles.len().checked_sub(1)?;
        let missing = seen.iter().position(|seen| !seen);
        let known: Vec<&str> = item.clues[..missing.unwrap_or(last + 1)].iter().map(String::as_str).collect();
        let reason = if known.is_empty() { "nothing is known yet".to_owned() } else { known.join(", ") };
        let noisy = draws.chance(options.noise);
        let title = match missing {
            Some(i) if !noisy => Some(&item.titles[i]),
            _ if noisy => Some(&item.titles[draws.below(last + 1)]),
            _ => None,
        };
        Some(match title {
            Some(title) => {
                Turn { thought: format!("{reason}; look up {title}"), actions: vec![format!("search[{title}]")] }
            }
            None => Turn { thought: reason, actions: vec![format!("finish[{}]", item.ground_truth.first()?)] },
        })
    }
}

#[cfg(test)]
mod tests;
