//! The embedded catalogue, WebShop's own files, pages and the scripted player.

use super::*;
use crate::conformance;
use catalogue::Product;

#[test]
fn the_catalogue_is_as_large_as_said_and_gives_enough_goals() {
    let shop = shop::embedded(1000);
    assert_eq!(shop.products.len(), 1000);
    assert!(shop.goals.len() > 1500, "{} goals", shop.goals.len());
    let mut asins: Vec<&String> = shop.products.iter().map(|product| &product.asin).collect();
    asins.dedup();
    assert_eq!(asins.len(), 1000);
    for product in &shop.products {
        assert!((2..=5).contains(&product.attributes.len()) && !product.title.is_empty(), "{product:?}");
        assert!((2.9..1200.0).contains(&product.price), "{product:?}");
        assert!(product.options.iter().all(|(_, values)| !values.is_empty()), "{product:?}");
    }
    let text: String = shop.products.iter().map(|product| format!("{product:?}")).collect();
    assert_eq!(hash_bytes(text.bytes()), CATALOGUE_HASH);
}

const CATALOGUE_HASH: u64 = 0xa29346520dbef66e;

#[test]
fn the_player_buys_what_is_asked_for() {
    for (tag, budget) in [("WebShop", 9), ("WebShopFull", 15)] {
        let build = || crate::tag(tag)?.make();
        let (success, turns) =
            conformance::demonstrated(&build, &Demonstration::perfect(1), 400, budget, budget).unwrap();
        assert!(success >= 0.99 && turns < 6.0, "{tag}: {success} {turns}");
    }
}

#[test]
fn the_parts_have_goals_of_their_own() {
    let shop = WebShop::new(&Value::Null).unwrap();
    let goals = |mode| (0..5000).map(|seed| shop.goal_of(seed, mode)).collect::<std::collections::BTreeSet<_>>();
    let [train, val, test] = [Mode::Train, Mode::Val, Mode::Test].map(goals);
    assert!(train.is_disjoint(&val) && train.is_disjoint(&test) && val.is_disjoint(&test));
    assert_eq!(train.len() + val.len() + test.len(), shop.n_goals);
    let few = WebShop::new(&json!({"limit_goals": 1})).unwrap();
    assert_eq!(few.goal_of(7, Mode::Train), few.goal_of(3, Mode::Val));
}

#[test]
fn chosen_options_are_shown_and_the_last_of_a_group_counts() {
    let mut env = WebShop::new(&Value::Null).unwrap();
    env.reset(3, 0, Mode::Train).unwrap();
    let mut draws = Stream::new(1);
    for _ in 0..2 {
        let turn = env.demonstrate(&Demonstration::perfect(1), &mut draws).unwrap();
        assert!(env.step(&turn.actions[0]).unwrap().effective);
    }
    let session = &env.episode.as_ref().unwrap().session;
    let (group, values) = env.shop.products[session.product.unwrap()].options[0].clone();
    for value in &values {
        let step = env.step(&format!("click[{}]", value.to_uppercase())).unwrap();
        assert!(step.valid && step.effective);
        assert!(env.page().contains(&format!("{value} (chosen)")));
        assert_eq!(env.episode.as_ref().unwrap().session.options, [(group.clone(), value.clone())]);
    }
    assert_eq!(env.page().matches("(chosen)").count(), 1);
}

#[test]
fn webshops_own_files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: Value| std::fs::write(dir.path().join(name), value.to_string()).unwrap();
    let item = |asin: &str, pricing: &str| {
        json!({"asin": asin, "name": "Arvo Slim Linen Shirt", "category": "fashion", "query": "mens shirts",
            "product_category": "Clothing › Men › Shirts", "full_description": "A shirt.", "small_description": ["Linen"],
            "pricing": pricing, "customization_options": {"Color": [{"value": "Blue/White"}, {"value": "red"}], "Size": null}})
    };
    write(
        "items_shuffle_1000.json",
        json!([item("B1", "$24.50"), item("nan", ""), item("B1", ""), item("B2", "$5$9.5")]),
    );
    write(
        "items_ins_v2_1000.json",
        json!({"B1": {"attributes": ["machine wash"], "instruction": "Find me shirts",
        "instruction_attributes": ["machine wash"]}}),
    );
    write(
        "items_human_ins.json",
        json!({"B2": [{"instruction": "i want a shirt.", "instruction_attributes": ["linen"],
        "instruction_options": ["red"]}]}),
    );
    let path = dir.path().display().to_string();
    let shop = WebShop::new(&json!({"data_path": path})).unwrap();
    assert!(shop.backend().unwrap().starts_with("2 products of ") && shop.backend().unwrap().ends_with(", 2 goals"));
    let said: Vec<&str> = shop.shop.goals.iter().map(|goal| goal.instruction.as_str()).collect();
    assert!(said[0].starts_with("Find me shirts with color: blue | white, and price lower than "), "{said:?}");
    let Product { price, prices, .. } = &shop.shop.products[1];
    assert!((5.0..9.5).contains(price) && *prices == [5.0, 9.5] && shop.shop.products[1].tag() == "$5.0 to $9.5");
    let human = WebShop::new(&json!({"data_path": path, "human_goals": true})).unwrap();
    assert!(human.shop.goals[0].instruction.starts_with("i want a shirt, and price lower than "));
    assert_eq!(human.shop.goals[0].options, [(String::new(), "red".to_owned())]);
    let said = WebShop::new(&json!({"human_goals": true, "data_path": "none"})).unwrap_err().to_string();
    assert!(said.contains("human_goals: people wrote goals"), "{said}");
    std::fs::write(dir.path().join("items_shuffle_1000.json"), "[{\"asin\": \"B3\"}]").unwrap();
    let said = WebShop::new(&json!({"data_path": path, "num_products": 7})).unwrap_err().to_string();
    assert!(said.contains("items_shuffle_1000.json row 1: name is missing"), "{said}");
}

#[test]
fn a_summary_tells_the_request_apart() {
    let mut env = WebShop::new(&Value::Null).unwrap();
    env.reset(3, 0, Mode::Train).unwrap();
    let state = env.observation();
    assert!(task(&state).starts_with("Find me "));
    assert_eq!(gist(&state), "WebShop [SEP] Search");
    assert_eq!(offers(&state), "Available actions: [search[<content>]]");
}
