//! Matrix product: C = A·B or C += A·B in f32, in the one order of decision D3.
//!
//! **Math** an output element is one chain of fused multiply-adds with k ascending, started from 0 or from what C holds and
//! reloaded from C between blocks of k. Work is split over tiles of C only. So every instruction path, thread count and
//! batch size gives the same bits, and adding up a gradient over micro-batches equals adding it up at once.
//!
//! With [`Precision::Bf16`] the elements of A and B are rounded to bf16 as they are packed, and a chain goes on by pairs (2i, 2i + 1) of
//! k, each as [`crate::simd::bf16`] says; a last odd k is paired with zeros. C stays f32. (A gradient over micro-batches of an odd
//! number of rows then differs from that over all rows by rounding, since the pairs do.)
//!
//! **Shapes** A is `[m, k]` with any strides, which covers x and xᵀ; B is `[k, n]`: packed once ([`Packed`]: weights, in
//! either orientation) or given row-major and packed block by block inside the product; C is `[m, n]` row-major.

use crate::device::Cpu;
use crate::simd::{Isa, LANES, Simd, bf16, dispatch, dispatch_products};
use crate::threads::Shards;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;

/// Steps between two reloads of C at most: a B panel of this height stays in the second-level cache, and a reload is rare.
const K_STEPS: usize = 768;
/// Rows of A that one pass over the panels of B works on; a multiple of every `Simd::MR`.
const M_BLOCK: usize = 96;

/// What the elements of both operands are rounded to; C, and the sums, are f32 always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Not at all.
    #[default]
    F32,
    /// To bf16, which halves the bytes of packed weights and, with AVX512-BF16, doubles the speed.
    Bf16,
}

impl Precision {
    /// Steps of a chain over `k` elements: one a 32-bit word of a packed operand.
    fn steps(self, k: usize) -> usize {
        match self {
            Precision::F32 => k,
            Precision::Bf16 => k.div_ceil(2),
        }
    }

    /// The name that a configuration gives it.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }

    /// Bytes of an element of a packed operand.
    pub fn bytes(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
        }
    }
}

/// The left operand: element (i, k) is `data[i * row + k * step]`.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Distance between rows of the product.
    pub row: usize,
    /// Distance between steps along k.
    pub step: usize,
}

impl<'a> Left<'a> {
    /// A row-major `[m, k]` matrix.
    pub fn rows(data: &'a [f32], k: usize) -> Self {
        Left { data, row: k, step: 1 }
    }

    /// The transpose of a row-major `[k, m]` matrix.
    pub fn transposed(data: &'a [f32], m: usize) -> Self {
        Left { data, row: 1, step: m }
    }
}

/// The right operand, in panels: panel p holds columns `p * width ..` as `[steps, width]`, padded with zeros. A word is an f32, or the
/// bits of a pair of bf16.
#[derive(Clone, Default)]
pub struct Packed {
    /// Rows of B.
    pub k: usize,
    /// Columns of B.
    pub n: usize,
    /// What its elements were rounded to.
    pub precision: Precision,
    width: usize,
    panels: Vec<f32>,
}

/// The right operand of a product.
#[derive(Clone, Copy)]
pub enum Right<'a> {
    /// Packed before.
    Packed(&'a Packed),
    /// A row-major `[k, n]` matrix, and the precision of the product.
    Rows(&'a [f32], Precision),
}

impl Right<'_> {
    fn precision(&self) -> Precision {
        match self {
            Right::Packed(packed) => packed.precision,
            Right::Rows(_, precision) => *precision,
        }
    }
}

/// Columns of a panel on the path S.
const fn width<S: Simd>() -> usize {
    S::NV * LANES
}

#[inline(always)]
unsafe fn panel_width_kernel<S: Simd>() -> usize {
    width::<S>()
}
dispatch!(
    /// Columns of a packed panel on the path `isa`.
    pub(crate) fn panel_width() -> usize = panel_width_kernel
);

