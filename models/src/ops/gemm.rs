//! Matrix product: C = A·B or C += A·B in f32, in the one order of decision D3.
//!
//! **Math** an output element is one chain of fused multiply-adds with k ascending, started from 0 or from what C holds and
//! reloaded from C between blocks of k. Work is split over tiles of C only. So every instruction path, thread count and
//! batch size gives the same bits, and adding up a gradient over micro-batches equals adding it up at once.
//!
//! **Shapes** A is `[m, k]` with any strides, which covers x and xᵀ; B is `[k, n]`: packed once ([`Packed`]: weights, in
//! either orientation) or given row-major and packed block by block inside the product; C is `[m, n]` row-major.

use crate::device::Cpu;
use crate::simd::{Isa, LANES, Simd, dispatch};
use crate::threads::Shards;
use std::cell::RefCell;

/// Rows of k between two reloads of C: a B panel of this height stays in the first-level cache.
const K_BLOCK: usize = 256;
/// Rows of A that one pass over the panels of B works on; a multiple of every `Simd::MR`.
const M_BLOCK: usize = 96;

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

/// The right operand, in panels: panel p holds columns `p * width ..` as `[k, width]`, padded with zeros.
#[derive(Clone, Default)]
pub struct Packed {
    /// Rows of B.
    pub k: usize,
    /// Columns of B.
    pub n: usize,
    width: usize,
    panels: Vec<f32>,
}

