//! One block, forward and backward.
//!
//! ```text
//! h = norm(x);  q, k, v = h·Wqkvᵀ + b;  q, k = rope(norm per head, if any);  mid = x + attention(q, k, v)·Woᵀ
//! h = norm(mid);  gate, up = h·Wᵀ;  out = mid + swiglu(gate, up)·Wdᵀ
//! ```

use super::projection::{Projection, Trained};
use super::{Config, Transformer};
use crate::device::Cpu;
use crate::ops::attention::{Heads, attention_bwd};
use crate::ops::linear::{bias_bwd, bias_fwd};
use crate::ops::norm::{Layout, rmsnorm_bwd, rmsnorm_fwd, rmsnorm_gain_bwd};
use crate::ops::pointwise::{swiglu_bwd, swiglu_fwd};
use crate::ops::rope::rope;
use crate::params::Table;
use crate::token_tree::TokenTree;
use std::ops::Range;

/// The weights of a block, packed, and their adapters.
#[derive(Clone, Default)]
pub(super) struct PackedLayer {
    pub qkv: Projection,
    pub o: Projection,
    pub gate_up: Projection,
    pub down: Projection,
}

/// Where a block's tensors lie in the flat buffer; q, k, v and gate, up are each one matrix.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub input_norm: Range<usize>,
    pub qkv: Range<usize>,
    pub qkv_bias: Option<Range<usize>>,
    pub q_norm: Option<Range<usize>>,
    pub k_norm: Option<Range<usize>>,
    pub o: Range<usize>,
    pub post_norm: Range<usize>,
    pub gate_up: Range<usize>,
    pub down: Range<usize>,
}

impl Places {
    pub fn new(table: &Table, config: &Config, layer: usize) -> Self {
        let find = |name: &str| {
            let name = format!("model.layers.{layer}.{name}");
            table.find(&name).map(|e| e.range())
        };
        // The table was made from this configuration, so what the configuration says is there.
        let must =
            |name: &str| find(name).unwrap_or_else(|| panic!("the parameter table lacks layer {layer}'s {name}"));
        let bias = config.qkv_bias.then(|| must("self_attn.q_proj.bias").start..must("self_attn.v_proj.bias").end);
        Places {
            input_norm: must("input_layernorm.weight"),
            qkv: must("self_attn.q_proj.weight").start..must("self_attn.v_proj.weight").end,
            qkv_bias: bias,
            q_norm: find("self_attn.q_norm.weight"),
            k_norm: find("self_attn.k_norm.weight"),
            o: must("self_attn.o_proj.weight"),
            post_norm: must("post_attention_layernorm.weight"),
            gate_up: must("mlp.gate_proj.weight").start..must("mlp.up_proj.weight").end,
            down: must("mlp.down_proj.weight"),
        }
    }
}

/// What a block's forward leaves behind for its backward; one line a packed row each.
#[derive(Clone, Default)]
pub(super) struct LayerActivations {
    /// The residual stream as it comes in, `[rows, d_model]`.
    pub x: Vec<f32>,
    /// 1/RMS of x, `[rows]`.
    pub x_rstd: Vec<f32>,
    /// q and k before their norm, `[rows, heads.row()]`; empty without q/k norm.
    pub raw: Vec<f32>,
    /// 1/RMS of every head of q, `[rows, n_heads]`, and of k, `[rows, n_kv_heads]`.
    pub q_rstd: Vec<f32>,
    pub k_rstd: Vec<f32>,
    /// q (scaled by 1/√hd), k and v as attention reads them, `[rows, heads.row()]`.
    pub qkv: Vec<f32>,
    /// Attention's output, `[rows, n_heads · head_dim]`.
    pub attention: Vec<f32>,
    /// The residual stream after attention, `[rows, d_model]`.
    pub mid: Vec<f32>,
    /// 1/RMS of mid, `[rows]`.
    pub mid_rstd: Vec<f32>,
    /// Gate and up side by side, `[rows, 2 d_ff]`.
    pub gate_up: Vec<f32>,
}

/// Buffers that live for one block only.
#[derive(Clone, Default)]
pub(super) struct Scratch {
    /// A norm's output, `[rows, d_model]`.
    pub normed: Vec<f32>,
    /// SwiGLU's output, `[rows, d_ff]`.
    pub act: Vec<f32>,
    pub dnormed: Vec<f32>,
    pub dact: Vec<f32>,
    pub dgate_up: Vec<f32>,
    pub dattention: Vec<f32>,
    pub dqkv: Vec<f32>,
    pub draw: Vec<f32>,
    /// The narrow side of an adapter and its gradient, `[rows, rank]`.
    pub low: [Vec<f32>; 2],
}

/// Sets the length; the contents are about to be overwritten.
pub(super) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    } else {
        buffer.truncate(len);
    }
    buffer
}

/// All zeros.
fn zeroed(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.clear();
    buffer.resize(len, 0.0);
    buffer
}

