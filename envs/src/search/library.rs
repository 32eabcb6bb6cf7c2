//! Where search results come from: the embedded world, a file of documents, or a retrieval server.
//!
//! It knows documents and servers, and nothing of questions or episodes.

use super::index::Index;
use super::world::{Document, World};
use crate::dataset::{self, Shared};
use crate::http;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Characters of a document that are shown.
const SHOWN: usize = 800;

/// A result: what it is called, what it says, and how well it fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Its name.
    pub id: String,
    /// Its text, the title first.
    pub content: String,
    /// Its score.
    pub score: f64,
}

/// Documents and their index.
#[derive(Debug)]
pub struct Library {
    documents: Vec<Document>,
    index: Index,
}

impl Library {
    fn new(documents: Vec<Document>) -> Library {
        let texts: Vec<String> = documents.iter().map(|d| format!("{} {}", d.title, d.text)).collect();
        Library { index: Index::new(texts.iter().map(String::as_str)), documents }
    }

    /// How many documents there are.
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// The best documents for a query.
    pub fn search(&self, query: &str, most: usize) -> Vec<Hit> {
        let hit = |(document, score): (usize, f64)| {
            let Document { title, text } = &self.documents[document];
            let content = if title.is_empty() { text.clone() } else { format!("{title}\n{text}") };
            Hit { id: format!("doc_{}", document + 1), content, score }
        };
        self.index.search(query, most).into_iter().map(hit).collect()
    }
}

static LIBRARIES: Shared<Library> = Shared::new();
static WORLD: Shared<World> = Shared::new();

/// The embedded world, made once in a process.
pub fn world() -> Arc<World> {
    WORLD.get("", || Ok(World::new())).unwrap_or_else(|why| unreachable!("the world needs nothing: {why}"))
}

/// The documents of the embedded world.
pub fn embedded() -> Arc<Library> {
    let build = || Ok(Library::new(world().documents.clone()));
    LIBRARIES.get("", build).unwrap_or_else(|why| unreachable!("the world needs nothing: {why}"))
}

/// The documents of a file: JSON, JSON lines or Parquet, each a text or a record with `contents` or `text`, and perhaps `title`.
///
/// **Errors** in words that name the file and the row.
pub fn corpus(path: &Path) -> Result<Arc<Library>, String> {
    LIBRARIES.get(&path.display().to_string(), || {
        let document = |(i, record): (usize, &Value)| {
            let field = |name: &str| record.get(name).and_then(Value::as_str);
            let text = record.as_str().or(field("contents")).or(field("text")).ok_or_else(|| {
                format!("{} row {}: neither a text nor a record with contents or text", path.display(), i + 1)
            })?;
            Ok(Document { title: field("title").unwrap_or_default().to_owned(), text: text.to_owned() })
        };
        let documents = dataset::records(path)?.iter().enumerate().map(document).collect::<Result<Vec<_>, String>>()?;
        match documents.is_empty() {
            true => Err(format!("{} has no documents", path.display())),
            false => Ok(Library::new(documents)),
        }
    })
}

/// Who is asked.
#[derive(Clone, Debug)]
pub enum Retriever {
    /// Documents at hand.
    Library(Arc<Library>),
    /// A retrieval server at this address.
    Server(String, Duration),
    /// Two documents that quote the query, for trying things out.
    Mock,
    /// Recorded results by query.
    #[cfg(test)]
    Recorded(std::collections::BTreeMap<String, String>),
}

impl Retriever {
    /// The results for a query as text. What goes wrong with a server is a text, too: the episode goes on.
    pub fn tell(&self, query: &str, most: usize, most_chars: usize) -> String {
        let hits = match self {
            Retriever::Library(library) => Ok(library.search(query, most)),
            Retriever::Server(url, limit) => ask(url, query, most, *limit),
            Retriever::Mock => {
                let quote = |i: usize| Hit {
                    id: format!("mock_{i}"),
                    content: format!("Placeholder document {i} on: {query}"),
                    score: 1.0 / i as f64,
                };
                Ok((1..=2).map(quote).collect())
            }
            #[cfg(test)]
            Retriever::Recorded(results) => {
                return results.get(query).cloned().unwrap_or_else(|| format(&[], most, most_chars));
            }
        };
        hits.map_or_else(|why| format!("The search failed: {why}"), |hits| format(&hits, most, most_chars))
    }
}

/// Results as text: each with its rank, its name, its score to three places and its beginning; the whole cut at `most_chars`.
pub fn format(hits: &[Hit], most: usize, most_chars: usize) -> String {
    if hits.is_empty() {
        return "No documents found.".to_owned();
    }
    let cut = |text: &str, most: usize| match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    };
    let told = hits.iter().take(most).enumerate().map(|(i, hit)| {
        format!("[Document {}] (ID: {}, Score: {:.3})\n{}", i + 1, hit.id, hit.score, cut(&hit.content, SHOWN))
    });
    cut(&told.collect::<Vec<_>>().join("\n\n"), most_chars)
}

fn ask(url: &str, query: &str, most: usize, limit: Duration) -> Result<Vec<Hit>, String> {
    let url = format!("{}/retrieve", url.trim_end_matches('/'));
    let answer = http::post(&url, &json!({"query": query, "top_k": most}), None, limit)?;
    let results = answer["results"].as_array().ok_or_else(|| format!("{url} answered without results: {answer}"))?;
    let hit = |result: &Value| {
        let text = |name: &str| result[name].as_str().map(str::to_owned);
        Some(Hit { id: text("id")?, content: text("content")?, score: result["score"].as_f64().unwrap_or(0.0) })
    };
    results
        .iter()
        .map(|result| hit(result).ok_or_else(|| format!("{url} answered a result without id or content")))
        .collect()
}
