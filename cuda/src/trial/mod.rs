//! A launch of every kernel at a shape, on made-up numbers: for benches, and to see on a device what each kernel reaches.

mod attention;
mod head;

use crate::buffer::{Buffer, Element};
use crate::gemm::{Products, Write, linear_bwd_input, linear_bwd_weight, linear_fwd};
use crate::kernel::{Kernel, Shape, Work};
use crate::kernels::{adamw, all, embedding, norm, pointwise, rope, sums};
use crate::{CudaError, Gpu};

/// Launches of one op again and again.
pub type Run = Box<dyn FnMut(&Gpu) -> Result<(), CudaError>>;

/// An op that can be tried.
pub struct Trial {
    /// Name of its launcher, and of the library where it is one of the library's.
    pub name: &'static str,
    /// The kernels that it starts.
    pub kernels: &'static [&'static str],
    prepare: fn(&Gpu, &Shape) -> Result<Run, CudaError>,
}

impl Trial {
    /// Makes its inputs.
    ///
    /// **Errors** those of allocation.
    pub fn prepare(&self, gpu: &Gpu, shape: &Shape) -> Result<Run, CudaError> {
        (self.prepare)(gpu, shape)
    }

    /// Whether it is a product by the library, where there is one, in the place of the kernels.
    pub fn is_of_library(&self) -> bool {
        self.name.starts_with("library ")
    }

    /// What a run moves and computes.
    pub fn work(&self, shape: &Shape) -> Work {
        let works = self.kernels.iter().filter_map(|name| kernel(name)).map(|kernel| (kernel.work)(shape));
        works.fold(Work::default(), |sum, work| Work { bytes: sum.bytes + work.bytes, flops: sum.flops + work.flops })
    }
}

fn kernel(name: &str) -> Option<&'static Kernel> {
    all().find(|kernel| kernel.name == name)
}

/// Numbers between −1 and 1 that repeat every few thousand.
fn numbers<E: Element>(gpu: &Gpu, len: usize) -> Result<Buffer<E>, CudaError> {
    let period: Vec<E> =
        (0..len.min(4093)).map(|i| E::from_f32(((i * 2654 + 1) % 4093) as f32 / 2046.5 - 1.0)).collect();
    let mut buffer = gpu.buffer("a trial", len)?;
    let mut filled = period.len();
    gpu.write(buffer.slice_mut(0..filled), &period)?;
    while filled < len {
        let more = filled.min(len - filled);
        let (from, to) = buffer.view_mut().split_at(filled);
        gpu.copy(to.slice(0..more), from.view().slice(0..more))?;
        filled += more;
    }
    Ok(buffer)
}

fn ids(shape: &Shape) -> Vec<u32> {
    (0..shape.rows).map(|i| (i * 7919 % shape.vocab) as u32).collect()
}