impl Packed {
    /// Packs B = Wᵀ for a weight `w` `[out, in]`: the product x·Wᵀ of a linear layer (k = in, n = out).
    pub fn transposed(&mut self, cpu: &Cpu, precision: Precision, w: &[f32], out: usize, input: usize) {
        assert_eq!(w.len(), out * input, "W is [{out}, {input}]");
        let width = panel_width(cpu.isa);
        let steps = precision.steps(input);
        (self.k, self.n, self.precision, self.width) = (input, out, precision, width);
        self.panels.clear();
        self.panels.resize(out.div_ceil(width) * width * steps, 0.0);
        let shards = Shards::new(&mut self.panels);
        cpu.pool.split(out.div_ceil(width), (1 << 14) / (steps * width).max(1) + 1, 1, &|panels| {
            for p in panels {
                // SAFETY: each panel belongs to one piece of the split.
                let panel = unsafe { shards.part(p * steps * width..(p + 1) * steps * width) };
                let rows = &w[p * width * input..out.min((p + 1) * width) * input];
                for (j, row) in rows.chunks_exact(input.max(1)).enumerate() {
                    let words = panel[j..].iter_mut().step_by(width);
                    match precision {
                        Precision::F32 => words.zip(row).for_each(|(word, x)| *word = *x),
                        Precision::Bf16 => words.zip(row.chunks(2)).for_each(|(word, x)| {
                            *word = bf16::pair(x[0], x.get(1).copied().unwrap_or(0.0));
                        }),
                    }
                }
            }
        });
    }

    /// Bytes of the panels.
    pub fn bytes(&self) -> usize {
        4 * self.panels.len()
    }
}

/// C = A·B, or C += A·B with `accumulate`, on all threads of `cpu`.
///
/// **Shapes** A `[m, k]`, B `[k, n]`, C `[m, n]` row-major, `c.len() == m * n`.
///
/// **Panics** when the slices do not fit the shapes.
pub fn gemm(cpu: &Cpu, m: usize, n: usize, k: usize, a: Left<'_>, b: Right<'_>, c: &mut [f32], accumulate: bool) {
    assert_eq!(c.len(), m * n, "C is [{m}, {n}]");
    gemm_strided(cpu, m, n, k, a, b, c, n, accumulate);
}

/// [`gemm`] with rows of C at distance `c_row` ≥ n: C is the left part of a wider matrix.
pub fn gemm_strided(
    cpu: &Cpu,
    m: usize,
    n: usize,
    k: usize,
    a: Left<'_>,
    b: Right<'_>,
    c: &mut [f32],
    c_row: usize,
    accumulate: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(c_row >= n && c.len() >= (m - 1) * c_row + n, "C holds [{m}, {n}] at row distance {c_row}");
    assert!(k == 0 || a.data.len() > (m - 1) * a.row + (k - 1) * a.step, "A holds [{m}, {k}]");
    match b {
        Right::Packed(p) => assert!(p.k == k && p.n == n && p.width == panel_width(cpu.isa), "packed B is [{k}, {n}]"),
        Right::Rows(data, _) => assert_eq!(data.len(), k * n, "B is [{k}, {n}]"),
    }
    let width = panel_width(cpu.isa);
    // Tiles: rows first, since a tile that keeps all columns packs B once; columns too when the rows are few.
    let work = |rows: usize, columns: usize| rows * columns * k;
    let target = 2 * cpu.pool.threads();
    let (mut rows, mut columns) = (m, n);
    if cpu.pool.threads() > 1 && work(m, n) > 1 << 17 {
        rows = m.div_ceil(target).next_multiple_of(12).clamp(12.min(m), m);
        if matches!(b, Right::Rows(..)) && n > m && n >= target * width {
            // A wide B that is packed inside the product: tiles of columns pack each of its elements once.
            (rows, columns) = (m, n.div_ceil(target).next_multiple_of(width));
        } else if rows < 48 && n >= 4 * width {
            rows = m.min(48);
            let row_tiles = m.div_ceil(rows);
            columns = n.div_ceil(target.div_ceil(row_tiles)).next_multiple_of(width).min(n);
        }
    }
    let (row_tiles, column_tiles) = (m.div_ceil(rows), n.div_ceil(columns));
    let shards = Shards::new(c);
    cpu.pool.run(row_tiles * column_tiles, &|tile| {
        let (i, j) = (tile / column_tiles * rows, tile % column_tiles * columns);
        let tile = Tile { m: rows.min(m - i), n: columns.min(n - j), k, i, j };
        // The tile's place in C: checked to lie inside, and no other task writes it.
        let c = shards.at(i * c_row + j);
        multiply(cpu.isa, tile, a, b, n, c, c_row, accumulate);
    });
}

