//! Goals: what a customer asks for.
//!
//! It knows products and instructions, and nothing of pages.

use super::catalogue::Product;
use crate::rng::hash_bytes;
use serde_json::Value;
use std::collections::BTreeMap;

/// A limit that nothing exceeds.
pub const NO_LIMIT: f64 = 1_000_000.0;

/// What a customer asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Goal {
    /// The product that it was made from.
    pub asin: String,
    /// The request in words.
    pub instruction: String,
    /// Attributes that are asked for.
    pub attributes: Vec<String>,
    /// Options that are asked for, each a name (empty if it has none) and a value.
    pub options: Vec<(String, String)>,
    /// The most it may cost.
    pub price_upper: f64,
    /// What one searches for to find its like.
    pub query: String,
    /// The product's categories.
    pub product_category: String,
    /// The product's title.
    pub name: String,
    /// How seldom its attributes are asked for.
    pub weight: f64,
}

/// The limit of a goal: the larger of two of the next four multiples of ten above a price, drawn by a hash; none where fewer than two
/// are below a thousand.
fn limit(price: f64, draw: u64) -> f64 {
    let above: Vec<f64> = (1..100).map(|tens| f64::from(tens) * 10.0).filter(|limit| *limit > price).take(4).collect();
    if above.len() < 2 {
        return NO_LIMIT;
    }
    let one = draw as usize % above.len();
    let other = (one + 1 + (draw >> 32) as usize % (above.len() - 1)) % above.len();
    above[one].max(above[other])
}

fn price_clause(limit: f64) -> String {
    if limit < NO_LIMIT { format!(", and price lower than {limit:.2} dollars") } else { String::new() }
}

/// The goals that a catalogue gives: of each product with an instruction one for every combination of its options.
pub fn synthetic(products: &[Product]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for product in products {
        let Some((instruction, attributes)) =
            product.instruction.as_ref().filter(|(_, attributes)| !attributes.is_empty())
        else {
            continue;
        };
        let price_upper = limit(product.price, hash_bytes(product.asin.bytes().chain(*b" limit")));
        let mut combinations: Vec<Vec<(String, String)>> = vec![Vec::new()];
        let mut names: Vec<&(String, Vec<String>)> = product.options.iter().collect();
        names.sort();
        for (name, values) in names {
            let with = |chosen: &Vec<(String, String)>| {
                let chosen = chosen.clone();
                values.iter().map(move |value| chosen.iter().cloned().chain([(name.clone(), value.clone())]).collect())
            };
            combinations = combinations.iter().flat_map(with).collect();
        }
        for options in combinations {
            let said: Vec<String> = options.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            let with = if said.is_empty() { String::new() } else { format!(" with {}", said.join(", and ")) };
            goals.push(Goal {
                asin: product.asin.clone(),
                instruction: format!("{instruction}{with}{}", price_clause(price_upper)),
                attributes: attributes.clone(),
                options,
                price_upper,
                query: product.query.clone(),
                product_category: product.product_category.clone(),
                name: product.title.clone(),
                weight: 1.0,
            });
        }
    }
    weigh(&mut goals);
    goals
}

/// A goal's weight is the mean over its attributes of one over how many goals ask for each.
fn weigh(goals: &mut [Goal]) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    goals
        .iter()
        .flat_map(|goal| &goal.attributes)
        .for_each(|attribute| *counts.entry(attribute.clone()).or_default() += 1);
    for goal in goals {
        let sum: f64 = goal.attributes.iter().map(|attribute| 1.0 / counts[attribute] as f64).sum();
        goal.weight = sum / f64::max(goal.attributes.len() as f64, 1.0);
    }
}

/// The goals that people wrote, by the number of the product.
pub fn human(products: &[Product], instructions: &Value) -> Vec<Goal> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let of = |product: &Product| {
        let product = product.clone();
        let list = instructions[product.asin.as_str()].as_array().cloned().unwrap_or_default();
        list.into_iter().enumerate().filter_map(move |(i, record)| {
            let text = record["instruction"].as_str()?.trim_end_matches('.').to_owned();
            let attributes = texts(&record["instruction_attributes"]);
            let draw = hash_bytes(format!("{} human {i}", product.asin).bytes());
            let price_upper = limit(product.price, draw);
            (!attributes.is_empty()).then(|| Goal {
                asin: product.asin.clone(),
                instruction: format!("{text}{}", price_clause(price_upper)),
                attributes,
                options: texts(&record["instruction_options"])
                    .into_iter()
                    .map(|value| (String::new(), value))
                    .collect(),
                price_upper,
                query: product.query.clone(),
                product_category: product.product_category.clone(),
                name: product.title.clone(),
                weight: 1.0,
            })
        })
    };
    products.iter().flat_map(of).collect()
}
