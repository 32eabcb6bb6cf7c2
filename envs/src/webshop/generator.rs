//! A catalogue of its own: products of five kinds of shops, each with near relatives, so that a goal must be read closely.
//!
//! It knows words and products, and nothing of goals or pages. It is one and the same everywhere: it follows from [`VERSION`].

use super::catalogue::{Product, price};
use crate::Stream;

/// Changes whenever the catalogue does.
pub const VERSION: u64 = 1;

/// A kind of product: shop, thing, what one searches for, path of categories, materials, attributes, option groups.
struct Kind {
    shop: &'static str,
    thing: &'static str,
    query: &'static str,
    path: &'static str,
    materials: [&'static str; 4],
    attributes: &'static [&'static str],
    options: &'static [(&'static str, &'static [&'static str])],
}

const CLOTHES: &[&str] = &[
    "machine wash",
    "hand wash",
    "long sleeve",
    "short sleeve",
    "classic fit",
    "slim fit",
    "quick dry",
    "elastic waist",
    "button closure",
    "drawstring closure",
    "moisture wicking",
    "everyday wear",
];
const SHOES: &[&str] = &[
    "rubber sole",
    "arch support",
    "ankle strap",
    "memory foam",
    "non slip",
    "open toe",
    "lace closure",
    "water resistant",
    "steel toe",
    "light weight",
];
const CARE: &[&str] = &[
    "cruelty free",
    "fragrance free",
    "sensitive skin",
    "hyaluronic acid",
    "dry skin",
    "paraben free",
    "travel size",
    "long lasting",
    "tea tree",
    "natural ingredients",
];
const DEVICES: &[&str] = &[
    "fast charging",
    "gold plated",
    "high speed",
    "easy install",
    "noise cancelling",
    "water proof",
    "plug play",
    "heavy duty",
    "carrying case",
    "high resolution",
];
const HOME: &[&str] = &[
    "eco friendly",
    "easy assemble",
    "living room",
    "space saving",
    "easy clean",
    "wall mounted",
    "double sided",
    "solid wood",
    "spot clean",
    "dining room",
];
const FOOD: &[&str] = &[
    "gluten free",
    "usda organic",
    "caffeine free",
    "low sodium",
    "sugar free",
    "non gmo",
    "individually wrapped",
    "plant based",
    "dairy free",
    "kosher certified",
];

const COLOURS: &[&str] =
    &["black", "white", "navy blue", "forest green", "burgundy", "mustard", "charcoal", "rose gold"];
const SIZES: &[&str] = &["small", "medium", "large", "x-large"];
const FEET: &[&str] = &["6", "7", "8.5", "9 wide", "10"];
const SCENTS: &[&str] = &["unscented", "lavender", "citrus", "cedar"];
const LENGTHS: &[&str] = &["3 ft", "6 ft", "10 ft"];
const PACKS: &[&str] = &["1 pack", "2 pack", "6 pack", "12 pack"];

macro_rules! kind {
    ($shop:literal, $thing:literal, $query:literal, $path:literal, $materials:expr, $attributes:expr, $options:expr) => {
        Kind {
            shop: $shop,
            thing: $thing,
            query: $query,
            path: $path,
            materials: $materials,
            attributes: $attributes,
            options: $options,
        }
    };
}

const FABRICS: [&str; 4] = ["Cotton", "Linen", "Flannel", "Wool"];
const HIDES: [&str; 4] = ["Leather", "Canvas", "Cork", "Suede"];
const PLANTS: [&str; 4] = ["Aloe", "Oat", "Rose", "Argan"];
const METALS: [&str; 4] = ["Steel", "Brass", "Copper", "Aluminum"];
const WOODS: [&str; 4] = ["Oak", "Bamboo", "Walnut", "Pine"];
const LEAVES: [&str; 4] = ["Sencha", "Assam", "Ginger", "Mint"];

const WEAR: &[(&str, &[&str])] = &[("color", COLOURS), ("size", SIZES)];
const WALK: &[(&str, &[&str])] = &[("color", COLOURS), ("size", FEET)];
const SMELL: &[(&str, &[&str])] = &[("scent", SCENTS)];
const CABLE: &[(&str, &[&str])] = &[("color", COLOURS), ("length", LENGTHS)];
const LOOK: &[(&str, &[&str])] = &[("color", COLOURS)];
const AMOUNT: &[(&str, &[&str])] = &[("size", PACKS)];

