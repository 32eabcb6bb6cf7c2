//! AdamW and the gradients' norm: launchers of `adamw.cu`. The CPU's are `ragen_models::optim`.

use super::{Kernel, Work, args};
use crate::buffer::{Element, View, ViewMut};
use crate::driver::Source;
use crate::{CudaError, Gpu};

static SOURCE: Source = Source { file: "adamw.cu", text: include_str!("../../kernels/adamw.cu") };

const THREADS: u32 = 256;

/// Gradients whose squares are summed by one block.
const PIECE: usize = 16_384;

/// Parameters of a thread in a step.
const EACH: usize = 4;

/// The kernels of `adamw.cu`.
pub const KERNELS: &[Kernel] = &[NORM_PIECES, NORM_TOTAL, ADAMW_STEP];

const SHARED_BYTES: usize = THREADS as usize / 32 * size_of::<f64>();

const NORM_PIECES: Kernel = Kernel {
    work: |s| Work { bytes: 4.0 * s.parameters as f64, flops: 2.0 * s.parameters as f64 },
    shared_bytes: |_| SHARED_BYTES,
    ..Kernel::new("norm_pieces", &SOURCE, THREADS)
};
const NORM_TOTAL: Kernel = Kernel {
    work: |s| Work { bytes: 8.0 * pieces(s.parameters) as f64, flops: pieces(s.parameters) as f64 },
    shared_bytes: |_| SHARED_BYTES,
    ..Kernel::new("norm_total", &SOURCE, THREADS)
};
const ADAMW_STEP: Kernel = Kernel {
    work: |s| {
        // In f32 the master is what products read.
        let copy_bytes = if s.element_bytes == 4 { 0 } else { s.element_bytes };
        Work { bytes: (s.parameters * (28 + copy_bytes)) as f64, flops: 14.0 * s.parameters as f64 }
    },
    ..Kernel::new("adamw_step", &SOURCE, THREADS)
};

/// Pieces that the norm of `n` gradients is summed from: the length of its workspace.
pub fn pieces(n: usize) -> usize {
    n.div_ceil(PIECE)
}

/// norm\[0\] = the Euclidean norm of all gradients, in f64; not finite if and only if an element is not. It stays on the device, where
/// [`adamw_step`] reads it. Workspace at least [`pieces`] of the gradients' number.
///
/// **Errors** those of a launch.
pub fn grad_norm(
    gpu: &Gpu,
    norm: ViewMut<'_, f64>,
    grads: View<'_, f32>,
    mut workspace: ViewMut<'_, f64>,
) -> Result<(), CudaError> {
    let (n, count) = (grads.len(), pieces(grads.len()));
    assert!(norm.len() == 1 && workspace.len() >= count);
    let args = args![workspace.reborrow(), grads, n as u64];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&NORM_PIECES, NORM_PIECES.unit::<f32>(), [count, 1, 1], SHARED_BYTES, args)? };
    let args = args![norm, workspace.view(), count];
    // SAFETY: the workspace holds `count` pieces.
    unsafe { gpu.launch(&NORM_TOTAL, NORM_TOTAL.unit::<f32>(), [1, 1, 1], SHARED_BYTES, args) }
}

/// The numbers of one step, the same for every parameter.
#[derive(Clone, Copy, Debug)]
pub struct Coefficients {
    /// Largest gradient norm; below 0 does not clip.
    pub clip_norm: f64,
    /// β₁ and β₂.
    pub beta1: f32,
    /// See `beta1`.
    pub beta2: f32,
    /// 1 − β₁ and 1 − β₂.
    pub gain1: f32,
    /// See `gain1`.
    pub gain2: f32,
    /// 1 / √(1 − β₂ᵗ).
    pub root_scale: f32,
    /// ε.
    pub eps: f32,
    /// 1 − lr · decay.
    pub keep: f32,
    /// lr / (1 − β₁ᵗ).
    pub rate: f32,
}

/// One step of AdamW, clipped by the norm that [`grad_norm`] left on the device; a norm that is not finite changes nothing.
///
/// **Shapes** all of one length. `weights` is the copy in E that products read; `None` in f32, where they read the master.
///
/// **Source** Loshchilov and Hutter, *Decoupled weight decay regularization*, 2019, algorithm 2.
///
/// **Errors** those of a launch.
pub fn adamw_step<E: Element>(
    gpu: &Gpu,
    weights: Option<ViewMut<'_, E>>,
    master: ViewMut<'_, f32>,
    m: ViewMut<'_, f32>,
    v: ViewMut<'_, f32>,
    grads: View<'_, f32>,
    norm: View<'_, f64>,
    c: &Coefficients,
) -> Result<(), CudaError> {
    let n = master.len();
    assert!(
        [m.len(), v.len(), grads.len()] == [n; 3] && weights.as_ref().is_none_or(|w| w.len() == n) && norm.len() == 1
    );
    let blocks = n.div_ceil(EACH * THREADS as usize);
    let args = args![
        weights,
        master,
        m,
        v,
        grads,
        norm,
        c.clip_norm,
        c.beta1,
        c.beta2,
        c.gain1,
        c.gain2,
        c.root_scale,
        c.eps,
        c.keep,
        c.rate,
        n as u64
    ];
    // SAFETY: the lengths were checked above.
    unsafe { gpu.launch(&ADAMW_STEP, ADAMW_STEP.unit::<E>(), [blocks, 1, 1], 0, args) }
}