/// All trials for activations of type E.
pub fn trials<E: Element>() -> Vec<Trial> {
    let mut trials = vec![
        Trial {
            name: "embedding_fwd",
            kernels: &["embedding_fwd"],
            prepare: |gpu, s| {
                let (ids, d) = (gpu.upload("ids", &ids(s))?, s.d_model);
                let (table, mut x) = (numbers::<E>(gpu, s.vocab * d)?, numbers::<E>(gpu, s.rows * d)?);
                Ok(Box::new(move |gpu| embedding::embedding_fwd(gpu, x.view_mut(), ids.view(), table.view(), d)))
            },
        },
        Trial {
            name: "embedding_bwd",
            kernels: &["embedding_bwd"],
            prepare: |gpu, s| {
                let (rows, d) = (embedding::RowsByToken::new(gpu, &ids(s))?, s.d_model);
                let (dx, mut dtable) = (numbers::<E>(gpu, s.rows * d)?, gpu.zeros("dE", s.vocab * d)?);
                Ok(Box::new(move |gpu| embedding::embedding_bwd(gpu, dtable.view_mut(), dx.view(), &rows, d)))
            },
        },
        Trial {
            name: "gather_bwd",
            kernels: &["gather_bwd"],
            prepare: |gpu, s| {
                let (rows, d) = (embedding::RowsByToken::new(gpu, &(0..s.rows as u32).collect::<Vec<_>>())?, s.d_model);
                let (dy, mut dx) = (numbers::<E>(gpu, s.rows * d)?, numbers::<E>(gpu, s.rows * d)?);
                Ok(Box::new(move |gpu| embedding::gather_bwd(gpu, dx.view_mut(), dy.view(), &rows, d)))
            },
        },
        Trial {
            name: "rmsnorm_fwd",
            kernels: &["rmsnorm_fwd"],
            prepare: |gpu, s| {
                let (n, d, layout) = (s.rows * s.d_model, s.d_model, norm::Layout::plain(s.rows, s.d_model));
                let (x, gain, mut y) = (numbers::<E>(gpu, n)?, numbers::<E>(gpu, d)?, numbers::<E>(gpu, n)?);
                let mut rstd = gpu.zeros("rstd", s.rows)?;
                Ok(Box::new(move |gpu| {
                    norm::rmsnorm_fwd(gpu, y.view_mut(), d, rstd.view_mut(), x.view(), gain.view(), 1e-6, layout)
                }))
            },
        },
        Trial {
            name: "residual_rmsnorm_fwd",
            kernels: &["residual_rmsnorm_fwd"],
            prepare: |gpu, s| {
                let (n, d) = (s.rows * s.d_model, s.d_model);
                let (x, delta, gain) = (numbers::<E>(gpu, n)?, numbers::<E>(gpu, n)?, numbers::<E>(gpu, d)?);
                let (mut sum, mut y, mut rstd) =
                    (numbers::<E>(gpu, n)?, numbers::<E>(gpu, n)?, gpu.zeros("rstd", s.rows)?);
                Ok(Box::new(move |gpu| {
                    let (sum, y, rstd) = (sum.view_mut(), y.view_mut(), rstd.view_mut());
                    norm::residual_rmsnorm_fwd(gpu, sum, y, rstd, x.view(), delta.view(), gain.view(), 1e-6)
                }))
            },
        },
        Trial {
            name: "rmsnorm_bwd",
            kernels: &["rmsnorm_bwd"],
            prepare: |gpu, s| {
                let (n, d, layout) = (s.rows * s.d_model, s.d_model, norm::Layout::plain(s.rows, s.d_model));
                let (x, gain, dy) = (numbers::<E>(gpu, n)?, numbers::<E>(gpu, d)?, numbers::<E>(gpu, n)?);
                let (mut dx, rstd) = (numbers::<E>(gpu, n)?, numbers::<f32>(gpu, s.rows)?);
                Ok(Box::new(move |gpu| {
                    norm::rmsnorm_bwd(
                        gpu,
                        dx.view_mut(),
                        dy.view(),
                        d,
                        rstd.view(),
                        x.view(),
                        gain.view(),
                        layout,
                        true,
                    )
                }))
            },
        },
        Trial {
            name: "rmsnorm_gain_bwd",
            kernels: &["gain_pieces", "add_pieces"],
            prepare: |gpu, s| {
                let (n, d, layout) = (s.rows * s.d_model, s.d_model, norm::Layout::plain(s.rows, s.d_model));
                let (x, dy, rstd) = (numbers::<E>(gpu, n)?, numbers::<E>(gpu, n)?, numbers::<f32>(gpu, s.rows)?);
                let (mut dgain, mut space) = (gpu.zeros("dgain", d)?, gpu.zeros("pieces", sums::pieces(s.rows) * d)?);
                Ok(Box::new(move |gpu| {
                    let (dgain, space) = (dgain.view_mut(), space.view_mut());
                    sums::rmsnorm_gain_bwd(gpu, dgain, dy.view(), d, rstd.view(), x.view(), layout, space)
                }))
            },
        },
        Trial {
            name: "bias_fwd",
            kernels: &["bias_fwd"],
            prepare: |gpu, s| {
                let width = qkv_width(s);
                let (b, mut y) = (numbers::<E>(gpu, width)?, numbers::<E>(gpu, s.rows * width)?);
                Ok(Box::new(move |gpu| pointwise::bias_fwd(gpu, y.view_mut(), b.view())))
            },
        },
        Trial {
            name: "bias_bwd",
            kernels: &["bias_pieces", "add_pieces"],
            prepare: |gpu, s| {
                let width = qkv_width(s);
                let (dy, mut db) = (numbers::<E>(gpu, s.rows * width)?, gpu.zeros("db", width)?);
                let mut space = gpu.zeros("pieces", sums::pieces(s.rows) * width)?;
                Ok(Box::new(move |gpu| sums::bias_bwd(gpu, db.view_mut(), dy.view(), space.view_mut())))
            },
        },
        Trial {
            name: "rope",
            kernels: &["rope"],
            prepare: |gpu, s| {
                let ([heads, kv_heads, width], row) = (s.heads, qkv_width(s));
                let positions: Vec<u32> = (0..s.rows).map(|i| (i % s.sequence) as u32).collect();
                let (mut x, positions) = (numbers::<E>(gpu, s.rows * row)?, gpu.upload("positions", &positions)?);
                let table = numbers::<f32>(gpu, s.sequence * width)?;
                Ok(Box::new(move |gpu| {
                    let (x, positions, table) = (x.view_mut(), positions.view(), table.view());
                    rope::rope(gpu, x, row, heads, kv_heads, positions, table, width / 2, 0.125, false)
                }))
            },
        },
        Trial {
            name: "swiglu_fwd",
            kernels: &["swiglu_fwd"],
            prepare: |gpu, s| {
                let (n, d_ff) = (s.rows * s.d_ff, s.d_ff);
                let (gate_up, mut a) = (numbers::<E>(gpu, 2 * n)?, numbers::<E>(gpu, n)?);
                Ok(Box::new(move |gpu| pointwise::swiglu_fwd(gpu, a.view_mut(), gate_up.view(), d_ff)))
            },
        },
        Trial {
            name: "swiglu_bwd",
            kernels: &["swiglu_bwd"],
            prepare: |gpu, s| {
                let (n, d_ff) = (s.rows * s.d_ff, s.d_ff);
                let (gate_up, da, mut d) =
                    (numbers::<E>(gpu, 2 * n)?, numbers::<E>(gpu, n)?, numbers::<E>(gpu, 2 * n)?);
                Ok(Box::new(move |gpu| pointwise::swiglu_bwd(gpu, d.view_mut(), da.view(), gate_up.view(), d_ff)))
            },
        },
        Trial {
            name: "grad_norm",
            kernels: &["norm_pieces", "norm_total"],
            prepare: |gpu, s| {
                let (grads, mut norm) = (numbers::<f32>(gpu, s.parameters)?, gpu.zeros("norm", 1)?);
                let mut space = gpu.zeros("pieces", adamw::pieces(s.parameters))?;
                Ok(Box::new(move |gpu| adamw::grad_norm(gpu, norm.view_mut(), grads.view(), space.view_mut())))
            },
        },
        Trial { name: "adamw_step", kernels: &["adamw_step"], prepare: prepare_adamw::<E> },
        product("gemm_nt", &["gemm_nt"], |gpu, s| prepare_forward::<E>(gpu, s, s.rows, Products::Invariant)),
        product("gemm_nt_few", &["gemm_nt_few"], |gpu, s| prepare_forward::<E>(gpu, s, 64, Products::Invariant)),
        product("gemm_nn", &["gemm_nn"], |gpu, s| prepare_input::<E>(gpu, s, Products::Invariant)),
        product("gemm_tn", &["gemm_tn"], |gpu, s| prepare_weight::<E>(gpu, s, Products::Invariant)),
        product("library gemm_nt", &["gemm_nt"], |gpu, s| prepare_forward::<E>(gpu, s, s.rows, Products::Library)),
        product("library gemm_nn", &["gemm_nn"], |gpu, s| prepare_input::<E>(gpu, s, Products::Library)),
        product("library gemm_tn", &["gemm_tn"], |gpu, s| prepare_weight::<E>(gpu, s, Products::Library)),
    ];
    trials.extend(attention::trials::<E>());
    trials.extend(head::trials::<E>());
    trials
}