#[rustfmt::skip] // A kind a line.
const KINDS: [Kind; 24] = [
    kind!("fashion", "Shirt", "mens shirts", "Clothing › Men › Shirts", FABRICS, CLOTHES, WEAR),
    kind!("fashion", "Blouse", "womens blouses", "Clothing › Women › Blouses", FABRICS, CLOTHES, WEAR),
    kind!("fashion", "Pants", "mens pants", "Clothing › Men › Pants", FABRICS, CLOTHES, WEAR),
    kind!("fashion", "Skirt", "womens skirts", "Clothing › Women › Skirts", FABRICS, CLOTHES, WEAR),
    kind!("fashion", "Pajamas", "pajama sets", "Clothing › Sleepwear › Pajamas", FABRICS, CLOTHES, WEAR),
    kind!("fashion", "Sandals", "womens sandals", "Shoes › Women › Sandals", HIDES, SHOES, WALK),
    kind!("fashion", "Sneakers", "mens sneakers", "Shoes › Men › Sneakers", HIDES, SHOES, WALK),
    kind!("fashion", "Boots", "work boots", "Shoes › Work › Boots", HIDES, SHOES, WALK),
    kind!("beauty", "Face Cream", "face cream", "Beauty › Skin Care › Creams", PLANTS, CARE, SMELL),
    kind!("beauty", "Shampoo", "shampoo", "Beauty › Hair Care › Shampoo", PLANTS, CARE, SMELL),
    kind!("beauty", "Body Lotion", "body lotion", "Beauty › Skin Care › Lotions", PLANTS, CARE, SMELL),
    kind!("beauty", "Lip Balm", "lip balm", "Beauty › Lip Care › Balms", PLANTS, CARE, SMELL),
    kind!("electronics", "Charging Cable", "usb cables", "Electronics › Accessories › Cables", METALS, DEVICES, CABLE),
    kind!("electronics", "Headphones", "headphones", "Electronics › Audio › Headphones", METALS, DEVICES, LOOK),
    kind!("electronics", "Speaker", "bluetooth speakers", "Electronics › Audio › Speakers", METALS, DEVICES, LOOK),
    kind!("electronics", "Tripod", "camera tripods", "Electronics › Camera › Tripods", METALS, DEVICES, LOOK),
    kind!("garden", "Desk Lamp", "desk lamps", "Home › Lighting › Lamps", METALS, HOME, LOOK),
    kind!("garden", "Bookshelf", "bookshelves", "Home › Furniture › Shelves", WOODS, HOME, LOOK),
    kind!("garden", "Side Table", "side tables", "Home › Furniture › Tables", WOODS, HOME, LOOK),
    kind!("garden", "Shoe Rack", "shoe racks", "Home › Storage › Racks", WOODS, HOME, LOOK),
    kind!("grocery", "Tea", "herbal tea", "Grocery › Beverages › Tea", LEAVES, FOOD, AMOUNT),
    kind!("grocery", "Cookies", "cookies", "Grocery › Snacks › Cookies", LEAVES, FOOD, AMOUNT),
    kind!("grocery", "Candy", "candy", "Grocery › Snacks › Candy", LEAVES, FOOD, AMOUNT),
    kind!("grocery", "Trail Mix", "trail mix", "Grocery › Snacks › Mixes", PLANTS, FOOD, AMOUNT),
];

const STYLES: [&str; 12] = [
    "Classic", "Slim", "Relaxed", "Folding", "Gentle", "Rich", "Braided", "Compact", "Vintage", "Modern", "Premium",
    "Mini",
];
const BRANDS: [&str; 16] = [
    "Arvo", "Belku", "Cindra", "Dolmar", "Estavel", "Fenwick", "Gorla", "Hestin", "Ilmari", "Jovano", "Keltra",
    "Lumora", "Marvik", "Nordan", "Ostara", "Pellin",
];

/// `n` different entries of a list, in its order.
fn some(list: &[&str], n: usize, draws: &mut Stream) -> Vec<String> {
    let mut left: Vec<usize> = (0..list.len()).collect();
    while left.len() > n {
        left.remove(draws.below(left.len()));
    }
    left.into_iter().map(|i| list[i].to_owned()).collect()
}

