//! How well a purchase fits a goal.
//!
//! It knows products, goals and words, and nothing of pages.
//!
//! **Source** WebShop (Yao et al. 2022), section 3 and its code as RAGEN uses it.

use super::catalogue::Product;
use super::goals::Goal;
use std::collections::BTreeSet;

/// Colours of WebShop's list, in its order; the first that occurs in a text stands for it.
const COLOURS: [&str; 101] = [
    "alabaster",
    "apricot",
    "aqua",
    "ash",
    "asphalt",
    "azure",
    "banana",
    "beige",
    "black",
    "blue",
    "blush",
    "bordeaux",
    "bronze",
    "brown",
    "burgundy",
    "camel",
    "camo",
    "caramel",
    "champagne",
    "charcoal",
    "cherry",
    "chestnut",
    "chocolate",
    "christmas",
    "coffee",
    "cognac",
    "copper",
    "coral",
    "cranberry",
    "cream",
    "crystal",
    "dark",
    "denim",
    "eggplant",
    "elephant",
    "espresso",
    "fuchsia",
    "gold",
    "granite",
    "grape",
    "graphite",
    "grass",
    "gray",
    "green",
    "grey",
    "heather",
    "indigo",
    "ivory",
    "ivy",
    "khaki",
    "lavender",
    "lemon",
    "leopard",
    "light",
    "lilac",
    "lime",
    "magenta",
    "maroon",
    "mauve",
    "merlot",
    "midnight",
    "mint",
    "mocha",
    "multicolor",
    "mushroom",
    "mustard",
    "natural",
    "navy",
    "nude",
    "olive",
    "orange",
    "peach",
    "pewter",
    "pink",
    "plum",
    "purple",
    "rainbow",
    "red",
    "rose",
    "royal",
    "rust",
    "sand",
    "sapphire",
    "seashell",
    "silver",
    "skull",
    "slate",
    "steel",
    "stone",
    "stonewash",
    "sunflower",
    "tan",
    "taupe",
    "teal",
    "tiger",
    "turquoise",
    "violet",
    "walnut",
    "wheat",
    "white",
    "wine",
];

/// The first colour of the list that occurs in a text, also inside a word; else the text.
pub fn colour(text: &str) -> &str {
    COLOURS.into_iter().find(|colour| text.contains(colour)).unwrap_or(text)
}

/// Words of ASCII letters and digits, as the measure has them.
fn words(text: &str) -> BTreeSet<String> {
    text.to_lowercase()
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Twice the longest common subsequence over the lengths together, in hundredths.
fn ratio(a: &str, b: &str) -> f64 {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.is_empty() && b.is_empty() {
        return 100.0;
    }
    let mut row = vec![0usize; b.len() + 1];
    for x in &a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if x == y { diagonal + 1 } else { above.max(row[j]) };
            diagonal = above;
        }
    }
    200.0 * row[b.len()] as f64 / (a.len() + b.len()) as f64
}

/// How alike two texts are as sets of words, 0 to 100: the best of three comparisons of what they share and what each has besides.
///
/// **Source** FuzzyWuzzy's token_set_ratio.
pub fn similarity(a: &str, b: &str) -> u32 {
    let (a, b) = (words(a), words(b));
    if a.is_empty() || b.is_empty() {
        return 0;
    }
    let join = |set: Vec<&String>| set.into_iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let shared = join(a.intersection(&b).collect());
    let with = |rest: Vec<&String>| format!("{shared} {}", join(rest)).trim().to_owned();
    let (one, two) = (with(a.difference(&b).collect()), with(b.difference(&a).collect()));
    let besides = ratio(&one, &two);
    let best = if shared.is_empty() { besides } else { besides.max(ratio(&shared, &one)).max(ratio(&shared, &two)) };
    best.round_ties_even() as u32
}

/// Similarity above which two texts mean the same.
const ALIKE: u32 = 85;

/// Words of a title that are no names of things.
const STOP: [&str; 20] = [
    "a", "an", "the", "for", "with", "and", "or", "of", "in", "on", "to", "by", "from", "at", "as", "is", "it", "your",
    "our", "up",
];

