//! Matrix products by cuBLASLt, so that a row does not depend on how many rows there are.
//!
//! Left to itself the library chooses for each number of rows how to sum. Here one algorithm is pinned for each product: its shape without the
//! number of rows, its transposes and its types. It is chosen once, at [`PINNED_ROWS`] rows, among those that sum in one piece (no split of k,
//! no reduction), and used for every number of rows. Where there is none, our own kernel multiplies.

use super::{Kind, Matmul};
use crate::CudaError;
use cudarc::cublaslt::sys;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

/// Rows for which an algorithm is chosen: between the few of decoding and the many of training. To be measured.
const PINNED_ROWS: usize = 256;

/// Numbers of rows for which a chosen algorithm must do as well.
const OTHER_ROWS: [usize; 4] = [1, 7, 64, 8192];

/// Memory that algorithms may work in.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// Addresses and rows of matrices are multiples of this, so that it need not be looked at in choosing.
const ALIGNMENT_BYTES: usize = 16;

/// How many algorithms the library proposes, best first.
const CANDIDATES: usize = 32;

/// What an algorithm is pinned for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Key {
    m: usize,
    /// n, or k where that is not the number of rows.
    inner: usize,
    transpose_a: bool,
    transpose_b: bool,
    input: Kind,
    output: Kind,
}

impl Key {
    /// The number of rows is n; in a weight's gradient, where B is transposed, it is k, and a sum runs over the rows.
    fn of(p: &Matmul) -> Key {
        let inner = if p.transpose_b { p.n } else { p.k };
        Key { m: p.m, inner, transpose_a: p.transpose_a, transpose_b: p.transpose_b, input: p.input, output: p.output }
    }

    /// The product with so many rows and nothing between columns.
    fn with_rows(&self, rows: usize) -> Matmul {
        let (n, k) = if self.transpose_b { (self.inner, rows) } else { (rows, self.inner) };
        Matmul {
            m: self.m,
            n,
            k,
            transpose_a: self.transpose_a,
            transpose_b: self.transpose_b,
            a: (0, if self.transpose_a { k } else { self.m }),
            b: (0, if self.transpose_b { n } else { k }),
            c: (0, self.m),
            z: 0,
            input: self.input,
            output: self.output,
            alpha: 1.0,
            beta: 0.0,
        }
    }
}

/// Stored rows, stored columns and distance between columns of A, B and C.
fn stored(p: &Matmul) -> [(usize, usize, usize); 3] {
    let turn = |transposed, rows, columns| if transposed { (columns, rows) } else { (rows, columns) };
    let ((a_rows, a_columns), (b_rows, b_columns)) = (turn(p.transpose_a, p.m, p.k), turn(p.transpose_b, p.k, p.n));
    [(a_rows, a_columns, p.a.1), (b_rows, b_columns, p.b.1), (p.m, p.n, p.c.1)]
}

/// Whether every address and every column begins at a multiple of [`ALIGNMENT_BYTES`].
fn is_aligned(p: &Matmul) -> bool {
    let bytes = |kind| if kind == Kind::F32 { 4 } else { 2 };
    let aligned = |(address, distance): (u64, usize), kind| {
        (address as usize).is_multiple_of(ALIGNMENT_BYTES) && (distance * bytes(kind)).is_multiple_of(ALIGNMENT_BYTES)
    };
    aligned(p.a, p.input) && aligned(p.b, p.input) && aligned(p.c, p.output) && aligned((p.z, p.c.1), p.output)
}

/// The library on one device.
pub struct CublasLt {
    handle: sys::cublasLtHandle_t,
    /// Device memory of [`WORKSPACE_BYTES`].
    workspace: u64,
    /// Few, so they are searched in a row. `None` where no algorithm will do.
    pinned: Vec<(Key, Option<sys::cublasLtMatmulAlgo_t>)>,
}

