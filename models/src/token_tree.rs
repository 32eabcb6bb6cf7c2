//! The packed token tree: the one batch structure (decision D1).
//!
//! The tokens of all segments lie end to end with no padding. A segment's tokens attend to its ancestors' tokens and to
//! earlier tokens of its own. A plain ragged batch is the case of no parents.

/// A run of tokens that hangs under `parent` in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of its first token in the packed ids.
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
    /// The segment that it continues; always earlier in the table.
    pub parent: Option<usize>,
    /// Position of its first token on the path from the root.
    pub position: usize,
}

impl Segment {
    /// The rows of the packed batch that this segment owns.
    pub fn rows(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.len
    }
}

/// Token ids of all segments laid end to end, and the table that says who follows whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenTree {
    /// Packed token ids, `[rows]`.
    pub ids: Vec<u32>,
    /// The segments; children come after their parents and every segment's rows follow those of the one before.
    pub segments: Vec<Segment>,
}

impl TokenTree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a segment under `parent` and returns its index.
    ///
    /// **Panics** if `parent` is not an earlier segment.
    pub fn push(&mut self, parent: Option<usize>, ids: &[u32]) -> usize {
        let position = match parent {
            None => 0,
            Some(p) => self.segments[p].position + self.segments[p].len,
        };
        self.segments.push(Segment { start: self.ids.len(), len: ids.len(), parent, position });
        self.ids.extend_from_slice(ids);
        self.segments.len() - 1
    }

    /// A ragged batch: one root segment a row.
    pub fn from_rows<R: AsRef<[u32]>>(rows: &[R]) -> Self {
        let mut tree = Self::new();
        for row in rows {
            tree.push(None, row.as_ref());
        }
        tree
    }

    /// Total number of packed tokens.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// The segments on the path from the root to `segment`, root first, itself last.
    pub fn path(&self, segment: usize) -> Vec<usize> {
        let mut path = vec![segment];
        while let Some(parent) = self.segments[path[path.len() - 1]].parent {
            path.push(parent);
        }
        path.reverse();
        path
    }

    /// Position of every packed token on its path, `[rows]`.
    pub fn positions(&self) -> Vec<u32> {
        self.segments.iter().flat_map(|s| (0..s.len).map(|i| (s.position + i) as u32)).collect()
    }

    /// The longest path in tokens.
    pub fn longest_path(&self) -> usize {
        self.segments.iter().map(|s| s.position + s.len).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_continue_their_parents() {
        let mut tree = TokenTree::new();
        let root = tree.push(None, &[1, 2, 3]);
        let a = tree.push(Some(root), &[4, 5]);
        let b = tree.push(Some(root), &[6]);
        let c = tree.push(Some(a), &[7]);
        assert_eq!(tree.ids, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(tree.positions(), [0, 1, 2, 3, 4, 3, 5]);
        assert_eq!(tree.path(c), [root, a, c]);
        assert_eq!(tree.segments[b].rows(), 5..6);
        assert_eq!(tree.longest_path(), 6);
    }
}
