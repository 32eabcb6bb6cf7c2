//! A customer's way through the pages.
//!
//! It knows pages, clicks and what they show, and nothing of rewards.

use super::goals::Goal;
use super::shop::Shop;
use serde::{Deserialize, Serialize};

/// The action of a page with a search box.
pub(super) const SEARCH: &str = "search[<content>]";
const PER_PAGE: usize = 10;

/// A page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Page {
    /// The search box.
    #[default]
    Start,
    /// Results of a search.
    Results,
    /// A product.
    Item,
    /// Its description.
    Description,
    /// Its features.
    Features,
    /// Its reviews.
    Reviews,
    /// Its attributes.
    Attributes,
    /// After the purchase.
    Done,
}

/// What a click does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Click {
    Back,
    Prev,
    Next,
    Product(usize),
    Sub(Page),
    Choose(String, String),
    Buy,
}

/// Where the customer is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Session {
    pub(super) page: Page,
    /// Which page of results, from 1.
    pub(super) number: usize,
    pub(super) keywords: Option<Vec<String>>,
    /// The hits of the search.
    pub(super) results: Vec<usize>,
    pub(super) product: Option<usize>,
    /// Chosen values by group, in the order of choice.
    pub(super) options: Vec<(String, String)>,
}

/// `VERB[ARGUMENT]`, read greedily from the start: what follows the last bracket does not count.
pub(crate) fn parse(text: &str) -> Option<(&str, &str)> {
    let line = text.split('\n').next()?;
    let end = line.rfind(']')?;
    let start = line[..end].rfind('[')?;
    let (verb, argument) = (&line[..start], &line[start + 1..end]);
    (!verb.is_empty() && !argument.is_empty()).then_some((verb, argument))
}

impl Session {
    pub(super) fn search(&mut self, query: &str, results: impl FnOnce(&[String]) -> Vec<usize>) {
        let keywords: Vec<String> = query.to_lowercase().split(' ').map(str::to_owned).collect();
        let results = results(&keywords);
        *self = Session { page: Page::Results, number: 1, keywords: Some(keywords), results, ..Session::default() };
    }

    pub(super) fn click(&mut self, click: Click, results: impl FnOnce(&[String]) -> Vec<usize>) {
        match (click, self.page) {
            (Click::Back, _) => *self = Session::default(),
            (Click::Next, _) => self.number += 1,
            (Click::Prev, Page::Results) => self.number -= 1,
            (Click::Prev, Page::Item) => {
                (self.page, self.product) = (Page::Results, None);
                self.options.clear();
            }
            (Click::Prev, _) => self.page = Page::Item,
            (Click::Product(product), _) => (self.page, self.product) = (Page::Item, Some(product)),
            (Click::Sub(page), _) => self.page = page,
            (Click::Choose(group, value), _) => match self.options.iter_mut().find(|(name, _)| *name == group) {
                Some((_, chosen)) => *chosen = value,
                None => self.options.push((group, value)),
            },
            (Click::Buy, _) => self.page = Page::Done,
        }
        if self.page == Page::Results
            && let Some(keywords) = &self.keywords
        {
            self.results = results(keywords);
        }
    }

    /// Whether the parts fit together.
    pub(super) fn is_whole(&self) -> bool {
        match self.page {
            Page::Start => true,
            Page::Results => self.number > 0 && self.number < 1_000_000 && self.keywords.is_some(),
            _ => self.product.is_some() && self.keywords.is_some() && self.number > 0,
        }
    }

    /// The hits on this page of results.
    fn shown(&self) -> &[usize] {
        let first = ((self.number - 1) * PER_PAGE).min(self.results.len());
        &self.results[first..(first + PER_PAGE).min(self.results.len())]
    }
}

/// What the customer sees.
pub(super) struct View<'a> {
    pub(super) shop: &'a Shop,
    pub(super) goal: &'a Goal,
    pub(super) session: &'a Session,
    pub(super) show_attributes: bool,
    pub(super) parity: bool,
    pub(super) raw: Option<f64>,
}

