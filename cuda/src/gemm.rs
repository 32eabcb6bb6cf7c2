//! The matrix product, row-major, by cuBLASLt or by our own kernel (`gemm.cu`): the one place that swaps A and B.
//!
//! **Math** C = α · op(A) · op(B), C += op(A) · op(B) or C = Z + op(A) · op(B): an output element is one chain over k started from 0 or from
//! what C or Z holds.
//! Both ways a row of C does not depend on the number of rows: our kernel by its making, the library by an algorithm that is pinned for
//! each (n, k, layout).
//!
//! The CPU's products are `ragen_models::ops::gemm` and `linear`.

use crate::buffer::{Element, View, ViewMut};
use crate::driver::{Arg, Kind, Matmul, Source};
use crate::kernel::{Kernel, Shape, Work, args};
use crate::{CudaError, Gpu};

static SOURCE: Source = Source { file: "gemm.cu", text: include_str!("../kernels/gemm.cu") };

/// Side of a tile of C, and of the tiles for few rows.
const TILE: usize = 128;
const FEW_ROWS: usize = 16;
const FEW_COLUMNS: usize = 64;

/// Rows up to which the small tiles are worth it.
const FEW: usize = 64;

/// The kernels of `gemm.cu`.
pub const KERNELS: &[Kernel] = &[GEMM_NT, GEMM_NT_FEW, GEMM_NN, GEMM_TN];

const GEMM_NT: Kernel = Kernel {
    shared_bytes: |s| shared_bytes(s.element_bytes, [TILE, 32], [TILE, 32]),
    work: |s| work(s, s.rows, s.element_bytes),
    ..Kernel::new("gemm_nt", &SOURCE, 256)
};
const GEMM_NT_FEW: Kernel = Kernel {
    shared_bytes: |s| shared_bytes(s.element_bytes, [FEW_ROWS, 32], [FEW_COLUMNS, 32]),
    work: |s| work(s, FEW, s.element_bytes),
    ..Kernel::new("gemm_nt_few", &SOURCE, 128)
};
const GEMM_NN: Kernel = Kernel {
    shared_bytes: |s| shared_bytes(s.element_bytes, [TILE, 32], [32, TILE]),
    work: |s| work(s, s.rows, s.element_bytes),
    ..Kernel::new("gemm_nn", &SOURCE, 256)
};
const GEMM_TN: Kernel = Kernel {
    shared_bytes: |s| shared_bytes(s.element_bytes, [32, TILE], [32, TILE]),
    // The gradient of a weight is f32, and is added to.
    work: |s| work(s, s.rows, 8),
    ..Kernel::new("gemm_tn", &SOURCE, 256)
};

/// Bytes of the pieces of A and B (rows, columns each, as they are stored) of all stages: rows are padded by 16 bytes.
fn shared_bytes(element_bytes: usize, a: [usize; 2], b: [usize; 2]) -> usize {
    let stages = if element_bytes == 2 { 3 } else { 2 };
    let piece = |[rows, columns]: [usize; 2]| rows * (columns * element_bytes + 16);
    stages * (piece(a) + piece(b))
}

/// The product with the weight of gate and up, as it goes forward.
fn work(s: &Shape, rows: usize, c_bytes: usize) -> Work {
    let (m, n, k) = (rows as f64, 2.0 * s.d_ff as f64, s.d_model as f64);
    Work { bytes: (m * k + k * n) * s.element_bytes as f64 + m * n * c_bytes as f64, flops: 2.0 * m * n * k }
}

/// A matrix in rows, as an operand.
#[derive(Debug)]
pub struct Matrix<'a, E> {
    data: View<'a, E>,
    /// Distance between stored rows.
    row: usize,
    transposed: bool,
}

impl<E> Clone for Matrix<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Matrix<'_, E> {}

impl<'a, E: Element> Matrix<'a, E> {
    /// Rows stored one after the other, `row` elements apart.
    pub fn rows(data: View<'a, E>, row: usize) -> Self {
        Matrix { data, row, transposed: false }
    }

