//! The whole model: forward, then its backward, which is the forward read upside down (decision D4).
//!
//! ```text
//! x = embedding(ids)
//! for each layer:
//!     h = norm(x);   q, k, v = linear(h);   q, k = rope(norm per head, if any)
//!     x = x + linear(attention(q, k, v))
//!     h = norm(x);   x = x + linear(swiglu(linear(h), linear(h)))
//! hidden = norm(x);   logits = linear(hidden);   value = linear(hidden)
//! ```

use super::*;
use crate::config::Config;
pub use crate::ops::head::{PerTarget, Target};
use crate::params::{Params, Table};
use crate::token_tree::TokenTree;

/// A model whose weights are read, not owned.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a, T> {
    /// Its shape.
    pub config: &'a Config,
    /// Where each tensor lies in `weights`.
    pub table: &'a Table,
    /// All parameters, `[table.len()]`.
    pub weights: &'a [T],
}

/// What a layer's forward leaves behind for its backward; every tensor has one line a packed row.
#[derive(Clone, Debug)]
pub struct Layer<T> {
    /// The residual stream as it comes in.
    pub x: Vec<T>,
    /// Its norm.
    pub attention_input: Vec<T>,
    /// Queries before the norm of each head.
    pub q_raw: Vec<T>,
    /// Keys before the norm of each head.
    pub k_raw: Vec<T>,
    /// Queries after norm and RoPE.
    pub q: Vec<T>,
    /// Keys after norm and RoPE.
    pub k: Vec<T>,
    /// Values of the attention.
    pub v: Vec<T>,
    /// What attention read, before the output projection.
    pub attended: Vec<T>,
    /// The residual stream between attention and SwiGLU.
    pub x_middle: Vec<T>,
    /// Its norm.
    pub mlp_input: Vec<T>,
    /// Gate before the activation.
    pub gate: Vec<T>,
    /// What the gate multiplies.
    pub up: Vec<T>,
    /// silu(gate) ⊙ up.
    pub gated: Vec<T>,
}

/// Everything that the forward computed.
#[derive(Clone, Debug)]
pub struct Activations<T> {
    /// Layer by layer.
    pub layers: Vec<Layer<T>>,
    /// The residual stream after the last layer, `[rows, d_model]`.
    pub x: Vec<T>,
    /// Its norm, which the heads read, `[rows, d_model]`.
    pub hidden: Vec<T>,
}

/// The weights in another float type.
pub fn convert<T: Float>(params: &Params) -> Vec<T> {
    params.data.iter().map(|&w| T::from_f64(f64::from(w))).collect()
}