// SAFETY: a handle may be used by any thread, by one at a time as `&mut self` sees to.
unsafe impl Send for CublasLt {}

impl CublasLt {
    /// The library, loaded before, on the current context, with a workspace that outlives it.
    ///
    /// **Errors** [`CudaError::Call`].
    pub fn new(workspace: u64) -> Result<CublasLt, CudaError> {
        let mut handle = null_mut();
        // SAFETY: the handle is a local.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&mut handle) })?;
        Ok(CublasLt { handle, workspace, pinned: Vec::new() })
    }

    /// The device memory that it was made with.
    pub fn workspace(&self) -> u64 {
        self.workspace
    }

    /// Its version, `13.0.2`.
    pub fn version() -> String {
        // SAFETY: the library is loaded.
        let version = unsafe { sys::cublasLtGetVersion() };
        // 120803 is 12.8.3, 130002 is 13.0.2.
        format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }

    /// Starts a product on the stream; false where our own kernel must do it.
    ///
    /// # Safety
    /// The matrices are memory of the current context's device; the stream is its.
    ///
    /// **Errors** [`CudaError::Call`].
    pub unsafe fn multiply(&mut self, p: &Matmul, stream: sys::cudaStream_t) -> Result<bool, CudaError> {
        if p.m == 0 || p.n == 0 || p.k == 0 || !is_aligned(p) {
            return Ok(false);
        }
        let Some(algorithm) = self.pinned(Key::of(p))? else { return Ok(false) };
        let call = Description::new(p)?;
        let [a, b, c, z] = [p.a.0, p.b.0, p.c.0, p.z].map(|address| address as usize as *mut c_void);
        // SAFETY: the descriptions live through the call; alpha and beta are read during it, as the pointer mode "host" says; the
        // matrices and the workspace are the caller's promise; what is read and what is written may be one place.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                call.operation,
                (&raw const p.alpha).cast(),
                a,
                call.a,
                b,
                call.b,
                (&raw const p.beta).cast(),
                z,
                call.c,
                c,
                call.c,
                &algorithm,
                self.workspace as usize as *mut c_void,
                WORKSPACE_BYTES,
                stream,
            )
        };
        check("cublasLtMatmul", status)?;
        Ok(true)
    }

    fn pinned(&mut self, key: Key) -> Result<Option<sys::cublasLtMatmulAlgo_t>, CudaError> {
        if let Some((_, algorithm)) = self.pinned.iter().find(|(other, _)| *other == key) {
            return Ok(*algorithm);
        }
        let algorithm = self.choose(&key)?;
        self.pinned.push((key, algorithm));
        Ok(algorithm)
    }

    /// The first proposed algorithm that sums in one piece and does for every number of rows.
    fn choose(&self, key: &Key) -> Result<Option<sys::cublasLtMatmulAlgo_t>, CudaError> {
        let call = Description::new(&key.with_rows(PINNED_ROWS))?;
        let preference = Preference::new()?;
        // SAFETY: a plain structure of numbers, for which zeros are good.
        let mut proposed: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        // SAFETY: all descriptions live; the array has as many places as are asked for.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                call.operation,
                call.a,
                call.b,
                call.c,
                call.c,
                preference.0,
                CANDIDATES as i32,
                proposed.as_mut_ptr(),
                &mut count,
            )
        };
        // That it knows no algorithm is an answer, not a failure.
        if status == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(None);
        }
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        let good = |result: &&sys::cublasLtMatmulHeuristicResult_t| {
            result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && sums_in_one_piece(&result.algo)
        };
        for result in proposed[..(count.max(0) as usize).min(CANDIDATES)].iter().filter(good) {
            let mut does = true;
            for rows in OTHER_ROWS {
                does &= self.does(&result.algo, &key.with_rows(rows))?;
            }
            if does {
                return Ok(Some(result.algo));
            }
        }
        Ok(None)
    }

    /// Whether an algorithm can do a product in the workspace that there is.
    fn does(&self, algorithm: &sys::cublasLtMatmulAlgo_t, p: &Matmul) -> Result<bool, CudaError> {
        let call = Description::new(p)?;
        // SAFETY: as in `choose`.
        let (status, result) = unsafe {
            let mut result: sys::cublasLtMatmulHeuristicResult_t = std::mem::zeroed();
            let status = sys::cublasLtMatmulAlgoCheck(
                self.handle,
                call.operation,
                call.a,
                call.b,
                call.c,
                call.c,
                algorithm,
                &mut result,
            );
            (status, result)
        };
        Ok(status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && result.workspaceSize <= WORKSPACE_BYTES)
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

/// Whether an algorithm neither splits k nor adds parts up afterwards.
fn sums_in_one_piece(algorithm: &sys::cublasLtMatmulAlgo_t) -> bool {
    use sys::cublasLtMatmulAlgoConfigAttributes_t as Attribute;
    let get = |attribute| {
        let (mut value, mut written) = (-1_i32, 0);
        // SAFETY: both attributes are 32 bits wide.
        let status = unsafe {
            sys::cublasLtMatmulAlgoConfigGetAttribute(
                algorithm,
                attribute,
                (&raw mut value).cast(),
                size_of::<i32>(),
                &mut written,
            )
        };
        (status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && written == size_of::<i32>()).then_some(value)
    };
    get(Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM).is_some_and(|parts| parts <= 1)
        && get(Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) == Some(0)
}

/// A product as the library is told of it; what it reads as C and writes as D has one layout.
struct Description {
    operation: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    c: sys::cublasLtMatrixLayout_t,
}

impl Description {
    /// Sums are f32 in full precision: no TF32.
    fn new(p: &Matmul) -> Result<Description, CudaError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let mut it = Description { operation: null_mut(), a: null_mut(), b: null_mut(), c: null_mut() };
        let kind = |kind| match kind {
            Kind::F32 => sys::cudaDataType_t::CUDA_R_32F,
            Kind::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        };
        let [a, b, c] = stored(p);
        // SAFETY: every pointer is to a field or a local; transposes are 32 bits wide.
        unsafe {
            let (compute, scale) = (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F);
            check("cublasLtMatmulDescCreate", sys::cublasLtMatmulDescCreate(&mut it.operation, compute, scale))?;
            for (attribute, transposed) in [
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a),
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b),
            ] {
                // CUBLAS_OP_N is 0 and CUBLAS_OP_T is 1.
                let op = i32::from(transposed);
                let status = sys::cublasLtMatmulDescSetAttribute(
                    it.operation,
                    attribute,
                    (&raw const op).cast(),
                    size_of::<i32>(),
                );
                check("cublasLtMatmulDescSetAttribute", status)?;
            }
            for (layout, (rows, columns, distance), kind) in
                [(&mut it.a, a, kind(p.input)), (&mut it.b, b, kind(p.input)), (&mut it.c, c, kind(p.output))]
            {
                let status =
                    sys::cublasLtMatrixLayoutCreate(layout, kind, rows as u64, columns as u64, distance as i64);
                check("cublasLtMatrixLayoutCreate", status)?;
            }
        }
        Ok(it)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: what was created is destroyed once.
        unsafe {
            for layout in [self.a, self.b, self.c].into_iter().filter(|layout| !layout.is_null()) {
                sys::cublasLtMatrixLayoutDestroy(layout);
            }
            if !self.operation.is_null() {
                sys::cublasLtMatmulDescDestroy(self.operation);
            }
        }
    }
}

