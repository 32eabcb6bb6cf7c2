//! WebShop: find what a customer asks for in a shop of web pages, and buy it.
//!
//! It knows pages and purchases, and nothing of other tasks. [`catalogue`] holds products, [`goals`] what is asked for,
//! [`scoring`] how well a purchase fits, [`generator`] the embedded catalogue. The page docs/environments/webshop.md has the rest.
//!
//! **Source** WebShop (Yao et al. 2022) as RAGEN plays it.

pub mod catalogue;
pub mod generator;
pub mod goals;
pub mod scoring;
mod session;
mod shop;

use crate::rng::hash_bytes;
use crate::settings::{Reader, Setting};
use crate::{Brief, Demonstration, Env, EnvError, Mode, Recap, Spec, Step, Stream, Tag, Turn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use session::{Page, Session};
use shop::Shop;
use std::path::PathBuf;
use std::sync::Arc;

const TYPE: &str = "webshop";

/// The settings with their defaults.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "dataset",
        default: "\"small\"",
        meaning: "small (1,000 products) or full (all there are; embedded: 5,000)",
    },
    Setting {
        name: "backend",
        default: "\"auto\"",
        meaning: "embedded (generated products), files (`data_path`), or auto: files if the item file is there",
    },
    Setting {
        name: "data_path",
        default: "\"data/webshop\"",
        meaning: "folder with WebShop's own files: items_shuffle_1000.json and items_ins_v2_1000.json (full: items_shuffle.json and items_ins_v2.json), items_human_ins.json",
    },
    Setting {
        name: "human_goals",
        default: "false",
        meaning: "whether goals are those that people wrote (files only)",
    },
    Setting { name: "num_products", default: "null", meaning: "products used of those there are, 1 to 100000000" },
    Setting { name: "limit_goals", default: "-1", meaning: "goals used of those there are; -1 is all" },
    Setting { name: "show_attrs", default: "false", meaning: "whether a product has a page of its attributes" },
    Setting { name: "observation_mode", default: "\"text\"", meaning: "text" },
    Setting { name: "file_path", default: "\"\"", meaning: "read and not used, as in RAGEN" },
    Setting { name: "server", default: "null", meaning: "null: the shop is here" },
    Setting { name: "filter_goals", default: "null", meaning: "null" },
    Setting {
        name: "parity",
        default: "false",
        meaning: "RAGEN's rules: chosen options are not shown, and options are compared with their names",
    },
    Setting { name: "render_mode", default: "\"text\"", meaning: "text" },
];

pub(crate) const SPEC: Spec = Spec {
    env_type: TYPE,
    purpose: "find what a customer asks for in a shop of web pages, and buy it",
    many_starts: true,
    waits: false,
    recap: Recap::Brief(Brief { task, gist, offers, max_chars: 1200 }),
    settings: SETTINGS,
    tags: || {
        let tag = |name, dataset: &str, budget| Tag {
            single_action: true,
            ..Tag::new(name, TYPE, budget, 200, json!({"dataset": dataset}))
        };
        vec![tag("WebShop", "small", 9), tag("WebShopFull", "full", 15)]
    },
    unavailable: || None,
    build: |config| Ok(Box::new(WebShop::new(config)?)),
};

const OFFERS: &str = "Available actions: ";
const BETWEEN: &str = " [SEP] ";

/// The request in a page.
fn task(state: &str) -> String {
    let after = state.split_once("Instruction: [SEP] ").map_or("", |(_, rest)| rest);
    after.split(BETWEEN).next().unwrap_or_default().to_owned()
}

fn gist(state: &str) -> String {
    let page = state.lines().next().unwrap_or_default();
    page.replace(&format!("Instruction: [SEP] {}{BETWEEN}", task(state)), "")
}