impl<'a, T: Float> Model<'a, T> {
    /// The tensor called `name`, if the model has it.
    fn find(&self, name: &str) -> Option<&'a [T]> {
        self.table.find(name).map(|e| &self.weights[e.range()])
    }

    /// The tensor called `name`.
    fn weight(&self, name: &str) -> &'a [T] {
        self.find(name).unwrap_or_else(|| panic!("the table has no {name}"))
    }

    /// The name of the output head's matrix; a tied head is the embedding.
    fn output_name(&self) -> &'static str {
        if self.config.tied_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" }
    }

    /// Linear layer `name`, with its bias if it has one.
    fn linear(&self, name: &str, x: &[T], d_in: usize) -> Vec<T> {
        linear_fwd(x, self.weight(&format!("{name}.weight")), self.find(&format!("{name}.bias")), d_in)
    }

    /// Adds to the weight's and the bias's gradient and returns dx.
    fn linear_back(&self, name: &str, x: &[T], d_in: usize, dy: &[T], grads: &mut [T]) -> Vec<T> {
        let mut dx = vec![T::ZERO; x.len()];
        let weight = self.table.find(&format!("{name}.weight")).expect("a linear layer has a weight");
        let w = &self.weights[weight.range()];
        match self.table.find(&format!("{name}.bias")) {
            None => linear_bwd(x, w, dy, d_in, &mut dx, &mut grads[weight.range()], None),
            Some(bias) => {
                let [dw, db] = grads
                    .get_disjoint_mut([weight.range(), bias.range()])
                    .expect("two entries of a table do not overlap");
                linear_bwd(x, w, dy, d_in, &mut dx, dw, Some(db));
            }
        }
        dx
    }

    fn norm(&self, name: &str, x: &[T]) -> Vec<T> {
        rms_norm_fwd(x, self.weight(name), self.config.norm_eps)
    }

    /// Adds to the norm weight's gradient and to `dx`.
    fn norm_back(&self, name: &str, x: &[T], dy: &[T], dx: &mut [T], grads: &mut [T]) {
        let entry = self.table.find(name).expect("a norm has a weight");
        rms_norm_bwd(x, &self.weights[entry.range()], dy, self.config.norm_eps, dx, &mut grads[entry.range()]);
    }

    fn rotation(&self) -> Rotation {
        let Config { head_dim, max_positions, .. } = *self.config;
        Rotation::new(&self.config.rope, head_dim, max_positions, max_positions)
    }

    /// Norm of each head, if the model has one (`name` is q_norm or k_norm), then RoPE.
    fn place(&self, name: &str, raw: &[T], positions: &[u32]) -> Vec<T> {
        if self.config.qk_norm {
            rope_fwd(&self.norm(name, raw), positions, &self.rotation())
        } else {
            rope_fwd(raw, positions, &self.rotation())
        }
    }

    fn place_back(&self, name: &str, raw: &[T], positions: &[u32], dy: &[T], grads: &mut [T]) -> Vec<T> {
        let mut dnormed = vec![T::ZERO; dy.len()];
        rope_bwd(dy, positions, &self.rotation(), &mut dnormed);
        if !self.config.qk_norm {
            return dnormed;
        }
        let mut draw = vec![T::ZERO; dy.len()];
        self.norm_back(name, raw, &dnormed, &mut draw, grads);
        draw
    }

    /// From token ids to hidden states.
    pub fn forward(&self, tree: &TokenTree) -> Activations<T> {
        let c = self.config;
        let positions = tree.positions();
        let mut x = embedding_fwd(self.weight("model.embed_tokens.weight"), &tree.ids, c.d_model);
        let mut layers = Vec::new();
        for l in 0..c.n_layers {
            let name = |part: &str| format!("model.layers.{l}.{part}");
            let attention_input = self.norm(&name("input_layernorm.weight"), &x);
            let q_raw = self.linear(&name("self_attn.q_proj"), &attention_input, c.d_model);
            let k_raw = self.linear(&name("self_attn.k_proj"), &attention_input, c.d_model);
            let v = self.linear(&name("self_attn.v_proj"), &attention_input, c.d_model);
            let q = self.place(&name("self_attn.q_norm.weight"), &q_raw, &positions);
            let k = self.place(&name("self_attn.k_norm.weight"), &k_raw, &positions);
            let attended = attention_fwd(&q, &k, &v, tree, c.n_heads, c.n_kv_heads, c.head_dim, c.window(l));
            let x_middle = residual_fwd(&x, &self.linear(&name("self_attn.o_proj"), &attended, c.q_width()));

            let mlp_input = self.norm(&name("post_attention_layernorm.weight"), &x_middle);
            let gate = self.linear(&name("mlp.gate_proj"), &mlp_input, c.d_model);
            let up = self.linear(&name("mlp.up_proj"), &mlp_input, c.d_model);
            let gated = swiglu_fwd(&gate, &up);
            let x_out = residual_fwd(&x_middle, &self.linear(&name("mlp.down_proj"), &gated, c.d_ff));
            layers.push(Layer {
                x,
                attention_input,
                q_raw,
                k_raw,
                q,
                k,
                v,
                attended,
                x_middle,
                mlp_input,
                gate,
                up,
                gated,
            });
            x = x_out;
        }
        let hidden = self.norm("model.norm.weight", &x);
        Activations { layers, x, hidden }
    }

    /// Logits of every packed row, `[rows, vocab]`.
    pub fn logits(&self, activations: &Activations<T>) -> Vec<T> {
        linear_fwd(&activations.hidden, self.weight(self.output_name()), None, self.config.d_model)
    }

    /// Log-probability, entropy and value of each target, at `temperature` > 0.
    pub fn score(&self, activations: &Activations<T>, targets: &[Target], temperature: T) -> PerTarget<T> {
        let d = self.config.d_model;
        let mut scores = PerTarget { logp: Vec::new(), entropy: Vec::new(), value: Vec::new() };
        for target in targets {
            let hidden = &activations.hidden[target.row * d..][..d];
            let logits = linear_fwd(hidden, self.weight(self.output_name()), None, d);
            let (logp, entropy) = token_fwd(&logits, target.token, target.kept.as_deref(), temperature);
            scores.logp.push(logp);
            scores.entropy.push(entropy);
            if self.config.value_head {
                scores.value.extend(self.linear("value_head", hidden, d));
            }
        }
        scores
    }

    /// From one seed of each kind a target (an empty vector is all zeros) to the gradients of all parameters.
    ///
    /// ADDS to `grads`, `[table.len()]`. A tied embedding gets its input side and its output side.
    pub fn backward(
        &self,
        tree: &TokenTree,
        activations: &Activations<T>,
        targets: &[Target],
        temperature: T,
        seeds: &PerTarget<T>,
        grads: &mut [T],
    ) {
        let dhidden = self.heads_back(activations, targets, temperature, seeds, grads);
        let mut dx = vec![T::ZERO; dhidden.len()];
        self.norm_back("model.norm.weight", &activations.x, &dhidden, &mut dx, grads);
        for (l, layer) in activations.layers.iter().enumerate().rev() {
            dx = self.layer_back(l, layer, tree, &dx, grads);
        }
        let embedding = self.table.find("model.embed_tokens.weight").expect("a model has an embedding");
        embedding_bwd(&tree.ids, &dx, self.config.d_model, &mut grads[embedding.range()]);
    }

    /// Output head and value head; returns dhidden.
    fn heads_back(
        &self,
        activations: &Activations<T>,
        targets: &[Target],
        temperature: T,
        seeds: &PerTarget<T>,
        grads: &mut [T],
    ) -> Vec<T> {
        let d = self.config.d_model;
        let seed = |of: &[T], t: usize| if of.is_empty() { T::ZERO } else { of[t] };
        let output = self.table.find(self.output_name()).expect("a model has an output head");
        let w = &self.weights[output.range()];
        let mut dhidden = vec![T::ZERO; activations.hidden.len()];
        for (t, target) in targets.iter().enumerate() {
            let place = target.row * d..(target.row + 1) * d;
            let hidden = &activations.hidden[place.clone()];
            let logits = linear_fwd(hidden, w, None, d);
            let mut dlogits = vec![T::ZERO; logits.len()];
            let (dlogp, dentropy) = (seed(&seeds.logp, t), seed(&seeds.entropy, t));
            token_bwd(&logits, target.token, target.kept.as_deref(), temperature, dlogp, dentropy, &mut dlogits);
            linear_bwd(hidden, w, &dlogits, d, &mut dhidden[place.clone()], &mut grads[output.range()], None);
            if self.config.value_head {
                let dvalue = [seed(&seeds.value, t)];
                let dh = self.linear_back("value_head", hidden, d, &dvalue, grads);
                add_scaled(&mut dhidden[place], T::ONE, &dh);
            }
        }
        dhidden
    }

    /// One layer; `dx_out` belongs to its output, what it returns to its input.
    fn layer_back(&self, l: usize, layer: &Layer<T>, tree: &TokenTree, dx_out: &[T], grads: &mut [T]) -> Vec<T> {
        let c = self.config;
        let name = |part: &str| format!("model.layers.{l}.{part}");
        let positions = tree.positions();
        let zeros = |like: &[T]| vec![T::ZERO; like.len()];

        let (mut dx_middle, mut ddown) = (zeros(dx_out), zeros(dx_out));
        residual_bwd(dx_out, &mut dx_middle, &mut ddown);
        let dgated = self.linear_back(&name("mlp.down_proj"), &layer.gated, c.d_ff, &ddown, grads);
        let (mut dgate, mut dup) = (zeros(&layer.gate), zeros(&layer.up));
        swiglu_bwd(&layer.gate, &layer.up, &dgated, &mut dgate, &mut dup);
        let mut dmlp_input = self.linear_back(&name("mlp.up_proj"), &layer.mlp_input, c.d_model, &dup, grads);
        let from_gate = self.linear_back(&name("mlp.gate_proj"), &layer.mlp_input, c.d_model, &dgate, grads);
        add_scaled(&mut dmlp_input, T::ONE, &from_gate);
        let norm = name("post_attention_layernorm.weight");
        self.norm_back(&norm, &layer.x_middle, &dmlp_input, &mut dx_middle, grads);

        let (mut dx, mut dout) = (zeros(dx_out), zeros(dx_out));
        residual_bwd(&dx_middle, &mut dx, &mut dout);
        let dattended = self.linear_back(&name("self_attn.o_proj"), &layer.attended, c.q_width(), &dout, grads);
        let (mut dq, mut dk, mut dv) = (zeros(&layer.q), zeros(&layer.k), zeros(&layer.v));
        let Layer { q, k, v, .. } = layer;
        let heads = (c.n_heads, c.n_kv_heads, c.head_dim);
        attention_bwd(q, k, v, &dattended, tree, heads.0, heads.1, heads.2, c.window(l), &mut dq, &mut dk, &mut dv);
        let dk_raw = self.place_back(&name("self_attn.k_norm.weight"), &layer.k_raw, &positions, &dk, grads);
        let dq_raw = self.place_back(&name("self_attn.q_norm.weight"), &layer.q_raw, &positions, &dq, grads);
        let mut dattention_input = zeros(&layer.attention_input);
        for (part, dy) in [("v_proj", &dv), ("k_proj", &dk_raw), ("q_proj", &dq_raw)] {
            let name = name(&format!("self_attn.{part}"));
            let dh = self.linear_back(&name, &layer.attention_input, c.d_model, dy, grads);
            add_scaled(&mut dattention_input, T::ONE, &dh);
        }
        self.norm_back(&name("input_layernorm.weight"), &layer.x, &dattention_input, &mut dx, grads);
        dx
    }
}