impl Transformer {
    /// out = block(acts.x). `attend(qkv, output)` is attention over the tree or over the cache.
    pub(super) fn layer_fwd(
        &self,
        cpu: &Cpu,
        layer: usize,
        acts: &mut LayerActivations,
        out: &mut Vec<f32>,
        scratch: &mut Scratch,
        positions: &[u32],
        attend: &dyn Fn(&[f32], &mut [f32]),
    ) {
        self.layer_activations(cpu, layer, acts, scratch, positions, attend);
        let (rows, d, ff) = (positions.len(), self.config.d_model, self.config.d_ff);
        let act = sized(&mut scratch.act, rows * ff);
        swiglu_fwd(cpu, act, &acts.gate_up, ff);
        let out = sized(out, rows * d);
        out.copy_from_slice(&acts.mid);
        self.layers[layer].down.forward(cpu, out, act, true, self.adapter_scale(), &mut scratch.low[0]);
    }

    /// All that a block's backward needs, from acts.x: the forward up to gate and up.
    pub(super) fn layer_activations(
        &self,
        cpu: &Cpu,
        layer: usize,
        acts: &mut LayerActivations,
        scratch: &mut Scratch,
        positions: &[u32],
        attend: &dyn Fn(&[f32], &mut [f32]),
    ) {
        let (config, heads) = (&self.config, self.heads);
        let (places, packed, w) = (&self.places[layer], &self.layers[layer], &self.params.data);
        let (rows, d, ff) = (positions.len(), config.d_model, config.d_ff);
        let (eps, scale) = (config.norm_eps as f32, self.adapter_scale());

        let normed = sized(&mut scratch.normed, rows * d);
        let rstd = sized(&mut acts.x_rstd, rows);
        rmsnorm_fwd(cpu, normed, d, rstd, &acts.x, &w[places.input_norm.clone()], eps, Layout::plain(rows, d));
        let qkv = sized(&mut acts.qkv, rows * heads.row());
        if let Some(bias) = &places.qkv_bias {
            bias_fwd(qkv, &w[bias.clone()]);
        }
        packed.qkv.forward(cpu, qkv, normed, places.qkv_bias.is_some(), scale, &mut scratch.low[0]);
        if let (Some(q_norm), Some(k_norm)) = (&places.q_norm, &places.k_norm) {
            sized(&mut acts.raw, qkv.len()).copy_from_slice(qkv);
            let (q, k) = head_layouts(heads, rows);
            let rstd = sized(&mut acts.q_rstd, rows * heads.n_heads);
            rmsnorm_fwd(cpu, qkv, heads.row(), rstd, &acts.raw, &w[q_norm.clone()], eps, q);
            let (rstd, column) = (sized(&mut acts.k_rstd, rows * heads.n_kv_heads), heads.k_column(0));
            let raw = &acts.raw[column..];
            rmsnorm_fwd(cpu, &mut qkv[column..], heads.row(), rstd, raw, &w[k_norm.clone()], eps, k);
        }
        self.rope_heads(cpu, qkv, positions, false);

        let attention = sized(&mut acts.attention, rows * heads.q_width());
        attend(qkv, attention);
        let mid = sized(&mut acts.mid, rows * d);
        mid.copy_from_slice(&acts.x[..rows * d]);
        packed.o.forward(cpu, mid, attention, true, scale, &mut scratch.low[0]);

        let normed = sized(&mut scratch.normed, rows * d);
        let rstd = sized(&mut acts.mid_rstd, rows);
        rmsnorm_fwd(cpu, normed, d, rstd, mid, &w[places.post_norm.clone()], eps, Layout::plain(rows, d));
        let gate_up = sized(&mut acts.gate_up, rows * 2 * ff);
        packed.gate_up.forward(cpu, gate_up, normed, false, scale, &mut scratch.low[0]);
    }

    /// RoPE on q (which is also scaled by 1/√hd) and k; `backward` is its gradient.
    fn rope_heads(&self, cpu: &Cpu, qkv: &mut [f32], positions: &[u32], backward: bool) {
        let heads = self.heads;
        let scale = 1.0 / (heads.head_dim as f32).sqrt();
        rope(cpu, qkv, heads.row(), 0, heads.n_heads, positions, &self.rope, scale, backward);
        rope(cpu, qkv, heads.row(), heads.k_column(0), heads.n_kv_heads, positions, &self.rope, 1.0, backward);
    }

