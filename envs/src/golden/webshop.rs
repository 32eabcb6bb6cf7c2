//! WebShop: recorded episodes with recorded rankings, and how records are read, goals made, options compared and purchases scored.

use super::{close, entries, steps};
use crate::Env;
use crate::webshop::catalogue::{self, Product};
use crate::webshop::goals::{self, Goal, NO_LIMIT};
use crate::webshop::{WebShop, scoring};
use serde_json::{Value, json};

pub(super) const FILES: &[&str] = &[
    "webshop.json",
    "webshop_goals.json",
    "webshop_items.json",
    "webshop_normalize_color.json",
    "webshop_parse.json",
    "webshop_reward.json",
    "webshop_token_set_ratio.json",
];

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn options(value: &Value) -> Vec<(String, Vec<String>)> {
    value.as_object().into_iter().flatten().map(|(name, values)| (name.clone(), texts(values))).collect()
}

/// A product as recorded after loading.
fn product(value: &Value) -> Product {
    Product {
        asin: text(value, "asin"),
        title: text(value, "Title"),
        description: text(value, "Description"),
        bullets: texts(&value["BulletPoints"]),
        prices: value["pricing"].as_array().into_iter().flatten().map(|price| price.as_f64().unwrap()).collect(),
        price: value["price_used"].as_f64().unwrap_or(0.0),
        options: options(&value["options"]),
        attributes: texts(&value["Attributes"]),
        category: text(value, "category"),
        query: text(value, "query"),
        product_category: text(value, "product_category"),
        instruction: None,
    }
}

/// A goal as recorded: options are a map, or a list of values.
fn goal(value: &Value) -> Goal {
    let options = match &value["goal_options"] {
        Value::Array(list) => list.iter().map(|value| (String::new(), value.as_str().unwrap().to_owned())).collect(),
        map => map
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
            .collect(),
    };
    Goal {
        asin: text(value, "asin"),
        instruction: text(value, "instruction_text"),
        attributes: texts(&value["attributes"]),
        options,
        price_upper: value["price_upper"].as_f64().unwrap(),
        query: text(value, "query"),
        product_category: text(value, "product_category"),
        name: text(value, "name"),
        weight: value["weight"].as_f64().unwrap_or(1.0),
    }
}

#[test]
fn golden_webshop_normalize_color() {
    for case in entries("webshop_normalize_color.json", "cases").1 {
        assert_eq!(
            scoring::colour(case["text"].as_str().unwrap()),
            case["normalized"].as_str().unwrap(),
            "{}",
            case["name"]
        );
    }
}

#[test]
fn golden_webshop_token_set_ratio() {
    for case in entries("webshop_token_set_ratio.json", "cases").1 {
        let score = scoring::similarity(case["a"].as_str().unwrap(), case["b"].as_str().unwrap());
        assert_eq!(json!(score), case["score"], "{}", case["name"]);
    }
}

#[test]
fn golden_webshop_parse() {
    for case in entries("webshop_parse.json", "cases").1 {
        let found = crate::webshop::parse(case["text"].as_str().unwrap());
        // Without an argument the whole text is recorded as the verb.
        assert_eq!(json!(found.map(|(_, argument)| argument)), case["argument"], "{}", case["name"]);
        assert_eq!(
            found.map_or(case["text"].as_str().unwrap(), |(verb, _)| verb),
            case["verb"].as_str().unwrap(),
            "{}",
            case["name"]
        );
    }
}

#[test]
fn golden_webshop_items() {
    for case in entries("webshop_items.json", "cases").1 {
        let name = case["name"].as_str().unwrap();
        let found =
            catalogue::read(std::slice::from_ref(&case["raw"]), &json!({name: case["attributes_record"]})).unwrap();
        let (found, want) = (&found[0], &case["loaded"]);
        assert_eq!(
            json!([found.title, found.description, found.bullets, found.tag(), found.prices]),
            json!([want["Title"], want["Description"], want["BulletPoints"], want["Price"], want["pricing"]]),
            "{name}"
        );
        assert_eq!(found.options, options(&want["options"]), "{name}");
        assert_eq!(
            (json!(found.attributes), json!(found.query)),
            (want["Attributes"].clone(), want["query"].clone()),
            "{name}"
        );
    }
}