    /// The transpose of what is stored.
    pub fn transposed(data: View<'a, E>, row: usize) -> Self {
        Matrix { data, row, transposed: true }
    }

    /// Whether `rows` x `columns` of it exist.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        let (rows, columns) = if self.transposed { (columns, rows) } else { (rows, columns) };
        rows == 0 || columns <= self.row && self.data.len() >= (rows - 1) * self.row + columns
    }
}

/// A matrix in rows, to be written; what lies between its rows stays.
#[derive(Debug)]
pub struct MatrixMut<'a, C> {
    data: ViewMut<'a, C>,
    /// Distance between rows.
    row: usize,
}

impl<'a, C: Element> MatrixMut<'a, C> {
    /// Rows stored one after the other, `row` elements apart.
    pub fn rows(data: ViewMut<'a, C>, row: usize) -> Self {
        MatrixMut { data, row }
    }

    /// Whether `rows` x `columns` of it exist.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        rows == 0 || columns <= self.row && self.data.len() >= (rows - 1) * self.row + columns
    }
}

/// What a product does to C.
#[derive(Clone, Copy, Debug)]
pub enum Write<'z, C> {
    /// C = A · B times this number.
    Scaled(f32),
    /// C += A · B.
    Add,
    /// C = Z + A · B, as if Z had been copied into C before `Add`: the rows of this Z lie as far apart as those of C.
    Onto(View<'z, C>),
}

impl<C> Write<'_, C> {
    /// C = A · B, or C += with `accumulate`.
    fn of(accumulate: bool) -> Self {
        if accumulate { Write::Add } else { Write::Scaled(1.0) }
    }
}

/// Which code multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Products {
    /// cuBLASLt where it is there, our own kernel elsewhere.
    #[default]
    Library,
    /// Our own kernel.
    Invariant,
}

/// C `[m, n]` = α · A `[m, k]` · B `[k, n]`, C += A · B, or C = Z + A · B.
///
/// C is f32 or what A and B are. **Panics** when a matrix is smaller than its shape.
///
/// **Errors** those of a launch.
pub fn gemm<E: Element, C: Element>(
    gpu: &Gpu,
    products: Products,
    [m, n, k]: [usize; 3],
    a: Matrix<'_, E>,
    b: Matrix<'_, E>,
    c: MatrixMut<'_, C>,
    write: Write<'_, C>,
) -> Result<(), CudaError> {
    let (alpha, z) = match write {
        Write::Scaled(alpha) => (alpha, None),
        Write::Add => (1.0, Some(c.data.address)),
        Write::Onto(z) => {
            assert!(m == 0 || z.len() >= (m - 1) * c.row + n, "what a product of {m} x {n} is added to is too small");
            (1.0, Some(z.address))
        }
    };
    let hold = a.holds(m, k) && b.holds(k, n) && c.holds(m, n);
    assert!(hold, "a matrix of a product of {m} x {n} x {k} is too small");
    assert!(C::KIND == E::KIND || C::KIND == Kind::F32);
    if m == 0 || n == 0 {
        return Ok(());
    }
    if products == Products::Library {
        // A column-major library sees every row-major matrix transposed, so it is asked for Cᵀ = Bᵀ · Aᵀ.
        let product = Matmul {
            m: n,
            n: m,
            k,
            transpose_a: b.transposed,
            transpose_b: a.transposed,
            a: (b.data.address, b.row),
            b: (a.data.address, a.row),
            c: (c.data.address, c.row),
            z: z.unwrap_or(c.data.address),
            input: E::KIND,
            output: C::KIND,
            alpha,
            beta: if z.is_some() { 1.0 } else { 0.0 },
        };
        // SAFETY: the shapes were checked above.
        if unsafe { gpu.matmul(&product)? } {
            return Ok(());
        }
    }
    let (kernel, [tile_m, tile_n], a_piece, b_piece) = match (a.transposed, b.transposed) {
        (false, true) if m <= FEW => (&GEMM_NT_FEW, [FEW_ROWS, FEW_COLUMNS], [FEW_ROWS, 32], [FEW_COLUMNS, 32]),
        (false, true) => (&GEMM_NT, [TILE; 2], [TILE, 32], [TILE, 32]),
        (false, false) => (&GEMM_NN, [TILE; 2], [TILE, 32], [32, TILE]),
        (true, false) => (&GEMM_TN, [TILE; 2], [32, TILE], [32, TILE]),
        (true, true) => panic!("no product has both operands transposed"),
    };
    let shared = shared_bytes(size_of::<E>(), a_piece, b_piece);
    // The kernel has a pointer for each type that C and Z can have, null for the other.
    let pointers = |at: u64| if C::KIND == E::KIND { [at, 0] } else { [0, at] }.map(Arg::Address);
    let ([c_elements, c_floats], [z_elements, z_floats]) = (pointers(c.data.address), pointers(z.unwrap_or(0)));
    let args = args![c_elements, c_floats, z_elements, z_floats, a.data, b.data, m, n, k, a.row, b.row, c.row, alpha];
    let grid = [n.div_ceil(tile_n), m.div_ceil(tile_m), 1];
    // SAFETY: the shapes were checked above.
    unsafe { gpu.launch(kernel, kernel.unit::<E>(), grid, shared, args) }
}

