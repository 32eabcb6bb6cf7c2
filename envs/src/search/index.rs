//! Ranking of documents for a query: BM25 over an inverted index.
//!
//! It knows words and documents, and nothing of questions. The order is a function of the documents and the query alone:
//! equal scores are kept in the order of the documents.
//!
//! **Math** score(d, q) = Σ over the words w of q: ln(1 + (N − n_w + ½) / (n_w + ½)) · f (k₁ + 1) / (f + k₁ (1 − b + b |d| / L)), with f how
//! often w stands in d, n_w in how many documents, N documents of mean length L, k₁ = 1.2, b = 0.75.
//!
//! **Source** Robertson and Zaragoza 2009, *The Probabilistic Relevance Framework: BM25 and Beyond*, with the weight of a word
//! kept above 0.

use std::collections::BTreeMap;

const K1: f64 = 1.2;
const B: f64 = 0.75;

/// Documents by the words in them.
#[derive(Debug, Default)]
pub struct Index {
    /// Of each word the documents that have it, in order, with how often.
    postings: BTreeMap<String, Vec<(u32, u32)>>,
    lengths: Vec<u32>,
    mean_length: f64,
}

/// The words of a text: letters and digits in lower case, without a possessive or plural s.
pub fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let pieces = text.split(|c: char| !c.is_alphanumeric()).filter(|piece| !piece.is_empty());
    pieces.map(|piece| {
        let mut word = piece.to_lowercase();
        if word.len() > 3 && word.ends_with('s') && !word.ends_with("ss") {
            word.pop();
        }
        word
    })
}

impl Index {
    /// The index of these texts; a document is named by its place.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Index {
        let mut index = Index::default();
        for (document, text) in texts.into_iter().enumerate() {
            let mut length = 0;
            for word in words(text) {
                length += 1;
                let places = index.postings.entry(word).or_default();
                match places.last_mut() {
                    Some((last, count)) if *last == document as u32 => *count += 1,
                    _ => places.push((document as u32, 1)),
                }
            }
            index.lengths.push(length);
        }
        let total: f64 = index.lengths.iter().map(|length| f64::from(*length)).sum();
        index.mean_length = total / f64::max(index.lengths.len() as f64, 1.0);
        index
    }

    /// How many documents there are.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// The `most` best documents with their scores, best first; those without any word of the query are left out.
    pub fn search(&self, query: &str, most: usize) -> Vec<(usize, f64)> {
        let mut scores: BTreeMap<u32, f64> = BTreeMap::new();
        let n = self.lengths.len() as f64;
        // A query of a megabyte is cut; nobody means its tail.
        for word in words(query).take(1000) {
            let Some(places) = self.postings.get(&word) else { continue };
            let held = places.len() as f64;
            let weight = (1.0 + (n - held + 0.5) / (held + 0.5)).ln();
            for (document, count) in places {
                let (count, length) = (f64::from(*count), f64::from(self.lengths[*document as usize]));
                let share = count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length / self.mean_length));
                *scores.entry(*document).or_default() += weight * share;
            }
        }
        let mut ranked: Vec<(usize, f64)> =
            scores.into_iter().map(|(document, score)| (document as usize, score)).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        ranked.truncate(most);
        ranked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: three documents of 2, 2 and 4 words, L = 8/3.
    #[test]
    fn scores_are_those_of_the_formula() {
        let index = Index::new(["red fox", "red cat", "a fox and foxes"]);
        let ranked = index.search("Foxes", 9);
        let idf = (1.0f64 + (3.0 - 2.0 + 0.5) / 2.5).ln();
        let score = |f: f64, length: f64| idf * f * 2.2 / (f + 1.2 * (0.25 + 0.75 * length / (8.0 / 3.0)));
        // "foxes" loses its s and is "foxe": another word than "fox".
        assert_eq!(ranked.iter().map(|hit| hit.0).collect::<Vec<_>>(), [2]);
        let ranked = index.search("fox", 9);
        assert_eq!(ranked.iter().map(|hit| hit.0).collect::<Vec<_>>(), [0, 2]);
        assert!((ranked[0].1 - score(1.0, 2.0)).abs() < 1e-12 && (ranked[1].1 - score(1.0, 4.0)).abs() < 1e-12);
    }

    #[test]
    fn equal_scores_keep_the_order_of_the_documents() {
        let index = Index::new(["b red", "c red", "a red"]);
        assert_eq!(index.search("red", 2).iter().map(|hit| hit.0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(index.search("nothing", 2), []);
        assert!(Index::new([]).search("red", 3).is_empty());
    }
}