    /// Turns dx, the gradient of the block's output, into that of its input, and adds the weights' gradients to `grads`:
    /// the forward read upside down.
    pub(super) fn layer_bwd(
        &self,
        cpu: &Cpu,
        layer: usize,
        acts: &LayerActivations,
        dx: &mut [f32],
        grads: &mut [f32],
        scratch: &mut Scratch,
        tree: &TokenTree,
        positions: &[u32],
    ) {
        let (config, heads) = (&self.config, self.heads);
        let (places, packed, w) = (&self.places[layer], &self.layers[layer], &self.params.data);
        let (rows, d, ff) = (positions.len(), config.d_model, config.d_ff);
        let eps = config.norm_eps as f32;
        let plain = Layout::plain(rows, d);
        // Without adapters everything is trained; with them nothing but they.
        let full = self.lora.is_none();
        let trained = |place: &Range<usize>| match &self.lora {
            None => Trained::Base(place.clone()),
            Some(lora) => Trained::Adapters { numbers: &lora.params.data, scale: lora.settings.scale() },
        };

        // out = mid + swiglu(gate, up)·Wdᵀ
        let act = sized(&mut scratch.act, rows * ff);
        swiglu_fwd(cpu, act, &acts.gate_up, ff);
        let dact = sized(&mut scratch.dact, rows * ff);
        packed.down.backward(
            cpu,
            dact,
            dx,
            act,
            &w[places.down.clone()],
            grads,
            &trained(&places.down),
            &mut scratch.low,
        );
        let dgate_up = zeroed(&mut scratch.dgate_up, rows * 2 * ff);
        swiglu_bwd(cpu, dgate_up, dact, &acts.gate_up, ff);
        // gate, up = norm(mid)·Wᵀ; the norm's output is computed again
        let normed = sized(&mut scratch.normed, rows * d);
        let rstd = sized(&mut scratch.draw, rows);
        rmsnorm_fwd(cpu, normed, d, rstd, &acts.mid, &w[places.post_norm.clone()], eps, plain);
        let dnormed = sized(&mut scratch.dnormed, rows * d);
        packed.gate_up.backward(
            cpu,
            dnormed,
            dgate_up,
            normed,
            &w[places.gate_up.clone()],
            grads,
            &trained(&places.gate_up),
            &mut scratch.low,
        );
        if full {
            let dgain = &mut grads[places.post_norm.clone()];
            rmsnorm_gain_bwd(cpu, dgain, dnormed, d, &acts.mid_rstd, &acts.mid, plain);
        }
        rmsnorm_bwd(cpu, dx, dnormed, d, &acts.mid_rstd, &acts.mid, &w[places.post_norm.clone()], plain);

        // mid = x + attention·Woᵀ
        let dattention = sized(&mut scratch.dattention, rows * heads.q_width());
        packed.o.backward(
            cpu,
            dattention,
            dx,
            &acts.attention,
            &w[places.o.clone()],
            grads,
            &trained(&places.o),
            &mut scratch.low,
        );
        let dqkv = zeroed(&mut scratch.dqkv, rows * heads.row());
        attention_bwd(cpu, dqkv, dattention, &acts.attention, &acts.qkv, tree, heads, config.window(layer));
        self.rope_heads(cpu, dqkv, positions, true);
        if let (Some(q_norm), Some(k_norm)) = (&places.q_norm, &places.k_norm) {
            let (q, k) = head_layouts(heads, rows);
            let (row, column) = (heads.row(), heads.k_column(0));
            // v passes by the norm; q and k go through it.
            let draw = sized(&mut scratch.draw, rows * row);
            draw.copy_from_slice(dqkv);
            for line in draw.chunks_exact_mut(row) {
                line[..heads.v_column(0)].fill(0.0);
            }
            let raw = &acts.raw;
            rmsnorm_bwd(cpu, draw, dqkv, row, &acts.q_rstd, raw, &w[q_norm.clone()], q);
            let (dk, k_raw) = (&dqkv[column..], &raw[column..]);
            if full {
                rmsnorm_gain_bwd(cpu, &mut grads[q_norm.clone()], dqkv, row, &acts.q_rstd, raw, q);
                rmsnorm_gain_bwd(cpu, &mut grads[k_norm.clone()], dk, row, &acts.k_rstd, k_raw, k);
            }
            rmsnorm_bwd(cpu, &mut draw[column..], dk, row, &acts.k_rstd, k_raw, &w[k_norm.clone()], k);
            dqkv.copy_from_slice(draw);
        }
        // q, k, v = norm(x)·Wᵀ + b
        if let (Some(bias), true) = (&places.qkv_bias, full) {
            bias_bwd(cpu, &mut grads[bias.clone()], dqkv);
        }
        let normed = sized(&mut scratch.normed, rows * d);
        let rstd = sized(&mut scratch.draw, rows);
        rmsnorm_fwd(cpu, normed, d, rstd, &acts.x, &w[places.input_norm.clone()], eps, plain);
        let dnormed = sized(&mut scratch.dnormed, rows * d);
        packed.qkv.backward(
            cpu,
            dnormed,
            dqkv,
            normed,
            &w[places.qkv.clone()],
            grads,
            &trained(&places.qkv),
            &mut scratch.low,
        );
        if full {
            let dgain = &mut grads[places.input_norm.clone()];
            rmsnorm_gain_bwd(cpu, dgain, dnormed, d, &acts.x_rstd, &acts.x, plain);
        }
        rmsnorm_bwd(cpu, dx, dnormed, d, &acts.x_rstd, &acts.x, &w[places.input_norm.clone()], plain);
    }
}

/// Layout of the q heads and of the k heads in rows of q, k and v.
fn head_layouts(heads: Heads, rows: usize) -> (Layout, Layout) {
    let layout = |n| Layout { rows, heads: n, d: heads.head_dim, stride: heads.row() };
    (layout(heads.n_heads), layout(heads.n_kv_heads))
}