/// The nouns of a title, lower case: every word with a letter but for a few; in titles nearly every word is written as a name.
pub fn nouns(title: &str) -> Vec<String> {
    let tokens = title.split(|c: char| c.is_whitespace() || ",;:()[]/|".contains(c)).map(str::to_lowercase);
    tokens.filter(|word| word.chars().any(char::is_alphabetic) && !STOP.contains(&word.as_str())).collect()
}

/// What a purchase is worth, part by part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// The whole, 0 to 1.
    pub raw: f64,
    /// Factor for being the right kind of thing: 1, 0.5, 0.1 or 0.
    pub kind: f64,
    /// Share of the attributes that fit, and its weight.
    pub attributes: (f64, f64),
    /// Share of the options that fit, and its weight; none if the goal has none.
    pub options: Option<(f64, f64)>,
    /// Whether the price is within the limit, and its weight.
    pub price: (bool, f64),
    /// The shops' searches are the same.
    pub query: bool,
    /// At least two parts of the category are shared.
    pub category: bool,
    /// Share of the goal's nouns in the title.
    pub title: f64,
}

/// Scores a purchase. `chosen` are the values of the options that were chosen. With `parity` a goal's option is compared as the words of
/// its name and value together, and a colour is one only where either is a colour.
pub fn score(
    product: &Product,
    goal: &Goal,
    price: f64,
    chosen: &[&str],
    nouns: [&[String]; 2],
    parity: bool,
) -> Score {
    let [bought, wanted] = nouns;
    let shared = bought.iter().collect::<BTreeSet<_>>().intersection(&wanted.iter().collect()).count();
    let title = if wanted.is_empty() { 0.2 } else { shared as f64 / wanted.len() as f64 };
    let parts = |category: &str| category.split('›').map(|part| part.trim().to_owned()).collect::<BTreeSet<String>>();
    let category = parts(&product.product_category).intersection(&parts(&goal.product_category)).count() >= 2;
    let query = product.query == goal.query;
    let mut kind = if query || category || title > 0.2 { 1.0 } else { 0.5 };
    if title < 0.1 {
        kind = 0.1;
    }
    if title == 0.0 {
        kind = 0.0;
    }
    let n_attributes = goal.attributes.iter().filter(|wanted| has_attribute(product, wanted)).count();
    let n_options = goal.options.iter().filter(|option| is_chosen(option, chosen, parity)).count();
    let fits = price <= goal.price_upper;
    let (all_attributes, all_options) = (goal.attributes.len(), goal.options.len());
    let whole = (all_attributes + all_options + 1) as f64;
    let share = |n: usize, all: usize| if all == 0 { 0.0 } else { n as f64 / all as f64 };
    Score {
        raw: kind * (n_attributes + n_options + usize::from(fits)) as f64 / whole,
        kind,
        attributes: (share(n_attributes, all_attributes), all_attributes as f64 / whole),
        options: (all_options > 0).then(|| (share(n_options, all_options), all_options as f64 / whole)),
        price: (fits, 1.0 / whole),
        query,
        category,
        title,
    }
}

fn has_attribute(product: &Product, wanted: &str) -> bool {
    let texts = [&product.title, &product.bullets.join(" "), &product.description].map(|text| text.to_lowercase());
    product.attributes.iter().any(|attribute| similarity(attribute, wanted) > ALIKE)
        || texts.iter().any(|text| text.contains(wanted))
}

/// Whether some chosen value means a goal's option, a name (empty if it has none) and a value.
fn is_chosen((name, value): &(String, String), chosen: &[&str], parity: bool) -> bool {
    let is_colour = |text: &str| COLOURS.contains(&text);
    let wanted = match (parity && !name.is_empty(), is_colour(name) || is_colour(value)) {
        // A pair is normalised only where one of its two is a colour itself.
        (true, true) => {
            if is_colour(name) {
                name.clone()
            } else {
                value.clone()
            }
        }
        (true, false) => format!("{name} {value}"),
        (false, _) => colour(value).to_owned(),
    };
    chosen.iter().any(|chosen| similarity(colour(chosen), &wanted) > ALIKE)
}