/// The right operand of a product.
#[derive(Clone, Copy)]
pub enum Right<'a> {
    /// Packed before.
    Packed(&'a Packed),
    /// A row-major `[k, n]` matrix.
    Rows(&'a [f32]),
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
    pub fn transposed(&mut self, cpu: &Cpu, w: &[f32], out: usize, input: usize) {
        self.fill(cpu, w, input, out, 1, input);
    }

    /// Packs B = W for a weight `w` `[out, in]`: the product dy·W of its backward (k = out, n = in).
    pub fn straight(&mut self, cpu: &Cpu, w: &[f32], out: usize, input: usize) {
        self.fill(cpu, w, out, input, input, 1);
    }

    /// Packs element (k, n) = `w[k * step + n * column]`.
    fn fill(&mut self, cpu: &Cpu, w: &[f32], k: usize, n: usize, step: usize, column: usize) {
        assert_eq!(w.len(), k * n);
        let width = panel_width(cpu.isa);
        (self.k, self.n, self.width) = (k, n, width);
        self.panels.clear();
        self.panels.resize(n.div_ceil(width) * width * k, 0.0);
        let shards = Shards::new(&mut self.panels);
        cpu.pool.split(n.div_ceil(width), (1 << 14) / (k * width).max(1) + 1, 1, &|panels| {
            for p in panels {
                // SAFETY: each panel belongs to one piece of the split.
                let panel = unsafe { shards.part(p * k * width..(p + 1) * k * width) };
                let columns = width.min(n - p * width);
                for (kk, row) in panel.chunks_exact_mut(width).enumerate() {
                    for (j, x) in row[..columns].iter_mut().enumerate() {
                        *x = w[kk * step + (p * width + j) * column];
                    }
                }
            }
        });
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
        Right::Rows(data) => assert_eq!(data.len(), k * n, "B is [{k}, {n}]"),
    }
    let width = panel_width(cpu.isa);
    // Tiles: rows first, since a tile that keeps all columns packs B once; columns too when the rows are few.
    let work = |rows: usize, columns: usize| rows * columns * k;
    let target = 2 * cpu.pool.threads();
    let (mut rows, mut columns) = (m, n);
    if cpu.pool.threads() > 1 && work(m, n) > 1 << 17 {
        rows = m.div_ceil(target).next_multiple_of(12).clamp(12.min(m), m);
        if matches!(b, Right::Rows(_)) && n > m && n >= target * width {
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

dispatch!(
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
    let width = width::<S>();
    if k == 0 && !accumulate {
        for r in 0..m {
            // SAFETY: the tile lies inside C.
            unsafe { std::slice::from_raw_parts_mut(c.add(r * c_row), n).fill(0.0) };
        }
    }
    SCRATCH.with_borrow_mut(|(a_block, b_block)| {
        for k0 in (0..k).step_by(K_BLOCK) {
            let kc = K_BLOCK.min(k - k0);
            let add = accumulate || k0 > 0;
            if let Right::Rows(rows) = b {
                pack_rows::<S>(b_block, rows, ldb, k0, kc, j, n);
            }
            for m0 in (0..m).step_by(M_BLOCK) {
                let mc = M_BLOCK.min(m - m0);
                let first = (i + m0) * a.row + k0 * a.step;
                // A that runs along k is read as it lies; other strides touch a line per step, so they are packed.
                let (a_ptr, a_row, a_step) = if a.step == 1 {
                    (a.data[first..].as_ptr(), a.row, 1)
                } else {
                    pack_left(a_block, a, first, mc, kc);
                    (a_block.as_ptr(), 1, mc)
                };
                for (p, j0) in (0..n).step_by(width).enumerate() {
                    let panel = match b {
                        Right::Packed(packed) => {
                            packed.panels[((j + j0) / width * k + k0) * width..][..kc * width].as_ptr()
                        }
                        Right::Rows(_) => b_block[p * kc * width..][..kc * width].as_ptr(),
                    };
                    // SAFETY: the panel holds kc × width elements, A's rows were checked by the caller, the tile lies in C.
                    unsafe {
                        let strip = Strip {
                            rows: mc,
                            columns: width.min(n - j0),
                            k: kc,
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
    });
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

/// Copies rows `k0 ..` and columns `j .. j + n` of a row-major B into panels; row by row, so that B is read as it lies.
#[inline(always)]
fn pack_rows<S: Simd>(block: &mut Vec<f32>, b: &[f32], ldb: usize, k0: usize, kc: usize, j: usize, n: usize) {
    let width = width::<S>();
    let vectors = n.div_ceil(width) * S::NV;
    block.resize(vectors * LANES * kc, 0.0);
    for kk in 0..kc {
        let source = &b[(k0 + kk) * ldb + j..][..n];
        for v in 0..vectors {
            let at = (v / S::NV * kc + kk) * width + v % S::NV * LANES;
            let row = &mut block[at..at + LANES];
            let rest = n.saturating_sub(v * LANES).min(LANES);
            // SAFETY: `rest` elements of the source are left from vector v on, and `row` holds a whole vector. (A call of the C
            // library's copy for so few would cost more than the product.)
            unsafe { S::store(row.as_mut_ptr(), S::load_n(source.as_ptr().wrapping_add(v * LANES), rest)) };
        }
    }
}

/// `rows × columns` of C from one panel of B: what the micro-kernels are asked for.
#[derive(Clone, Copy)]
pub(crate) struct Strip {
    pub rows: usize,
    pub columns: usize,
    pub k: usize,
    /// A, `[rows, k]`: element (r, kk) at `a[r * a_row + kk * a_step]`.
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

dispatch!(
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
                    block::<S, $mr>(&strip);
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
unsafe fn block<S: Simd, const MR: usize>(strip: &Strip) {
    // SAFETY: see `column`.
    unsafe {
        match (S::NV, strip.columns) {
            (2, 32) => tile::<S, MR, 2, false>(strip),
            (2, 17..) => tile::<S, MR, 2, true>(strip),
            (_, 16) => tile::<S, MR, 1, false>(strip),
            _ => tile::<S, MR, 1, true>(strip),
        }
    }
}

/// One register block: `MR` rows by `NV` vectors, the last one partial if `PART`; k steps, each element its own chain.
#[inline(always)]
unsafe fn tile<S: Simd, const MR: usize, const NV: usize, const PART: bool>(strip: &Strip) {
    let Strip { columns, k, a, a_row, a_step, b, b_step, c, c_row, add, .. } = *strip;
    let last = columns - (NV - 1) * LANES;
    // SAFETY: see `column`.
    unsafe {
        let mut sums = [[S::splat(0.0); NV]; MR];
        if add {
            for r in 0..MR {
                for v in 0..NV {
                    let p = c.add(r * c_row + v * LANES);
                    sums[r][v] = if PART && v == NV - 1 { S::load_n(p, last) } else { S::load(p) };
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
                    sums[r][v] = S::fma(x, row[v], sums[r][v]);
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

    /// The definition: one chain of fused multiply-adds with k ascending.
    fn definition(m: usize, n: usize, k: usize, a: Left<'_>, b: &[f32], c: &mut [f32]) {
        for i in 0..m {
            for j in 0..n {
                let x = &mut c[i * n + j];
                for kk in 0..k {
                    *x = a.data[i * a.row + kk * a.step].mul_add(b[kk * n + j], *x);
                }
            }
        }
    }

    #[test]
    fn equals_its_definition_bit_for_bit_on_every_path_layout_and_thread_count() {
        let sizes =
            [(1, 1, 1), (1, 33, 31), (7, 16, 5), (12, 32, 300), (13, 47, 257), (64, 96, 96), (131, 70, 513), (3, 5, 0)];
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                let cpu = Cpu::with(isa, threads);
                for (m, n, k) in sizes {
                    let (x, w) = (matrix(1, m * k), matrix(2, n * k));
                    let transpose = |w: &[f32], rows: usize, columns: usize| -> Vec<f32> {
                        (0..rows * columns).map(|i| w[i % rows * columns + i / rows]).collect()
                    };
                    let (xt, wt) = (transpose(&x, m, k), transpose(&w, n, k));
                    let start = matrix(3, m * n);
                    for accumulate in [false, true] {
                        let initial = if accumulate { start.clone() } else { vec![0.0; m * n] };
                        let mut expected = initial.clone();
                        definition(m, n, k, Left::rows(&x, k), &wt, &mut expected);
                        let mut packed = Packed::default();
                        packed.transposed(&cpu, &w, n, k);
                        let mut straight = Packed::default();
                        straight.straight(&cpu, &wt, k, n);
                        let lefts = [Left::rows(&x, k), Left::transposed(&xt, m)];
                        for a in lefts {
                            for b in [Right::Packed(&packed), Right::Packed(&straight), Right::Rows(&wt)] {
                                let mut c = if accumulate { start.clone() } else { vec![f32::NAN; m * n] };
                                gemm(&cpu, m, n, k, a, b, &mut c, accumulate);
                                let same = c.iter().zip(&expected).all(|(x, y)| x.to_bits() == y.to_bits());
                                assert!(same, "{isa:?} {threads} threads, {m}×{n}×{k}, accumulate {accumulate}");
                            }
                        }
                    }
                }
            }
        }
    }
}