fn qkv_width(s: &Shape) -> usize {
    let [heads, kv_heads, width] = s.heads;
    (heads + 2 * kv_heads) * width
}

fn prepare_adamw<E: Element>(gpu: &Gpu, s: &Shape) -> Result<Run, CudaError> {
    let n = s.parameters;
    let (grads, mut master) = (numbers::<f32>(gpu, n)?, numbers::<f32>(gpu, n)?);
    let (mut m, mut v, norm) = (gpu.zeros("m", n)?, gpu.zeros("v", n)?, gpu.upload("norm", &[1.0])?);
    // In f32 the master is what products read.
    let mut weights = if size_of::<E>() == 4 { None } else { Some(numbers::<E>(gpu, n)?) };
    let (gain1, gain2, root_scale) = (0.1, 0.001, 1.0);
    let c = adamw::Coefficients {
        clip_norm: 1.0,
        beta1: 0.9,
        beta2: 0.999,
        gain1,
        gain2,
        root_scale,
        eps: 1e-8,
        keep: 1.0,
        rate: 1e-6,
    };
    Ok(Box::new(move |gpu| {
        let weights = weights.as_mut().map(Buffer::view_mut);
        adamw::adamw_step(gpu, weights, master.view_mut(), m.view_mut(), v.view_mut(), grads.view(), norm.view(), &c)
    }))
}