fn cents(draws: &mut Stream) -> f64 {
    // Cheap things are more frequent.
    let tens = 3 + draws.below(30) * (1 + draws.below(33));
    tens as f64 + [0.0, 0.49, 0.5, 0.95, 0.99][draws.below(5)]
}

fn title(brand: &str, style: &str, material: &str, kind: &Kind, attribute: &str) -> String {
    let upper = |word: &str| {
        word.chars().enumerate().map(|(i, c)| if i == 0 { c.to_ascii_uppercase() } else { c }).collect::<String>()
    };
    let attribute = attribute.split(' ').map(upper).collect::<Vec<_>>().join(" ");
    format!("{brand} {style} {material} {} for Everyday Use with {attribute}", kind.thing)
}

/// Of six in ten products: a request for one or two of its attributes.
fn ask(attributes: &[String], query: &str, draws: &mut Stream) -> Option<(String, Vec<String>)> {
    let n_asked = 1 + draws.below(2);
    let asked = some(&attributes.iter().map(String::as_str).collect::<Vec<_>>(), n_asked, draws);
    draws.chance(0.6).then(|| (format!("Find me {} {query}", asked.join(", ")), asked))
}

/// Draws a product.
fn draw(number: usize, draws: &mut Stream) -> Product {
    let kind = &KINDS[draws.below(KINDS.len())];
    let (brand, style) = (BRANDS[draws.below(BRANDS.len())], STYLES[draws.below(STYLES.len())]);
    let material = kind.materials[draws.below(4)];
    let n_attributes = 3 + draws.below(3);
    let attributes = some(kind.attributes, n_attributes, draws);
    let options = kind.options.iter().map(|(name, values)| {
        let n_values = 2 + draws.below(values.len().min(4) - 1);
        ((*name).to_owned(), some(values, n_values, draws))
    });
    let options = options.collect();
    let prices = match draws.below(33) {
        0 => vec![100.0],
        1..=5 => vec![cents(draws), cents(draws)],
        _ => vec![cents(draws)],
    };
    let asin = format!("B{:09}", 1000 + 7 * number);
    let thing = format!("{style} {material} {}", kind.thing).to_lowercase();
    let instruction = ask(&attributes, kind.query, draws);
    Product {
        title: title(brand, style, material, kind, &attributes[draws.below(attributes.len())]),
        description: format!("A {thing}. It offers {}.", attributes.join(", ")),
        bullets: vec![format!("{material} {}", kind.thing.to_lowercase()), format!("Made by {brand}")],
        price: price(&asin, &prices),
        prices,
        options,
        category: kind.shop.to_owned(),
        query: kind.query.to_owned(),
        product_category: kind.path.to_owned(),
        instruction,
        attributes,
        asin,
    }
}

/// A near relative: it lacks an attribute, a value of an option, or costs more.
fn relative(product: &Product, number: usize, draws: &mut Stream) -> Product {
    let mut other = Product { asin: format!("B{:09}", 1000 + 7 * number), ..product.clone() };
    match draws.below(3) {
        0 => {
            let lost = other.attributes.remove(draws.below(other.attributes.len()));
            other.description = other.description.replace(&format!("{lost}, "), "").replace(&format!(", {lost}"), "");
            if other.title.to_lowercase().ends_with(&lost) {
                let kept = other.title.len() - lost.len() - " with ".len();
                other.title.truncate(kept);
            }
        }
        1 => {
            let group = draws.below(other.options.len());
            let values = &mut other.options[group].1;
            values.remove(draws.below(values.len()));
        }
        _ => {
            other.prices =
                product.prices.iter().map(|price| (price + 40.0 + draws.below(60) as f64).round() - 0.01).collect()
        }
    }
    other.price = price(&other.asin, &other.prices);
    other.instruction = ask(&other.attributes, &other.query, draws);
    other
}

/// The catalogue of `n` products, always the same.
pub fn catalogue(n: usize) -> Vec<Product> {
    let mut draws = Stream::derive("webshop", VERSION, "catalogue");
    let draws = &mut draws;
    let mut products: Vec<Product> = Vec::with_capacity(n);
    while products.len() < n {
        let product = draw(products.len(), draws);
        products.push(product.clone());
        for _ in 0..1 + draws.below(2) {
            if products.len() < n {
                products.push(relative(&product, products.len(), draws));
            }
        }
    }
    products
}