impl View<'_> {
    /// What can be clicked, by name, in order.
    fn clickables(&self) -> Vec<(String, Click)> {
        let session = self.session;
        let named = |name: &str, click| (name.to_owned(), click);
        let mut list = match session.page {
            Page::Start | Page::Done => return Vec::new(),
            _ => vec![named("back to search", Click::Back)],
        };
        match session.page {
            Page::Results => {
                list.extend((session.number > 1).then(|| named("< prev", Click::Prev)));
                list.push(named("next >", Click::Next));
                let asin =
                    |product: &usize| (self.shop.products[*product].asin.to_lowercase(), Click::Product(*product));
                list.extend(session.shown().iter().map(asin));
            }
            Page::Item => {
                list.push(named("< prev", Click::Prev));
                let subs =
                    [("description", Page::Description), ("features", Page::Features), ("reviews", Page::Reviews)];
                list.extend(subs.map(|(name, page)| named(name, Click::Sub(page))));
                list.extend(self.show_attributes.then(|| named("attributes", Click::Sub(Page::Attributes))));
                list.push(named("buy now", Click::Buy));
                let options = session.product.map_or(&[][..], |product| &self.shop.products[product].options);
                for (group, values) in options {
                    list.extend(
                        values.iter().map(|value| (value.clone(), Click::Choose(group.clone(), value.clone()))),
                    );
                }
            }
            _ => list.push(named("< prev", Click::Prev)),
        }
        list
    }

    /// What a click on a name does; of equal names the last counts.
    pub(super) fn target(&self, name: &str) -> Option<Click> {
        self.clickables().into_iter().rev().find(|(known, _)| known == name).map(|(_, click)| click)
    }

    /// The actions that are offered.
    pub(super) fn actions(&self) -> Vec<String> {
        if self.session.page == Page::Start {
            return vec![SEARCH.to_owned()];
        }
        let mut names: Vec<String> = Vec::new();
        for (name, _) in self.clickables() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        // Beyond the last page there is nothing to turn to.
        if names == ["back to search", "< prev", "next >"] {
            names.pop();
        }
        names.into_iter().map(|name| format!("click[{name}]")).collect()
    }

    /// The page's text.
    pub(super) fn page(&self) -> String {
        let session = self.session;
        let mut parts: Vec<String> = Vec::new();
        let mut push = |text: &str| parts.push(text.to_owned());
        if session.page == Page::Done {
            let product = session.product.map_or("", |product| self.shop.products[product].asin.as_str());
            let chosen: Vec<String> = session.options.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            push("Thank you for shopping with us!");
            push(&format!("Purchased {product}"));
            push(&if chosen.is_empty() { "no options".to_owned() } else { chosen.join(", ") });
            push(&format!("Your score (0 to 1): {:.2}", self.raw.unwrap_or(0.0)));
            return parts.join(super::BETWEEN);
        }
        if session.page == Page::Start {
            push("WebShop");
        }
        push("Instruction:");
        push(&self.goal.instruction);
        if session.page == Page::Start {
            push("Search");
            return parts.join(super::BETWEEN);
        }
        push("Back to Search");
        let product = session.product.map(|product| &self.shop.products[product]);
        match (session.page, product) {
            (Page::Results, _) => {
                push(&format!("Page {} (Total results: {})", session.number, session.results.len()));
                if session.number > 1 {
                    push("< Prev");
                }
                push("Next >");
                for product in session.shown().iter().map(|product| &self.shop.products[*product]) {
                    push(&product.asin);
                    push(&product.title);
                    push(&product.tag());
                }
            }
            (Page::Item, Some(product)) => {
                push("< Prev");
                for (group, values) in &product.options {
                    push(group);
                    for value in values {
                        let is_chosen = session.options.iter().any(|(name, chosen)| name == group && chosen == value);
                        push(&if is_chosen && !self.parity { format!("{value} (chosen)") } else { value.clone() });
                    }
                }
                push(&product.title);
                push(&format!("Price: {}", product.tag()));
                push("Rating: N.A.");
                ["Description", "Features", "Reviews"].into_iter().for_each(&mut push);
                if self.show_attributes {
                    push("Attributes");
                }
                push("Buy Now");
            }
            (page, product) => {
                push("< Prev");
                match (page, product) {
                    (Page::Description, Some(product)) => push(&product.description),
                    (Page::Features, Some(product)) => product.bullets.iter().for_each(|bullet| push(bullet)),
                    (Page::Attributes, Some(product)) => {
                        product.attributes.iter().for_each(|attribute| push(attribute))
                    }
                    _ => {}
                }
            }
        }
        parts.retain(|part| !part.is_empty());
        parts.join(super::BETWEEN)
    }

    /// The scripted player's next action and why.
    pub(super) fn plan(&self) -> Option<(String, String)> {
        let session = self.session;
        let wanted = self.shop.find(&self.goal.asin)?;
        let asin = self.goal.asin.to_lowercase();
        let asked = || format!("asked: {}", self.goal.attributes.join(", "));
        let go = |target: &str| format!("click[{target}]");
        Some(match session.page {
            Page::Start => {
                let words = format!("{} {}", self.goal.attributes.join(" "), self.goal.query);
                let leads =
                    |query: &str| self.shop.search(query).iter().take(PER_PAGE).any(|product| *product == wanted);
                let query = if leads(&words) { words } else { self.goal.name.to_lowercase() };
                (asked(), format!("search[{query}]"))
            }
            Page::Results if session.shown().contains(&wanted) => (format!("{asin} fits"), go(&asin)),
            Page::Results if session.results.contains(&wanted) => {
                let here = session.results.iter().position(|product| *product == wanted)? / PER_PAGE + 1;
                let target = if here > session.number { "next >" } else { "< prev" };
                (format!("{asin} is on page {here}"), go(target))
            }
            Page::Results => ("it is not here".to_owned(), go("back to search")),
            Page::Item if session.product != Some(wanted) => ("it is another".to_owned(), go("< prev")),
            Page::Item => {
                let product = &self.shop.products[wanted];
                let missing = self.goal.options.iter().find(|(name, value)| {
                    !session.options.iter().any(|(group, chosen)| chosen == value && (name.is_empty() || group == name))
                        && product.options.iter().any(|(_, values)| values.contains(value))
                });
                match missing {
                    Some((_, value)) => (format!("{value} is asked for"), go(value)),
                    None => ("all is chosen".to_owned(), go("buy now")),
                }
            }
            Page::Done => return None,
            _ => ("back to the product".to_owned(), go("< prev")),
        })
    }
}