/// What the library may propose.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Preference, CudaError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let mut it = Preference(null_mut());
        // SAFETY: the pointer is to a field.
        check("cublasLtMatmulPreferenceCreate", unsafe { sys::cublasLtMatmulPreferenceCreate(&mut it.0) })?;
        it.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(WORKSPACE_BYTES as u64))?;
        it.set(
            Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            &(sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE as u32),
        )?;
        for attribute in [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            it.set(attribute, &(ALIGNMENT_BYTES as u32))?;
        }
        Ok(it)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<(), CudaError> {
        // SAFETY: the library copies as many bytes as it is told, and refuses a size that is not the attribute's.
        let status = unsafe {
            sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, (&raw const *value).cast(), size_of::<T>())
        };
        check("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: created once, destroyed once.
            unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
        }
    }
}

fn check(call: &str, status: sys::cublasStatus_t) -> Result<(), CudaError> {
    if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: the library answers every number with a text of its own that lasts.
    let reason = unsafe { CStr::from_ptr(sys::cublasLtGetStatusString(status)) }.to_string_lossy().into_owned();
    Err(CudaError::Call { call: call.to_string(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// y = x·Wᵀ, dx = dy·W and dW = dyᵀ·x as `gemm` asks for them, for x [rows, 24] and W [40, 24].
    fn products(rows: usize) -> [Matmul; 3] {
        let (out, input) = (40, 24);
        let plain = Matmul {
            m: 0,
            n: rows,
            k: 0,
            transpose_a: false,
            transpose_b: false,
            a: (0, input),
            b: (0, 0),
            c: (0, 0),
            z: 0,
            input: Kind::F32,
            output: Kind::F32,
            alpha: 1.0,
            beta: 0.0,
        };
        [
            Matmul { m: out, k: input, transpose_a: true, b: (0, input), c: (0, out), ..plain },
            Matmul { m: input, k: out, b: (0, out), c: (0, input), ..plain },
            Matmul { m: input, n: out, k: rows, transpose_b: true, b: (0, out), c: (0, input), ..plain },
        ]
    }

    #[test]
    fn what_is_pinned_does_not_know_the_number_of_rows() {
        for (few, many) in products(3).iter().zip(&products(4096)) {
            assert_eq!(Key::of(few), Key::of(many));
            assert_eq!(Key::of(few).with_rows(4096), *many);
        }
        let keys = products(5).map(|p| Key::of(&p));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
        // A square weight: only the transposes tell the three apart.
        assert_eq!((keys[0].m, keys[0].inner), (40, 24));
        assert_eq!((keys[1].m, keys[1].inner), (24, 40));
        assert_eq!((keys[2].m, keys[2].inner), (24, 40));
    }

    /// What is stored, read column-major as the library reads it, is what rows mean to us.
    #[test]
    fn stored_shapes_are_the_row_major_matrices_transposed() {
        let (rows, out, input) = (3, 40, 24);
        // Row-major [r, c] is column-major [c, r] at distance c.
        let as_stored = |r: usize, c: usize| (c, r, c);
        let [y, dx, dw] = products(rows);
        assert_eq!(stored(&y), [as_stored(out, input), as_stored(rows, input), as_stored(rows, out)]);
        assert_eq!(stored(&dx), [as_stored(out, input), as_stored(rows, out), as_stored(rows, input)]);
        assert_eq!(stored(&dw), [as_stored(rows, input), as_stored(rows, out), as_stored(out, input)]);
    }

    #[test]
    fn only_aligned_matrices_go_to_the_library() {
        let [y, _, _] = products(3);
        assert!(is_aligned(&y));
        assert!(!is_aligned(&Matmul { a: (8, 24), ..y }) && !is_aligned(&Matmul { c: (0, 41), ..y }));
        assert!(is_aligned(&Matmul { z: 16, ..y }) && !is_aligned(&Matmul { z: 8, ..y }));
        assert!(
            is_aligned(&Matmul { b: (32, 40), ..y }) && !is_aligned(&Matmul { b: (0, 36), input: Kind::Bf16, ..y })
        );
        assert!(is_aligned(&Matmul { b: (0, 40), input: Kind::Bf16, ..y }));
    }
}
