//! Keys and values of growing sequences, in pages that sequences with a common prefix share.
//!
//! A page holds [`PAGE`] positions of all layers and key heads. Forking a sequence shares its pages; the last, partly filled one
//! is copied when either side grows. What earlier turns computed stays until the sequence is closed.

use crate::ops::attention::{Heads, PAGE, PageLayout};
use crate::simd::Isa;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

/// A sequence in a [`KvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheId(usize);

#[derive(Clone, Debug, Default)]
struct Sequence {
    /// Numbers of pages as kernels take them.
    pages: Vec<u32>,
    len: usize,
}

/// Which pages every sequence has and who shares them: the books of a cache, whatever device its pages lie on. A cache is used as its
/// books: sequences are opened, shared and closed there.
#[derive(Default)]
pub struct PageTable {
    /// Sequences that use each page that was ever needed.
    users: Vec<usize>,
    free_pages: Vec<usize>,
    sequences: Vec<Option<Sequence>>,
    free_ids: Vec<usize>,
}

/// A page whose contents must be copied before anyone writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageCopy {
    pub from: usize,
    pub to: usize,
}

impl PageTable {
    /// A new, empty sequence.
    pub fn open(&mut self) -> CacheId {
        match self.free_ids.pop() {
            Some(id) => {
                self.sequences[id] = Some(Sequence::default());
                CacheId(id)
            }
            None => {
                self.sequences.push(Some(Sequence::default()));
                CacheId(self.sequences.len() - 1)
            }
        }
    }

    /// Makes the empty sequence `id` a continuation of `source`, sharing all that it holds.
    ///
    /// **Panics** if either is closed or `id` is not empty.
    pub fn share(&mut self, id: CacheId, source: CacheId) {
        assert_eq!(self.len(id), 0, "only an empty sequence can take over another's pages");
        let shared = self.get(source).clone();
        for &page in &shared.pages {
            self.users[page as usize] += 1;
        }
        self.sequences[id.0] = Some(shared);
    }

    /// Forgets a sequence; pages that no other sequence uses are free again.
    pub fn close(&mut self, id: CacheId) {
        if let Some(sequence) = self.sequences.get_mut(id.0).and_then(Option::take) {
            for page in sequence.pages {
                self.release(page as usize);
            }
            self.free_ids.push(id.0);
        }
    }

    fn release(&mut self, page: usize) {
        self.users[page] -= 1;
        if self.users[page] == 0 {
            self.free_pages.push(page);
        }
    }

    fn get(&self, id: CacheId) -> &Sequence {
        self.sequences[id.0].as_ref().expect("the sequence is open")
    }

    /// Tokens that the sequence holds.
    ///
    /// **Panics** if it is closed.
    pub fn len(&self, id: CacheId) -> usize {
        self.get(id).len
    }

    /// Its pages, first page first.
    ///
    /// **Panics** if it is closed.
    pub(crate) fn pages(&self, id: CacheId) -> &[u32] {
        &self.get(id).pages
    }

    /// Whether no sequence is open.
    pub fn is_empty(&self) -> bool {
        self.sequences.iter().all(Option::is_none)
    }

    /// Pages that were ever needed at once: all page numbers are below this.
    pub(crate) fn made(&self) -> usize {
        self.users.len()
    }

    /// Pages that some sequence uses.
    pub(crate) fn in_use(&self) -> usize {
        self.users.len() - self.free_pages.len()
    }

    /// Pages that [`PageTable::grow`] takes for all of these sequences, one after the other.
    pub(crate) fn pages_to_grow(&self, grows: impl IntoIterator<Item = (CacheId, usize)>) -> usize {
        let mut new = 0;
        // Last, partly filled pages, and how many that use each will write to it.
        let mut writers: BTreeMap<u32, usize> = BTreeMap::new();
        for (id, tokens) in grows {
            let Sequence { pages, len } = self.get(id);
            new += (len + tokens).div_ceil(PAGE) - pages.len();
            if let Some(&last) = pages.last()
                && tokens > 0
                && !len.is_multiple_of(PAGE)
            {
                *writers.entry(last).or_default() += 1;
            }
        }
        // Each takes a copy, but for one that is left alone with it.
        new + writers.iter().map(|(&page, &writers)| writers.min(self.users[page as usize] - 1)).sum::<usize>()
    }

    /// Makes room for `tokens` more tokens and counts them as held. Pages of the new positions belong to the sequence alone: a last, partly
    /// filled page that others use is to be copied, as the answer says.
    pub(crate) fn grow(&mut self, id: CacheId, tokens: usize) -> Option<PageCopy> {
        let mut sequence = self.sequences[id.0].take().expect("the sequence is open");
        let mut copy = None;
        if let Some(last) = sequence.pages.last_mut()
            && tokens > 0
            && !sequence.len.is_multiple_of(PAGE)
            && self.users[*last as usize] > 1
        {
            let (from, to) = (*last as usize, self.page());
            self.release(from);
            *last = to as u32;
            copy = Some(PageCopy { from, to });
        }
        sequence.len += tokens;
        while sequence.pages.len() * PAGE < sequence.len {
            let page = self.page();
            sequence.pages.push(page as u32);
        }
        self.sequences[id.0] = Some(sequence);
        copy
    }

