//! Where keys and values lie: pages of [`PAGE`] positions along the paths of a token tree.

use super::Heads;
use crate::ops::gemm::panel_width;
use crate::simd::Isa;
use crate::token_tree::TokenTree;

/// Positions in a page.
pub const PAGE: usize = 32;

/// How a page is laid out on an instruction path: keys as panels of `[head_dim, width]` over positions (ready to be the right operand
/// of q·kᵀ), then values as panels of `[PAGE, width]` over the head's width (ready for w·v).
#[derive(Clone, Copy, Debug)]
pub struct PageLayout {
    pub(super) head_dim: usize,
    pub(super) width: usize,
}

impl PageLayout {
    /// The layout for heads of this width on the path `isa`.
    pub fn new(isa: Isa, head_dim: usize) -> Self {
        PageLayout { head_dim, width: panel_width(isa) }
    }

    pub(super) fn keys(&self) -> usize {
        PAGE * self.head_dim
    }

    fn values(&self) -> usize {
        self.head_dim.div_ceil(self.width) * self.width * PAGE
    }

    /// Elements of one page of one head.
    pub fn elements(&self) -> usize {
        self.keys() + self.values()
    }

    /// Writes `k` and `v` of the position `slot` within the page.
    pub fn write(&self, page: &mut [f32], slot: usize, k: &[f32], v: &[f32]) {
        let (keys, values) = page[..self.elements()].split_at_mut(self.keys());
        write_across(keys, self.width, slot, k);
        write_along(values, self.width, PAGE, slot, v);
    }
}

/// One column of panels `[x.len(), width]`: element d goes to row d, lane `slot`.
fn write_across(panels: &mut [f32], width: usize, slot: usize, x: &[f32]) {
    let panel = &mut panels[slot / width * x.len() * width..][..x.len() * width];
    for (row, x) in panel.chunks_exact_mut(width).zip(x) {
        row[slot % width] = *x;
    }
}

/// One row of panels `[rows, width]` over the elements of x.
pub(super) fn write_along(panels: &mut [f32], width: usize, rows: usize, slot: usize, x: &[f32]) {
    for (panel, x) in panels.chunks_exact_mut(rows * width).zip(x.chunks(width)) {
        panel[slot * width..][..x.len()].copy_from_slice(x);
    }
}

/// The pages of all segments of some trees: which page holds which block of each segment's path.
pub(super) struct PathPages {
    /// For every segment, page numbers by position / PAGE.
    pub lists: Vec<Vec<usize>>,
    /// (page to fill, page to copy from or none, first packed row, slot of that row, number of rows)
    pub fills: Vec<(usize, Option<usize>, usize, usize, usize)>,
    pub pages: usize,
}

impl PathPages {
    /// Plans the pages of segments `range` (whole trees): a child keeps its ancestors' full pages and copies a last partial one.
    pub fn new(tree: &TokenTree, range: std::ops::Range<usize>) -> Self {
        let base = range.start;
        let mut plan = PathPages { lists: Vec::new(), fills: Vec::new(), pages: 0 };
        for segment in &tree.segments[range] {
            let inherited = segment.parent.map_or(&[][..], |p| &plan.lists[p - base]);
            let full = segment.position / PAGE;
            let mut list = inherited[..full.min(inherited.len())].to_vec();
            let partial = inherited.get(full).copied().filter(|_| segment.position % PAGE > 0);
            if segment.len == 0 {
                list.extend(partial);
            }
            let mut row = 0;
            while row < segment.len {
                let position = segment.position + row;
                let n = (PAGE - position % PAGE).min(segment.len - row);
                let source = if row == 0 { partial } else { None };
                list.push(plan.pages);
                plan.fills.push((plan.pages, source, segment.start + row, position % PAGE, n));
                plan.pages += 1;
                row += n;
            }
            plan.lists.push(list);
        }
        plan
    }
}

/// Segment ranges of the trees: each starts at a root.
pub(super) fn trees(tree: &TokenTree) -> Vec<std::ops::Range<usize>> {
    let mut starts: Vec<usize> = (0..tree.segments.len()).filter(|&s| tree.segments[s].parent.is_none()).collect();
    starts.push(tree.segments.len());
    // A child may hang under any earlier segment, so trees that interleave are taken together.
    let mut ranges: Vec<std::ops::Range<usize>> = starts.windows(2).map(|w| w[0]..w[1]).collect();
    for s in 0..tree.segments.len() {
        if let Some(parent) = tree.segments[s].parent {
            let from = ranges.iter().position(|r| r.contains(&parent)).unwrap_or(0);
            let to = ranges.iter().position(|r| r.contains(&s)).unwrap_or(0);
            if from < to {
                let merged = ranges[from].start..ranges[to].end;
                ranges.splice(from..=to, [merged]);
            }
        }
    }
    ranges
}

/// Fills planned pages with the columns of a first vector (across) and a second (along): key and value for the way
/// forward; value and key, for dO·Vᵀ and dS·K, on the way back.
pub(super) fn fill_pages(
    pages: &mut Vec<f32>,
    plan: &PathPages,
    layout: PageLayout,
    qkv: &[f32],
    heads: Heads,
    (across, along): (usize, usize),
) {
    let (len, hd) = (layout.elements(), heads.head_dim);
    pages.resize(pages.len().max(plan.pages * len), 0.0);
    for &(page, source, row, slot, n) in &plan.fills {
        match source {
            Some(source) => pages.copy_within(source * len..(source + 1) * len, page * len),
            // Slots that nothing fills are read against zero weights, so they must be finite.
            None => pages[page * len..][..len].fill(0.0),
        }
        let page = &mut pages[page * len..][..len];
        for i in 0..n {
            let token = &qkv[(row + i) * heads.row()..][..heads.row()];
            layout.write(page, slot + i, &token[across..][..hd], &token[along..][..hd]);
        }
    }
}