/// A block of C: rows `i .. i + m`, columns `j .. j + n` (j a multiple of the panel width).
#[derive(Clone, Copy)]
struct Tile {
    m: usize,
    n: usize,
    k: usize,
    i: usize,
    j: usize,
}

thread_local! {
    /// Packing space of this thread: a block of A, a block of B.
    static SCRATCH: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

dispatch_products!(
    fn multiply(tile: Tile, a: Left<'_>, b: Right<'_>, ldb: usize, c: *mut f32, c_row: usize, accumulate: bool)
        = multiply_kernel
);

#[inline(always)]
unsafe fn multiply_kernel<S: Simd>(
    tile: Tile,
    a: Left<'_>,
    b: Right<'_>,
    ldb: usize,
    c: *mut f32,
    c_row: usize,
    accumulate: bool,
) {
    let Tile { m, n, k, i, j } = tile;
    let (width, precision) = (width::<S>(), b.precision());
    if k == 0 && !accumulate {
        for r in 0..m {
            // SAFETY: the tile lies inside C.
            unsafe { std::slice::from_raw_parts_mut(c.add(r * c_row), n).fill(0.0) };
        }
    }
    // Taken out, because a closure handed to `with` would be compiled without the path's instructions.
    let (mut a_block, mut b_block) = SCRATCH.take();
    // Blocks of about equal height, since a low one is dear; an even number of elements keeps the pairs together.
    let blocks = precision.steps(k).div_ceil(K_STEPS).max(1);
    let k_block = k.div_ceil(blocks).next_multiple_of(2);
    for k0 in (0..k).step_by(k_block.max(1)) {
        let kc = k_block.min(k - k0);
        let (steps, step0) = (precision.steps(kc), precision.steps(k0));
        let add = accumulate || k0 > 0;
        if let Right::Rows(rows, _) = b {
            pack_rows::<S>(&mut b_block, precision, rows, ldb, k0, kc, j, n);
        }
        for m0 in (0..m).step_by(M_BLOCK) {
            let mc = M_BLOCK.min(m - m0);
            let first = (i + m0) * a.row + k0 * a.step;
            // An f32 A that runs along k is read as it lies; other strides touch a line per step, so they are packed.
            let (a_ptr, a_row, a_step) = match precision {
                Precision::F32 if a.step == 1 => (a.data[first..].as_ptr(), a.row, 1),
                Precision::F32 => {
                    pack_left(&mut a_block, a, first, mc, kc);
                    (a_block.as_ptr(), 1, mc)
                }
                Precision::Bf16 if a.step == 1 => {
                    let row = narrow_rows::<S>(&mut a_block, a, first, mc, kc);
                    (a_block.as_ptr(), row, 1)
                }
                Precision::Bf16 => {
                    pair_left::<S>(&mut a_block, a, first, mc, kc);
                    (a_block.as_ptr(), 1, mc)
                }
            };
            for (p, j0) in (0..n).step_by(width).enumerate() {
                let panel = match b {
                    Right::Packed(packed) => {
                        let at = (j + j0) / width * precision.steps(k) + step0;
                        packed.panels[at * width..][..steps * width].as_ptr()
                    }
                    Right::Rows(..) => b_block[p * steps * width..][..steps * width].as_ptr(),
                };
                // SAFETY: the panel holds steps × width words, A's rows were checked by the caller, the tile lies in C.
                unsafe {
                    let strip = Strip {
                        rows: mc,
                        columns: width.min(n - j0),
                        k: steps,
                        precision,
                        a: a_ptr,
                        a_row,
                        a_step,
                        b: panel,
                        b_step: width,
                        c: c.add(m0 * c_row + j0),
                        c_row,
                        add,
                    };
                    column(S::ISA, strip);
                }
            }
        }
    }
    SCRATCH.set((a_block, b_block));
}

/// Copies `mc × kc` elements of A so that the rows of one step lie together.
#[inline(always)]
fn pack_left(block: &mut Vec<f32>, a: Left<'_>, first: usize, mc: usize, kc: usize) {
    block.resize(mc * kc, 0.0);
    for (kk, row) in block.chunks_exact_mut(mc).enumerate() {
        let source = &a.data[first + kk * a.step..];
        if a.row == 1 {
            row.copy_from_slice(&source[..mc]);
        } else {
            for (r, x) in row.iter_mut().enumerate() {
                *x = source[r * a.row];
            }
        }
    }
}

/// Rounds `mc` rows of `kc` elements of A, which run along k, to words; returns the distance between rows.
#[inline(always)]
fn narrow_rows<S: Simd>(block: &mut Vec<f32>, a: Left<'_>, first: usize, mc: usize, kc: usize) -> usize {
    let row = kc.div_ceil(LANES) * (LANES / 2);
    block.resize(block.len().max(mc * row), 0.0);
    for r in 0..mc {
        let source = &a.data[first + r * a.row..][..kc];
        let to = block[r * row..][..row].as_mut_ptr().cast::<u16>();
        for j in (0..kc).step_by(LANES) {
            // SAFETY: `kc - j` elements are left, and the row of words has room for whole vectors of 16 halves.
            unsafe { S::narrow(to.add(j), S::load_n(source.as_ptr().add(j), LANES.min(kc - j))) };
        }
    }
    row
}

/// Rounds `mc × kc` elements of A to pairs along k, so that the rows of one step lie together.
#[inline(always)]
fn pair_left<S: Simd>(block: &mut Vec<f32>, a: Left<'_>, first: usize, mc: usize, kc: usize) {
    let steps = Precision::Bf16.steps(kc);
    block.resize(block.len().max(mc * steps), 0.0);
    for (i, row) in block[..mc * steps].chunks_exact_mut(mc).enumerate() {
        let even = &a.data[first + 2 * i * a.step..];
        let odd = if 2 * i + 1 < kc { &a.data[first + (2 * i + 1) * a.step..] } else { &[] };
        if a.row == 1 {
            pair_rows::<S>(row, &even[..mc], if odd.is_empty() { odd } else { &odd[..mc] });
        } else {
            for (r, word) in row.iter_mut().enumerate() {
                *word = bf16::pair(even[r * a.row], odd.get(r * a.row).copied().unwrap_or(0.0));
            }
        }
    }
}

/// The words of two rows side by side; an empty `odd` is all zeros.
#[inline(always)]
fn pair_rows<S: Simd>(words: &mut [f32], even: &[f32], odd: &[f32]) {
    let n = words.len();
    assert!(even.len() == n && (odd.is_empty() || odd.len() == n));
    for j in (0..n).step_by(LANES) {
        let m = LANES.min(n - j);
        // SAFETY: lanes j .. j + m exist; of an empty row none is read.
        unsafe {
            let odd = S::load_n(odd.as_ptr().wrapping_add(j), if odd.is_empty() { 0 } else { m });
            S::store_n(words.as_mut_ptr().add(j), m, S::pair(S::load_n(even.as_ptr().add(j), m), odd));
        }
    }
}

/// Copies rows `k0 ..` and columns `j .. j + n` of a row-major B into panels; row by row, so that B is read as it lies.
#[inline(always)]
fn pack_rows<S: Simd>(
    block: &mut Vec<f32>,
    precision: Precision,
    b: &[f32],
    ldb: usize,
    k0: usize,
    kc: usize,
    j: usize,
    n: usize,
) {
    let (width, steps) = (width::<S>(), precision.steps(kc));
    let vectors = n.div_ceil(width) * S::NV;
    block.resize(block.len().max(vectors * LANES * steps), 0.0);
    for step in 0..steps {
        let row = |kk: usize| if kk < kc { &b[(k0 + kk) * ldb + j..][..n] } else { &[] };
        let (source, odd) = match precision {
            Precision::F32 => (row(step), row(kc)),
            Precision::Bf16 => (row(2 * step), row(2 * step + 1)),
        };
        for v in 0..vectors {
            let at = (v / S::NV * steps + step) * width + v % S::NV * LANES;
            let to = &mut block[at..at + LANES];
            let rest = n.saturating_sub(v * LANES).min(LANES);
            let from = |x: &[f32]| x.as_ptr().wrapping_add(v * LANES);
            // SAFETY: `rest` elements of the source are left from vector v on (of the odd row as many, or it is empty), and `to` holds a
            // whole vector. (A call of the C library's copy for so few would cost more than the product.)
            unsafe {
                let mut x = S::load_n(from(source), rest);
                if precision == Precision::Bf16 {
                    x = S::pair(x, S::load_n(from(odd), rest.min(odd.len())));
                }
                S::store(to.as_mut_ptr(), x);
            }
        }
    }
}

/// `rows × columns` of C from one panel of B: what the micro-kernels are asked for.
#[derive(Clone, Copy)]
pub(crate) struct Strip {
    pub rows: usize,
    pub columns: usize,
    /// Steps of a chain, each one word of A and of B.
    pub k: usize,
    /// What a word holds.
    pub precision: Precision,
    /// A, `[rows, k]`: word (r, kk) at `a[r * a_row + kk * a_step]`.
    pub a: *const f32,
    pub a_row: usize,
    pub a_step: usize,
    /// The panel: k rows of whole vectors at distance `b_step`.
    pub b: *const f32,
    pub b_step: usize,
    /// C at row distance `c_row`.
    pub c: *mut f32,
    pub c_row: usize,
    /// Whether the chains start from what C holds, or from 0.
    pub add: bool,
}

/// Computes a strip in register blocks of as many rows as fit. Not inlined, so that the many blocks exist once a path.
///
/// # Safety
/// The machine has the path `isa`; A, the panel and C hold what the strip says, and nobody else writes its part of C.
#[inline(always)]
pub(crate) unsafe fn column(isa: Isa, strip: Strip) {
    register_blocks(isa, strip);
}

dispatch_products!(
    #[inline(always)]
    fn register_blocks(strip: Strip) = register_blocks_kernel
);

#[inline(always)]
unsafe fn register_blocks_kernel<S: Simd>(mut strip: Strip) {
    macro_rules! blocks {
        ($($mr:literal),*) => { $(
            while S::MR >= $mr && strip.rows >= $mr {
                // SAFETY: the strip still has mr rows; the pointers move on by as many.
                unsafe {
                    match strip.precision {
                        Precision::F32 => block::<S, $mr, false>(&strip),
                        Precision::Bf16 => block::<S, $mr, true>(&strip),
                    }
                    strip.a = strip.a.add($mr * strip.a_row);
                    strip.c = strip.c.add($mr * strip.c_row);
                }
                strip.rows -= $mr;
            }
        )* };
    }
    blocks!(12, 8, 6, 4, 2, 1);
}

/// The first `MR` rows of a strip, with as many vectors as its columns take.
#[inline(always)]
unsafe fn block<S: Simd, const MR: usize, const BF16: bool>(strip: &Strip) {
    // SAFETY: see `column`.
    unsafe {
        match (S::NV, strip.columns) {
            (2, 32) => tile::<S, MR, 2, false, BF16>(strip),
            (2, 17..) => tile::<S, MR, 2, true, BF16>(strip),
            (_, 16) => tile::<S, MR, 1, false, BF16>(strip),
            _ => tile::<S, MR, 1, true, BF16>(strip),
        }
    }
}

/// One register block: `MR` rows by `NV` vectors, the last one partial if `PART`; k steps, each element its own chain.
#[inline(always)]
unsafe fn tile<S: Simd, const MR: usize, const NV: usize, const PART: bool, const BF16: bool>(strip: &Strip) {
    let Strip { columns, k, a, a_row, a_step, b, b_step, c, c_row, add, .. } = *strip;
    let last = columns - (NV - 1) * LANES;
    // SAFETY: see `column`.
    unsafe {
        let mut sums = [[S::splat(0.0); NV]; MR];
        if add {
            for r in 0..MR {
                for v in 0..NV {
                    let p = c.add(r * c_row + v * LANES);
                    let sum = if PART && v == NV - 1 { S::load_n(p, last) } else { S::load(p) };
                    sums[r][v] = if BF16 { S::flush(sum) } else { sum };
                }
            }
        }
        for kk in 0..k {
            let mut row = [S::splat(0.0); NV];
            for v in 0..NV {
                row[v] = S::load(b.add(kk * b_step + v * LANES));
            }
            for r in 0..MR {
                let x = S::splat(*a.add(r * a_row + kk * a_step));
                for v in 0..NV {
                    let sum = sums[r][v];
                    sums[r][v] = if BF16 { S::dot2(x, row[v], sum) } else { S::fma(x, row[v], sum) };
                }
            }
        }
        for r in 0..MR {
            for v in 0..NV {
                let p = c.add(r * c_row + v * LANES);
                if PART && v == NV - 1 { S::store_n(p, last, sums[r][v]) } else { S::store(p, sums[r][v]) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Key;

    fn matrix(seed: u64, len: usize) -> Vec<f32> {
        (0..len).map(|i| Key::new(seed).normal(i as u64) as f32).collect()
    }

    /// The definition: one chain of fused multiply-adds with k ascending; with bf16, of pairs.
    fn definition(precision: Precision, m: usize, n: usize, k: usize, a: Left<'_>, b: &[f32], c: &mut [f32]) {
        for i in 0..m {
            for j in 0..n {
                let sum = &mut c[i * n + j];
                let (x, y) = (|kk: usize| a.data[i * a.row + kk * a.step], |kk: usize| b[kk * n + j]);
                for kk in 0..precision.steps(k) {
                    match precision {
                        Precision::F32 => *sum = x(kk).mul_add(y(kk), *sum),
                        Precision::Bf16 if 2 * kk + 1 < k => {
                            let (even, odd) = (2 * kk, 2 * kk + 1);
                            *sum =
                                bf16::dot2(bf16::pair(x(even), x(odd)), bf16::pair(y(even), y(odd)), bf16::flush(*sum));
                        }
                        Precision::Bf16 => {
                            let (x, y) = (bf16::pair(x(2 * kk), 0.0), bf16::pair(y(2 * kk), 0.0));
                            *sum = bf16::dot2(x, y, bf16::flush(*sum));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn equals_its_definition_bit_for_bit_on_every_path_layout_and_thread_count() {
        let sizes = [
            (1, 1, 1),
            (1, 33, 31),
            (7, 16, 5),
            (12, 32, 300),
            (13, 47, 257),
            (64, 96, 96),
            (131, 70, 513),
            (3, 5, 0),
            (5, 19, 1601), // several blocks of k
        ];
        for precision in [Precision::F32, Precision::Bf16] {
            for (m, n, k) in sizes {
                let (x, w) = (matrix(1, m * k), matrix(2, n * k));
                let transpose = |w: &[f32], rows: usize, columns: usize| -> Vec<f32> {
                    (0..rows * columns).map(|i| w[i % rows * columns + i / rows]).collect()
                };
                let (xt, wt) = (transpose(&x, m, k), transpose(&w, n, k));
                let mut start = matrix(3, m * n);
                start[0] = 1e-40; // A denormal counts as zero in bf16.
                for accumulate in [false, true] {
                    let mut expected = if accumulate { start.clone() } else { vec![0.0; m * n] };
                    definition(precision, m, n, k, Left::rows(&x, k), &wt, &mut expected);
                    for isa in Isa::available() {
                        for threads in [1, 2, 3] {
                            let cpu = Cpu::with(isa, threads);
                            let mut packed = Packed::default();
                            packed.transposed(&cpu, precision, &w, n, k);
                            for a in [Left::rows(&x, k), Left::transposed(&xt, m)] {
                                for b in [Right::Packed(&packed), Right::Rows(&wt, precision)] {
                                    let mut c = if accumulate { start.clone() } else { vec![f32::NAN; m * n] };
                                    gemm(&cpu, m, n, k, a, b, &mut c, accumulate);
                                    let same = c.iter().zip(&expected).all(|(x, y)| x.to_bits() == y.to_bits());
                                    assert!(same, "{precision:?} {isa:?} {threads} threads, {m}×{n}×{k}, {accumulate}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
