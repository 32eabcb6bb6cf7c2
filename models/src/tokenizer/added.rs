//! Added tokens: the control tokens and tags that a text is split at before anything else looks at it.

use super::file::AddedEntry;
use super::{Piece, TokenizerError};
use std::collections::BTreeMap;

/// An added token: one that [`super::Tokenizer::encode`] recognises whole and [`super::Tokenizer::encode_plain`] never gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub id: u32,
    pub content: String,
    pub special: bool,
    /// Takes the blanks before it, and those after it.
    strip: (bool, bool),
}

/// All added tokens, by id and by what they are recognised from.
#[derive(Debug, Default)]
pub(super) struct AddedTokens {
    /// Ascending by id.
    by_id: Vec<Added>,
    by_content: BTreeMap<String, u32>,
    /// Looked for in the text as it is.
    raw: Finder,
    /// Looked for after normalisation, in what lies between the others.
    pub normalized: Finder,
}

/// Finds tokens in a text: the leftmost, and of those that begin there the longest.
#[derive(Debug, Default)]
pub(super) struct Finder {
    /// What is looked for and the index of its token, longest first, by first byte.
    by_byte: BTreeMap<u8, Vec<(String, usize)>>,
}

impl AddedTokens {
    /// The tokens of a file; `normalise` is what its normalizer does to a text.
    ///
    /// **Errors** for a token that is only recognised between words, which nothing here can tell.
    pub fn new(entries: &[AddedEntry], normalise: &dyn Fn(&str) -> String) -> Result<Self, TokenizerError> {
        let mut tokens = AddedTokens::default();
        for entry in entries.iter().filter(|entry| !entry.content.is_empty()) {
            if entry.single_word {
                let found = format!("true for {:?}", entry.content);
                return Err(TokenizerError::Unsupported { key: "added_tokens.single_word", found });
            }
            let (id, content) = (entry.id, entry.content.clone());
            tokens.by_content.insert(content.clone(), id);
            tokens.by_id.push(Added { id, content, special: entry.special, strip: (entry.lstrip, entry.rstrip) });
        }
        tokens.by_id.sort_by_key(|added| added.id);
        let is_normalized: BTreeMap<&str, bool> = entries.iter().map(|e| (e.content.as_str(), e.normalized)).collect();
        for (i, added) in tokens.by_id.iter().enumerate() {
            match is_normalized.get(added.content.as_str()) {
                Some(true) => tokens.normalized.add(normalise(&added.content), i),
                _ => tokens.raw.add(added.content.clone(), i),
            }
        }
        Ok(tokens)
    }

    pub fn get(&self, id: u32) -> Option<&Added> {
        self.by_id.binary_search_by_key(&id, |added| added.id).ok().map(|i| &self.by_id[i])
    }

    pub fn id(&self, content: &str) -> Option<u32> {
        self.by_content.get(content).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Added> {
        self.by_id.iter()
    }

    /// The pieces of a text as it is, in order and without gaps; blanks that a token takes are part of its piece.
    pub fn split(&self, text: &str) -> Vec<Piece> {
        self.split_by(&self.raw, text)
    }

    /// The pieces of a normalised text.
    pub fn split_normalized(&self, text: &str) -> Vec<Piece> {
        self.split_by(&self.normalized, text)
    }

    fn split_by(&self, finder: &Finder, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (mut done, mut at) = (0, 0);
        while at < text.len() {
            let Some((length, index)) = finder.at(text.as_bytes(), at).next() else {
                at += 1;
                continue;
            };
            let added = &self.by_id[index];
            let (mut start, mut end) = (at, at + length);
            if added.strip.0 {
                start = text[done..start].trim_end().len() + done;
            }
            if added.strip.1 {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                pieces.push(Piece { token: None, range: done..start });
            }
            pieces.push(Piece { token: Some(added.id), range: start..end });
            (done, at) = (end, end);
        }
        if done < text.len() {
            pieces.push(Piece { token: None, range: done..text.len() });
        }
        pieces
    }

    /// Whether an added token, or a special one, begins at byte `at` of a text as it is.
    pub fn begins_at(&self, text: &str, at: usize, only_special: bool) -> bool {
        let counts = |index: usize| !only_special || self.by_id[index].special;
        [&self.raw, &self.normalized]
            .iter()
            .any(|finder| finder.at(text.as_bytes(), at).any(|(_, index)| counts(index)))
    }
}

impl Finder {
    fn add(&mut self, content: String, index: usize) {
        let Some(&first) = content.as_bytes().first() else { return };
        let list = self.by_byte.entry(first).or_default();
        list.push((content, index));
        list.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
    }

    pub fn is_empty(&self) -> bool {
        self.by_byte.is_empty()
    }

    /// Length and token of each that begins at byte `at`, longest first.
    fn at<'a>(&'a self, text: &'a [u8], at: usize) -> impl Iterator<Item = (usize, usize)> + 'a {
        let list = text.get(at).and_then(|first| self.by_byte.get(first)).map_or(&[][..], Vec::as_slice);
        let begins = move |content: &String| text[at..].starts_with(content.as_bytes());
        list.iter().filter(move |(content, _)| begins(content)).map(|(content, index)| (content.len(), *index))
    }
}