fn offers(state: &str) -> String {
    state.lines().find(|line| line.starts_with(OFFERS)).unwrap_or_default().to_owned()
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Episode {
    goal: usize,
    session: Session,
    /// What the purchase was worth.
    raw: Option<f64>,
}

/// The environment; see the module.
#[derive(Clone, Debug)]
pub struct WebShop {
    shop: Arc<Shop>,
    n_goals: usize,
    show_attributes: bool,
    parity: bool,
    episode: Option<Episode>,
    /// Recorded results of the next search, and recorded nouns of titles.
    #[cfg(test)]
    pub(crate) recorded: (Option<Vec<usize>>, std::collections::BTreeMap<String, Vec<String>>),
}

impl WebShop {
    /// Builds it from a map of settings.
    ///
    /// **Errors** [`EnvError::Config`].
    pub fn new(config: &Value) -> Result<Self, EnvError> {
        let mut reader = Reader::new(TYPE, SETTINGS, config);
        reader.text_render_mode();
        reader.choice("observation_mode", &["text"]);
        reader.read("file_path", "a text", |value| value.as_str().map(str::to_owned));
        for key in ["server", "filter_goals"] {
            reader.read(key, "null", |value| value.is_null().then_some(()));
        }
        let is_full = reader.choice("dataset", &["small", "full"]) == 1;
        let data = reader.read("data_path", "the path of a folder", |value| value.as_str().map(PathBuf::from));
        let backend = reader.choice("backend", &["auto", "embedded", "files"]);
        let human = reader.flag("human_goals");
        let most = reader.optional("num_products", 1..=100_000_000);
        let limit = reader.read("limit_goals", "-1 or a whole number from 1 on", |value| {
            value.as_i64().filter(|n| *n == -1 || *n > 0)
        });
        let shop = shop::open(&data, backend, is_full, human, most).unwrap_or_else(|(key, why)| {
            reader.problem(key, why);
            shop::embedded(1000)
        });
        let n_goals = shop.goals.len().min(if limit < 0 { usize::MAX } else { limit as usize });
        if n_goals == 0 {
            reader.problem("data_path", "has no goals: no product there has an instruction");
        }
        let webshop = WebShop {
            shop,
            n_goals,
            show_attributes: reader.flag("show_attrs"),
            parity: reader.flag("parity"),
            episode: None,
            #[cfg(test)]
            recorded: Default::default(),
        };
        reader.finish(webshop)
    }

    /// The goal of a seed. Of all goals, in an order of their own, the first twentieth tests, the next tenth validates, the rest trains.
    fn goal_of(&self, seed: u64, mode: Mode) -> usize {
        let n = self.n_goals as u64;
        let (test, val) = (n.div_ceil(20), n.div_ceil(10));
        let (first, count) = match mode {
            Mode::Test => (0, test),
            Mode::Val => (test, val.min(n - test)),
            Mode::Train => (test + val, n.saturating_sub(test + val)),
        };
        // A handful of goals cannot be parted.
        let (first, count) = if count == 0 { (0, n) } else { (first, count) };
        self.shop.order[(first + seed % count) as usize]
    }

    fn nouns(&self, title: &str) -> Vec<String> {
        #[cfg(test)]
        if let Some(nouns) = self.recorded.1.get(title) {
            return nouns.clone();
        }
        scoring::nouns(title)
    }

    fn results(&self, keywords: &[String]) -> Vec<usize> {
        #[cfg(test)]
        if let Some(ranking) = &self.recorded.0 {
            return ranking.clone();
        }
        self.shop.search(&keywords.join(" "))
    }

    fn view<'a>(&'a self, episode: &'a Episode) -> session::View<'a> {
        session::View {
            shop: &self.shop,
            goal: &self.shop.goals[episode.goal],
            session: &episode.session,
            show_attributes: self.show_attributes,
            parity: self.parity,
            raw: episode.raw,
        }
    }

    /// The text of the page.
    pub(crate) fn page(&self) -> String {
        self.episode.as_ref().map_or(String::new(), |episode| self.view(episode).page())
    }

    /// What can be done on the page, as actions.
    pub(crate) fn available(&self) -> Vec<String> {
        self.episode.as_ref().map_or(Vec::new(), |episode| self.view(episode).actions())
    }

    /// Buys what the session shows.
    fn buy(&self, episode: &Episode) -> Option<scoring::Score> {
        let product = &self.shop.products[episode.session.product?];
        let goal = &self.shop.goals[episode.goal];
        let chosen: Vec<&str> = episode.session.options.iter().map(|(_, value)| value.as_str()).collect();
        let nouns = [&product.title, &goal.name].map(|title| self.nouns(title));
        Some(scoring::score(product, goal, product.price, &chosen, [&nouns[0], &nouns[1]], self.parity))
    }

    /// A shop of these products and goals, for recorded episodes.
    #[cfg(test)]
    pub(crate) fn with(products: Vec<catalogue::Product>, goal: goals::Goal, parity: bool) -> WebShop {
        let mut webshop = WebShop::new(&json!({"parity": parity})).unwrap();
        webshop.shop = Arc::new(Shop::new(products, vec![goal], String::new()));
        webshop.episode = Some(Episode { goal: 0, session: Session::default(), raw: None });
        webshop
    }

    #[cfg(test)]
    pub(crate) fn session(&self) -> Value {
        let session = &self.episode.as_ref().unwrap().session;
        let asin = session.product.map(|product| self.shop.products[product].asin.clone());
        let options: serde_json::Map<String, Value> =
            session.options.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let page = session.keywords.as_ref().map(|_| session.number);
        json!({"page": page, "asin": asin, "options": options, "keywords": session.keywords})
    }
}

impl Env for WebShop {
    fn reset(&mut self, seed: u64, _member: u64, mode: Mode) -> Result<(), EnvError> {
        self.episode = Some(Episode { goal: self.goal_of(seed, mode), session: Session::default(), raw: None });
        Ok(())
    }

    fn observation(&self) -> String {
        if self.episode.is_none() {
            return String::new();
        }
        format!("{}\n{OFFERS}[{}]", self.page(), self.available().join(", "))
    }

    fn step(&mut self, action: &str) -> Result<Step, EnvError> {
        let mut episode = self.episode.clone().ok_or(EnvError::NotReset { env_type: TYPE })?;
        let is_over = episode.session.page == Page::Done;
        let before = self.page();
        let valid = session::parse(action).is_some_and(|(verb, argument)| match verb {
            "search" => self.available().iter().any(|offer| offer == session::SEARCH),
            _ => self.available().contains(&format!("{verb}[{}]", argument.to_lowercase())),
        });
        let asked = session::parse(action).filter(|_| !is_over);
        let mut score = None;
        match asked {
            Some(("search", query)) => episode.session.search(query, |keywords| self.results(keywords)),
            Some(("click", target)) => {
                let click = self.view(&episode).target(&target.to_lowercase());
                if click == Some(session::Click::Buy) {
                    score = self.buy(&episode);
                    episode.raw = score.as_ref().map(|score| score.raw);
                }
                if let Some(click) = click {
                    episode.session.click(click, |keywords| self.results(keywords));
                }
            }
            _ => {}
        }
        let raw = score.as_ref().map_or(0.0, |score| score.raw);
        let done = episode.session.page == Page::Done;
        let success = done && episode.raw.is_some_and(|raw| raw >= 1.0);
        self.episode = Some(episode);
        let offers = self.available();
        let end_of_page = offers == ["click[back to search]", "click[< prev]"];
        let flag = |on: bool| f64::from(u8::from(on));
        let mut info = vec![
            ("raw_reward".into(), raw),
            ("success_purchase".into(), flag(done)),
            ("success_find".into(), flag(success)),
            ("end_of_page".into(), flag(end_of_page)),
        ];
        if let Some(score) = &score {
            let parts = [
                ("r_type", score.kind),
                ("r_att", score.attributes.0),
                ("w_att", score.attributes.1),
                ("query_match", flag(score.query)),
                ("category_match", flag(score.category)),
                ("title_score", score.title),
                ("r_price", flag(score.price.0)),
                ("w_price", score.price.1),
            ];
            info.extend(parts.map(|(name, value)| (name.into(), value)));
            let options =
                score.options.map(|(share, weight)| [("r_option".into(), share), ("w_option".into(), weight)]);
            info.extend(options.into_iter().flatten());
        }
        let changed = self.page() != before;
        let effective = changed && (valid || self.parity);
        Ok(Step { reward: flag(raw >= 1.0), terminated: done, success, valid, effective, info, ..Step::default() })
    }

    fn actions(&self) -> Option<Vec<String>> {
        None
    }

    fn instruction(&self) -> String {
        "You shop for a customer in a shop of web pages. search[WORDS] searches for products, click[NAME] clicks what is named: a product, an \
         option, a button. Find a product that fits the instruction, with few searches; choose each option that is asked for, one a turn; \
         then click[buy now]. Buy before your actions are used up. Use one of the available actions."
            .to_owned()
    }

    fn backend(&self) -> Option<String> {
        Some(self.shop.name.clone())
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
        let n = self.shop.products.len();
        let known = episode.session.results.iter().chain(&episode.session.product).all(|product| *product < n);
        match known && episode.goal < self.shop.goals.len() && episode.session.is_whole() {
            true => self.episode = Some(episode),
            false => return Err(wrong("names a product, a goal or a page that there is not".to_owned())),
        }
        Ok(())
    }

    fn state_hash(&self) -> u64 {
        let Some(episode) = &self.episode else { return 0 };
        hash_bytes(format!("{} {}", self.shop.goals[episode.goal].instruction, self.page()).bytes())
    }

    /// Searches for what is asked for, or for the title where that does not lead to it; then the options, then the purchase.
    fn demonstrate(&self, options: &Demonstration, draws: &mut Stream) -> Option<Turn> {
        let episode = self.episode.as_ref().filter(|episode| episode.session.page != Page::Done)?;
        let offers = self.available();
        let (thought, planned) = self.view(episode).plan()?;
        let others: Vec<&String> = offers.iter().filter(|offer| *offer != session::SEARCH).collect();
        let action = match draws.chance(options.noise) && !others.is_empty() {
            true => others[draws.below(others.len())].clone(),
            false => planned,
        };
        Some(Turn { thought, actions: vec![action] })
    }
}

#[cfg(test)]
pub(crate) use session::parse;

#[cfg(test)]
mod tests;