/// y = x·Wᵀ, y += x·Wᵀ (for a bias that y already holds), or y = z + x·Wᵀ (for a residual), as `write` says.
///
/// **Shapes** x `[rows, input]`, W `[out, input]`, y `[rows, out]`, in E or (logits) in f32.
///
/// **Errors** those of a launch.
pub fn linear_fwd<E: Element, C: Element>(
    gpu: &Gpu,
    products: Products,
    y: ViewMut<'_, C>,
    x: View<'_, E>,
    w: View<'_, E>,
    input: usize,
    write: Write<'_, C>,
) -> Result<(), CudaError> {
    let (rows, out) = (x.len() / input, w.len() / input);
    assert!(x.len() == rows * input && w.len() == out * input && y.len() == rows * out);
    let (x, w, y) = (Matrix::rows(x, input), Matrix::transposed(w, input), MatrixMut::rows(y, out));
    gemm(gpu, products, [rows, out, input], x, w, y, write)
}

/// dx += dy·W, or dx = dy·W without `accumulate`; shapes as in [`linear_fwd`].
///
/// **Errors** those of a launch.
pub fn linear_bwd_input<E: Element, C: Element>(
    gpu: &Gpu,
    products: Products,
    dx: ViewMut<'_, C>,
    dy: View<'_, E>,
    w: View<'_, E>,
    input: usize,
    accumulate: bool,
) -> Result<(), CudaError> {
    let out = w.len() / input;
    let rows = dy.len() / out;
    assert!(w.len() == out * input && dy.len() == rows * out && dx.len() == rows * input);
    let (dy, w, dx) = (Matrix::rows(dy, out), Matrix::rows(w, input), MatrixMut::rows(dx, input));
    gemm(gpu, products, [rows, input, out], dy, w, dx, Write::of(accumulate))
}

/// dW += dyᵀ·x in f32, each element one chain over the rows in their order; shapes as in [`linear_fwd`].
///
/// **Errors** those of a launch.
pub fn linear_bwd_weight<E: Element>(
    gpu: &Gpu,
    products: Products,
    dw: ViewMut<'_, f32>,
    dy: View<'_, E>,
    x: View<'_, E>,
    input: usize,
) -> Result<(), CudaError> {
    let out = dw.len() / input;
    let rows = x.len() / input;
    assert!(dw.len() == out * input && x.len() == rows * input && dy.len() == rows * out);
    let (dy, x, dw) = (Matrix::transposed(dy, out), Matrix::rows(x, input), MatrixMut::rows(dw, input));
    gemm(gpu, products, [out, input, rows], dy, x, dw, Write::Add)
}
