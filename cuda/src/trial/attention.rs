//! Trials of attention.

use super::{Run, Trial, numbers, qkv_width};
use crate::buffer::{Buffer, Element};
use crate::kernels::Shape;
use crate::kernels::attention::{
    CachedTables, Extension, Heads, Segment, Tree, attention_bwd, attention_cached, attention_fwd, kv_append,
};
use crate::{CudaError, Gpu};

/// Positions in a page of the cache.
const PAGE: usize = 32;

/// All trials for activations of type E.
pub(super) fn trials<E: Element>() -> Vec<Trial> {
    vec![
        Trial {
            name: "attention_fwd",
            kernels: &["attention_fwd"],
            prepare: |gpu, s| {
                let (tree, qkv) = (tree(gpu, s, false)?, numbers::<E>(gpu, s.rows * qkv_width(s))?);
                let (mut out, mut lse) = (gpu.buffer::<E>("out", s.rows * q_width(s))?, gpu.zeros("lse", queries(s))?);
                Ok(Box::new(move |gpu| attention_fwd(gpu, out.view_mut(), lse.view_mut(), qkv.view(), &tree, None)))
            },
        },
        Trial {
            name: "attention_bwd",
            kernels: &["attention_delta", "attention_bwd_q", "attention_bwd_kv"],
            prepare: |gpu, s| prepare_backward::<E>(gpu, s, false),
        },
        Trial {
            name: "attention_bwd, shared prompt",
            kernels: &["attention_delta", "attention_bwd_q", "attention_bwd_kv", "attention_bwd_add"],
            prepare: |gpu, s| prepare_backward::<E>(gpu, s, true),
        },
        Trial {
            name: "kv_append",
            kernels: &["kv_append"],
            prepare: |gpu, s| {
                let (tables, memory, mut cache) = cached::<E>(gpu, s, 0, s.sequence)?;
                let qkv = numbers::<E>(gpu, s.rows * qkv_width(s))?;
                Ok(Box::new(move |gpu| kv_append(gpu, cache.view_mut(), qkv.view(), &tables.at(memory.view()))))
            },
        },
        Trial {
            name: "attention_cached, a token each",
            kernels: &["attention_decode"],
            prepare: |gpu, s| {
                let (tables, memory, cache) = cached::<E>(gpu, s, s.sequence - 1, 1)?;
                let qkv = numbers::<E>(gpu, s.rows / s.sequence * qkv_width(s))?;
                let mut out = gpu.buffer::<E>("out", s.rows / s.sequence * q_width(s))?;
                Ok(Box::new(move |gpu| {
                    let batch = tables.at(memory.view());
                    attention_cached(gpu, out.view_mut(), qkv.view(), cache.view(), &batch, None, None)
                }))
            },
        },
        Trial {
            name: "attention_cached, a token each, split",
            kernels: &["attention_decode", "attention_merge"],
            prepare: |gpu, s| {
                let (tables, memory, cache) = cached::<E>(gpu, s, s.sequence - 1, 1)?;
                let qkv = numbers::<E>(gpu, s.rows / s.sequence * qkv_width(s))?;
                let mut out = gpu.buffer::<E>("out", s.rows / s.sequence * q_width(s))?;
                let mut partials = gpu.zeros("partial results", tables.partials())?;
                Ok(Box::new(move |gpu| {
                    let (batch, partials) = (tables.at(memory.view()), Some(partials.view_mut()));
                    attention_cached(gpu, out.view_mut(), qkv.view(), cache.view(), &batch, None, partials)
                }))
            },
        },
    ]
}

fn heads(s: &Shape) -> Heads {
    let [n_heads, n_kv_heads, head_dim] = s.heads;
    Heads { n_heads, n_kv_heads, head_dim }
}

fn q_width(s: &Shape) -> usize {
    heads(s).q_width()
}

fn queries(s: &Shape) -> usize {
    s.rows * s.heads[0]
}

/// Sequences side by side, or the first as the prompt of all others.
fn tree(gpu: &Gpu, s: &Shape, shared: bool) -> Result<Tree, CudaError> {
    let segment = |start| match shared && start > 0 {
        true => Segment { start, len: s.sequence, parent: Some(0), position: s.sequence },
        false => Segment { start, len: s.sequence, parent: None, position: 0 },
    };
    let segments: Vec<Segment> = (0..s.rows).step_by(s.sequence).map(segment).collect();
    Tree::new(gpu, &segments, heads(s))
}

fn prepare_backward<E: Element>(gpu: &Gpu, s: &Shape, shared: bool) -> Result<Run, CudaError> {
    let (tree, qkv) = (tree(gpu, s, shared)?, numbers::<E>(gpu, s.rows * qkv_width(s))?);
    let (out, dout) = (numbers::<E>(gpu, s.rows * q_width(s))?, numbers::<E>(gpu, s.rows * q_width(s))?);
    let (lse, mut space) = (gpu.zeros("lse", queries(s))?, gpu.zeros("delta and sums", tree.workspace())?);
    let mut dqkv = gpu.buffer::<E>("dqkv", s.rows * qkv_width(s))?;
    Ok(Box::new(move |gpu| {
        let (dqkv, space, lse) = (dqkv.view_mut(), space.view_mut(), lse.view());
        attention_bwd(gpu, dqkv, dout.view(), out.view(), lse, qkv.view(), &tree, None, space)
    }))
}

/// The tables of a batch on the host and on the device, and its cache.
type Cache<E> = (CachedTables, Buffer<u32>, Buffer<E>);

/// A batch in which every sequence grows by `len` tokens at `position`.
fn cached<E: Element>(gpu: &Gpu, s: &Shape, position: usize, len: usize) -> Result<Cache<E>, CudaError> {
    let (sequences, each) = (s.rows / s.sequence, s.sequence.div_ceil(PAGE));
    let pages: Vec<u32> = (0..(sequences * each) as u32).collect();
    let extension = |(i, pages)| Extension { start: i * len, len, position, pages };
    let extensions: Vec<Extension<'_>> = pages.chunks_exact(each).enumerate().map(extension).collect();
    let tables = CachedTables::new(&extensions, PAGE, heads(s));
    let memory = gpu.upload("tables of attention", tables.numbers())?;
    Ok((tables, memory, numbers(gpu, sequences * each * PAGE * heads(s).kv_width())?))
}