    fn page(&mut self) -> usize {
        let page = self.free_pages.pop().unwrap_or_else(|| {
            self.users.push(0);
            self.users.len() - 1
        });
        self.users[page] = 1;
        page
    }
}

/// The pages of the sequences, on the CPU.
pub struct KvCache {
    /// Layout of one head's part of a page.
    pub(crate) layout: PageLayout,
    kv_heads: usize,
    layers: usize,
    table: PageTable,
    pages: Vec<Box<[f32]>>,
}

impl KvCache {
    /// An empty cache for a model of `layers` layers with these heads.
    pub fn new(isa: Isa, layers: usize, heads: Heads) -> Self {
        KvCache {
            layout: PageLayout::new(isa, heads.head_dim),
            kv_heads: heads.n_kv_heads,
            layers,
            table: PageTable::default(),
            pages: Vec::new(),
        }
    }

    /// Bytes of all pages that were ever needed at once.
    pub fn bytes(&self) -> usize {
        self.pages.len() * self.page_len() * size_of::<f32>()
    }

    fn page_len(&self) -> usize {
        self.layers * self.kv_heads * self.layout.elements()
    }

    /// Makes room for `tokens` more tokens and counts them as held; the caller then writes their keys and values.
    pub(crate) fn grow(&mut self, id: CacheId, tokens: usize) {
        let copy = self.table.grow(id, tokens);
        // Slots that nothing fills are read against zero weights, so they must be finite: zeros and old keys and values are.
        let len = self.page_len();
        self.pages.resize_with(self.table.made(), || vec![0.0; len].into_boxed_slice());
        if let Some(PageCopy { from, to }) = copy {
            let source = std::mem::take(&mut self.pages[from]);
            self.pages[to].copy_from_slice(&source);
            self.pages[from] = source;
        }
    }

    /// Pointers to the pages of a sequence, first page first. Pages of positions that [`KvCache::grow`] added belong to it alone.
    pub(crate) fn pointers(&mut self, id: CacheId) -> Vec<*mut f32> {
        let KvCache { table, pages, .. } = self;
        table.pages(id).iter().map(|&p| pages[p as usize].as_mut_ptr()).collect()
    }

    /// Offset of a layer's and key head's part within a page.
    pub(crate) fn offset(&self, layer: usize, h: usize) -> usize {
        (layer * self.kv_heads + h) * self.layout.elements()
    }
}

impl Deref for KvCache {
    type Target = PageTable;
    fn deref(&self) -> &PageTable {
        &self.table
    }
}

impl DerefMut for KvCache {
    fn deref_mut(&mut self) -> &mut PageTable {
        &mut self.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_share_whole_pages_and_copy_the_last_one() {
        let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 4 };
        let mut cache = KvCache::new(Isa::Plain, 1, heads);
        let a = cache.open();
        cache.grow(a, PAGE + 3);
        let b = cache.open();
        cache.share(b, a);
        assert_eq!(cache.pointers(a), cache.pointers(b));
        cache.grow(b, 1);
        assert_eq!(cache.pointers(a)[0], cache.pointers(b)[0]);
        assert_ne!(cache.pointers(a)[1], cache.pointers(b)[1]);
        assert_eq!((cache.len(a), cache.len(b)), (PAGE + 3, PAGE + 4));
        let bytes = cache.bytes();
        cache.close(a);
        let c = cache.open();
        cache.grow(c, 2);
        assert_eq!(cache.bytes(), bytes, "a freed page is used again");
        cache.close(b);
        cache.close(c);
        assert!(cache.is_empty());
    }

    #[test]
    fn pages_that_growing_takes_are_counted_as_they_are_taken() {
        let mut table = PageTable::default();
        let ids = [(); 4].map(|()| table.open());
        table.grow(ids[0], PAGE + 3);
        ids[1..].iter().for_each(|&id| table.share(id, ids[0]));
        for growing in [1, 3, 4] {
            // Of four that share a page, the last one keeps it.
            assert_eq!(table.pages_to_grow(ids[..growing].iter().map(|&id| (id, 1))), growing.min(3));
        }
        assert_eq!(table.pages_to_grow([(ids[0], 0), (ids[1], 2 * PAGE)]), 3, "a copy and two more");
        let (before, grows) = (table.in_use(), ids.map(|id| (id, PAGE - 3)));
        let new = table.pages_to_grow(grows);
        for (id, tokens) in grows {
            table.grow(id, tokens);
        }
        assert_eq!((new, table.in_use() - before), (3, 3));
    }
}
