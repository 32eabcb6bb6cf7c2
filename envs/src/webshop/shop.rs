//! A shop: products, the goals that they give, and the search engine over them. Built once and shared.

use super::catalogue::{self, Product};
use super::generator;
use super::goals::{self, Goal};
use crate::Stream;
use crate::dataset::{self, Shared};
use crate::search::index::Index;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Hits of a search at most.
const MOST_HITS: usize = 50;

/// A shop.
#[derive(Debug)]
pub(super) struct Shop {
    pub(super) products: Vec<Product>,
    pub(super) goals: Vec<Goal>,
    /// The goals in an order of their own.
    pub(super) order: Vec<usize>,
    /// What it stands on, in a line.
    pub(super) name: String,
    by_asin: BTreeMap<String, usize>,
    index: Index,
}

static SHOPS: Shared<Shop> = Shared::new();

impl Shop {
    pub(super) fn new(products: Vec<Product>, goals: Vec<Goal>, name: String) -> Shop {
        let texts: Vec<String> = products.iter().map(Product::index_text).collect();
        let by_asin = products.iter().enumerate().map(|(i, product)| (product.asin.to_lowercase(), i)).collect();
        let mut order: Vec<usize> = (0..goals.len()).collect();
        let mut draws = Stream::derive("webshop", 233, "order of goals");
        for i in (1..order.len()).rev() {
            order.swap(i, draws.below(i + 1));
        }
        Shop { index: Index::new(texts.iter().map(String::as_str)), products, goals, order, name, by_asin }
    }

    /// The products that fit a query, best first.
    pub(super) fn search(&self, query: &str) -> Vec<usize> {
        self.index.search(query, MOST_HITS).into_iter().map(|(product, _)| product).collect()
    }

    /// The product of a number, in any case.
    pub(super) fn find(&self, asin: &str) -> Option<usize> {
        self.by_asin.get(&asin.to_lowercase()).copied()
    }
}

/// The embedded shop of so many products.
pub(super) fn embedded(n: usize) -> Arc<Shop> {
    let build = || {
        let products = generator::catalogue(n);
        let goals = goals::synthetic(&products);
        let name = format!("embedded catalogue of {n} products, {} goals", goals.len());
        Ok(Shop::new(products, goals, name))
    };
    SHOPS.get(&format!("embedded {n}"), build).unwrap_or_else(|why| unreachable!("the catalogue needs nothing: {why}"))
}

/// The shop of the settings.
///
/// **Errors** the setting at fault, and what is wrong.
pub(super) fn open(
    data: &Path,
    backend: usize,
    is_full: bool,
    human: bool,
    most: Option<usize>,
) -> Result<Arc<Shop>, (&'static str, String)> {
    let (items, attributes) = match is_full {
        true => ("items_shuffle.json", "items_ins_v2.json"),
        false => ("items_shuffle_1000.json", "items_ins_v2_1000.json"),
    };
    let is_there = data.join(items).exists();
    if backend == 1 || (backend == 0 && !is_there) {
        return match human {
            true => {
                Err(("human_goals", "people wrote goals for WebShop's own products alone: give `data_path`".to_owned()))
            }
            false => Ok(embedded(most.unwrap_or(if is_full { 5000 } else { 1000 }))),
        };
    }
    let key = format!("{} {items} {human} {most:?}", data.display());
    let build = || read(data, [items, attributes], human, most);
    SHOPS.get(&key, build).map_err(|why| ("data_path", why))
}

fn read(data: &Path, [items, attributes]: [&str; 2], human: bool, most: Option<usize>) -> Result<Shop, String> {
    let map = |name: &str| -> Result<Value, String> {
        let path = data.join(name);
        let text =
            std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{} is not JSON: {error}", path.display()))
    };
    let path = data.join(items);
    let records = dataset::records(&path)?;
    let used = &records[..records.len().min(most.unwrap_or(usize::MAX))];
    let products = catalogue::read(used, &map(attributes)?).map_err(|why| format!("{} {why}", path.display()))?;
    let goals =
        if human { goals::human(&products, &map("items_human_ins.json")?) } else { goals::synthetic(&products) };
    let name = format!("{} products of {}, {} goals", products.len(), path.display(), goals.len());
    Ok(Shop::new(products, goals, name))
}
