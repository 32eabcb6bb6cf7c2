//! Products: what WebShop's files hold, and what is made of it.
//!
//! It knows records and prices, and nothing of goals or pages.

use crate::rng::hash_bytes;
use serde_json::Value;
use std::collections::BTreeSet;

/// A product as the shop shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Product {
    /// Its number, ten characters at most.
    pub asin: String,
    /// Its title.
    pub title: String,
    /// What is said of it.
    pub description: String,
    /// Its features, one by one.
    pub bullets: Vec<String>,
    /// One price, or two ends of a range.
    pub prices: Vec<f64>,
    /// The price that is compared with a limit: of a range one that follows from the number of the product.
    pub price: f64,
    /// Option groups with their values, in order.
    pub options: Vec<(String, Vec<String>)>,
    /// What it offers.
    pub attributes: Vec<String>,
    /// Kind of shop.
    pub category: String,
    /// What one searches for to find its like.
    pub query: String,
    /// Categories from the widest to the narrowest, parted by `›`.
    pub product_category: String,
    /// The instruction that asks for its like, and the attributes that it names; none if there is none.
    pub instruction: Option<(String, Vec<String>)>,
}

/// A price as the shop writes it: as few digits as it needs, at least one behind the point.
fn dollars(price: f64) -> String {
    format!("${price:?}")
}

impl Product {
    /// The price tag.
    pub fn tag(&self) -> String {
        match self.prices.as_slice() {
            [least, most, ..] => format!("{} to {}", dollars(*least), dollars(*most)),
            [price] => dollars(*price),
            [] => dollars(100.0),
        }
    }

    /// What the search engine reads of it.
    pub fn index_text(&self) -> String {
        let bullet = self.bullets.first().map_or("", String::as_str);
        let options: Vec<String> =
            self.options.iter().map(|(name, values)| format!("{name}: {}", values.join(", "))).collect();
        format!("{} {} {bullet} {}", self.title, self.description, options.join(", and ")).to_lowercase()
    }

    /// Reads a record of WebShop's item file and the record of its attribute file.
    ///
    /// **Errors** the field that is missing or of a wrong kind.
    pub fn read(item: &Value, attributes: &Value) -> Result<Product, String> {
        let text = |key: &str| item[key].as_str().unwrap_or_default().trim().to_owned();
        let asin = item["asin"].as_str().ok_or("asin is missing")?.to_owned();
        let title = item["name"].as_str().ok_or("name is missing")?.to_owned();
        let texts = |value: &Value| match value {
            Value::String(text) => vec![text.clone()],
            Value::Array(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let named = texts(&attributes["attributes"]);
        let prices = prices(item["pricing"].as_str().unwrap_or_default());
        let instruction = attributes["instruction"].as_str().filter(|text| !text.is_empty());
        Ok(Product {
            price: price(&asin, &prices),
            asin,
            title,
            description: item["full_description"].as_str().unwrap_or_default().to_owned(),
            bullets: texts(&item["small_description"]),
            prices,
            options: options(&item["customization_options"]),
            attributes: if named.is_empty() { vec!["DUMMY_ATTR".to_owned()] } else { named },
            category: text("category"),
            query: text("query").to_lowercase(),
            product_category: text("product_category"),
            instruction: instruction.map(|text| (text.to_owned(), texts(&attributes["instruction_attributes"]))),
        })
    }
}

/// The price of a product that costs so much: of a range a place in it that follows from the product's number.
pub fn price(asin: &str, prices: &[f64]) -> f64 {
    match prices {
        [one, other, ..] => {
            let share = (hash_bytes(asin.bytes()) >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
            one + share * (other - one)
        }
        [price] => *price,
        [] => 100.0,
    }
}

/// The prices in a text such as `$19.99$9.99`: two at most, 100 if there is none.
fn prices(text: &str) -> Vec<f64> {
    let number =
        |piece: &str| piece.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect::<String>().parse().ok();
    let mut prices: Vec<f64> = text.split('$').skip(1).filter_map(number).collect();
    prices.truncate(2);
    if prices.is_empty() { vec![100.0] } else { prices }
}

/// Groups of options, names and values in lower case.
fn options(value: &Value) -> Vec<(String, Vec<String>)> {
    let groups = value.as_object().into_iter().flatten().filter(|(_, values)| values.is_array());
    let read = |(name, values): (&String, &Value)| {
        let values = values.as_array().into_iter().flatten().filter_map(|value| value["value"].as_str());
        (name.to_lowercase(), values.map(|value| value.trim().replace('/', " | ").to_lowercase()).collect())
    };
    groups.map(read).collect()
}

/// The products of WebShop's item and attribute files: those without a number, with one that is too long, or seen before are left out.
///
/// **Errors** the row and the field at fault.
pub fn read(items: &[Value], attributes: &Value) -> Result<Vec<Product>, String> {
    let mut seen = BTreeSet::new();
    let mut products = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let asin = item["asin"].as_str().unwrap_or_default();
        if asin == "nan" || asin.len() > 10 || !seen.insert(asin.to_owned()) {
            continue;
        }
        products.push(Product::read(item, &attributes[asin]).map_err(|what| format!("row {}: {what}", i + 1))?);
    }
    Ok(products)
}