/// A product with the weight of gate and up.
fn product(
    name: &'static str,
    kernels: &'static [&'static str],
    prepare: fn(&Gpu, &Shape) -> Result<Run, CudaError>,
) -> Trial {
    Trial { name, kernels, prepare }
}

fn prepare_forward<E: Element>(gpu: &Gpu, s: &Shape, rows: usize, products: Products) -> Result<Run, CudaError> {
    let (out, input) = (2 * s.d_ff, s.d_model);
    let (x, w, mut y) =
        (numbers::<E>(gpu, rows * input)?, numbers::<E>(gpu, out * input)?, gpu.buffer::<E>("y", rows * out)?);
    Ok(Box::new(move |gpu| linear_fwd(gpu, products, y.view_mut(), x.view(), w.view(), input, Write::Scaled(1.0))))
}

fn prepare_input<E: Element>(gpu: &Gpu, s: &Shape, products: Products) -> Result<Run, CudaError> {
    let (rows, out, input) = (s.rows, 2 * s.d_ff, s.d_model);
    let (dy, w, mut dx) =
        (numbers::<E>(gpu, rows * out)?, numbers::<E>(gpu, out * input)?, gpu.buffer::<E>("dx", rows * input)?);
    Ok(Box::new(move |gpu| linear_bwd_input(gpu, products, dx.view_mut(), dy.view(), w.view(), input, false)))
}

fn prepare_weight<E: Element>(gpu: &Gpu, s: &Shape, products: Products) -> Result<Run, CudaError> {
    let (rows, out, input) = (s.rows, 2 * s.d_ff, s.d_model);
    let (dy, x, mut dw) =
        (numbers::<E>(gpu, rows * out)?, numbers::<E>(gpu, rows * input)?, gpu.zeros("dw", out * input)?);
    Ok(Box::new(move |gpu| linear_bwd_weight(gpu, products, dw.view_mut(), dy.view(), x.view(), input)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_tried() {
        let tried: Vec<&str> = trials::<f32>().iter().flat_map(|trial| trial.kernels).copied().collect();
        for kernel in all() {
            assert!(tried.contains(&kernel.name), "{} has no trial", kernel.name);
        }
        for name in tried {
            assert!(kernel(name).is_some(), "{name} is tried but not in the manifest");
        }
    }
}