/// The limit is random within its rule: the rule is checked.
#[test]
fn golden_webshop_goals() {
    let records: Vec<Value> = entries("webshop_items.json", "cases").1;
    let (_, cases) = entries("webshop_goals.json", "cases");
    let items: Vec<Value> = records.iter().map(|case| case["raw"].clone()).collect();
    let attributes: serde_json::Map<String, Value> =
        records.iter().map(|case| (text(case, "name"), case["attributes_record"].clone())).collect();
    let products = catalogue::read(&items, &Value::Object(attributes)).unwrap();
    let made = goals::synthetic(&products);
    let mut n_found = 0;
    for case in &cases {
        let (name, want) = (text(case, "name"), goal(case));
        let Some(of) = products.iter().find(|product| product.asin == want.asin) else { continue };
        let found = made.iter().find(|goal| goal.asin == want.asin && sorted(&goal.options) == sorted(&want.options));
        let found = found.unwrap_or_else(|| panic!("{name} is not made"));
        n_found += 1;
        assert_eq!(found.attributes, want.attributes, "{name}");
        let cut = |text: &str| text.split(", and price lower than ").next().unwrap().to_owned();
        assert_eq!(cut(&found.instruction), cut(&want.instruction), "{name}");
        assert_eq!(found.price_upper < NO_LIMIT, want.price_upper < NO_LIMIT, "{name}");
        for upper in [found.price_upper, want.price_upper].into_iter().filter(|upper| *upper < NO_LIMIT) {
            let most = of.prices.iter().copied().fold(0.0, f64::max);
            assert!(upper % 10.0 == 0.0 && upper <= (most / 10.0).floor() * 10.0 + 40.0, "{name}: {upper}");
        }
    }
    assert!(n_found >= 12, "{n_found}");
}

fn sorted(options: &[(String, String)]) -> Vec<(String, String)> {
    let mut options = options.to_vec();
    options.sort();
    options
}

#[test]
fn golden_webshop_reward() {
    for case in entries("webshop_reward.json", "cases").1 {
        let name = case["name"].as_str().unwrap();
        let chosen = texts(&case["options"].as_object().unwrap().values().cloned().collect());
        let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
        let [bought, wanted] = [texts(&case["product_nouns"]), texts(&case["goal_nouns"])];
        let price = case["price"].as_f64().unwrap();
        let score =
            scoring::score(&product(&case["product"]), &goal(&case["goal"]), price, &chosen, [&bought, &wanted], true);
        close(score.raw, &case["reward"], name);
        for (key, want) in case["info"].as_object().unwrap() {
            match key.as_str() {
                "r_type" => close(score.kind, want, name),
                "r_att" => close(score.attributes.0, want, name),
                "w_att" => close(score.attributes.1, want, name),
                "r_option" => close(score.options.unwrap().0, want, name),
                "w_option" => close(score.options.unwrap().1, want, name),
                "w_price" => close(score.price.1, want, name),
                "title_score" => close(score.title, want, name),
                "r_price" => assert_eq!(score.price.0, *want == true, "{name}"),
                "query_match" => assert_eq!(score.query, *want == true, "{name}"),
                "category_match" => assert_eq!(score.category, *want == true, "{name}"),
                other => panic!("{name}: nothing tests {other}"),
            }
        }
    }
}

#[test]
fn golden_webshop() {
    let (content, episodes) = entries("webshop.json", "episodes");
    let products: Vec<Product> = content["catalogue"].as_array().unwrap().iter().map(product).collect();
    let nouns: std::collections::BTreeMap<String, Vec<String>> = content["title_nouns"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(title, nouns)| (title.clone(), texts(nouns)))
        .collect();
    for episode in episodes {
        let name = episode["name"].as_str().unwrap();
        let mut env = WebShop::with(products.clone(), goal(&episode["goal"]), true);
        env.recorded.1 = nouns.clone();
        assert_eq!(env.page(), text(&episode, "initial_observation"), "{name}");
        assert_eq!(json!(env.available()), episode["initial_available_actions"], "{name}");
        for (what, want) in steps(&episode) {
            if let Some(ranking) = want["search_ranking"].as_array() {
                let place =
                    |asin: &Value| products.iter().position(|product| product.asin == asin.as_str().unwrap()).unwrap();
                env.recorded.0 = Some(ranking.iter().map(place).collect());
            }
            let step = env.step(want["action"].as_str().unwrap()).unwrap();
            close(step.reward, &want["reward"], &what);
            assert_eq!(step.ended(), want["done"] == true, "{what}");
            if want["done"] != true {
                assert_eq!(env.page(), text(&want, "observation"), "{what}");
            }
            assert_eq!(json!(env.available()), want["available_actions"], "{what}");
            assert_eq!(env.session(), want["session"], "{what}");
            let number = |key: &str| step.info.iter().find(|(name, _)| name == key).map(|(_, x)| *x);
            for (key, value) in want["info"].as_object().unwrap() {
                let value = value.as_f64().unwrap_or(f64::from(u8::from(*value == true)));
                let found = match key.as_str() {
                    "action_is_valid" => f64::from(u8::from(step.valid)),
                    "action_is_effective" => f64::from(u8::from(step.effective)),
                    "success" => f64::from(u8::from(step.success)),
                    key => number(key).unwrap_or_else(|| panic!("{what}: there is no {key}")),
                };
                assert!((found - value).abs() < 1e-9, "{what}: {key} is {found}, not {value}");
            }
        }
    }
}
