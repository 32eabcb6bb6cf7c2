//! Low-rank adapters: which linear layers have one, where its numbers lie, and what it adds to a weight.
//!
//! **Math** y = W·x + (α / r)·B·(A·x) with A `[r, in]` drawn at random, B `[out, r]` from zero: an adapter that was not trained
//! changes nothing. W is frozen, so gradients, moments and checkpoints are those of A and B alone.
//!
//! **Source** Hu et al., *LoRA: Low-rank adaptation of large language models*, 2021, section 4.1; names and the deviation
//! of A as in the library peft.

use crate::config::Config;
use crate::params::{Params, Table};
use crate::random::Key;
use std::ops::Range;
use std::sync::Arc;

/// A linear layer of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Module {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output of attention.
    O,
    /// Gate of the SwiGLU.
    Gate,
    /// What the gate multiplies.
    Up,
    /// Output of the SwiGLU.
    Down,
}

impl Module {
    /// All of them, in the order of the forward pass.
    pub const ALL: [Module; 7] = [Module::Q, Module::K, Module::V, Module::O, Module::Gate, Module::Up, Module::Down];

    /// Those that are multiplied as one matrix with outputs side by side, as gate and up are.
    pub(crate) const QKV: &[Module] = &[Module::Q, Module::K, Module::V];
    /// See [`Module::QKV`].
    pub(crate) const GATE_UP: &[Module] = &[Module::Gate, Module::Up];

    /// Its name in a Hugging Face checkpoint, such as `q_proj`.
    pub fn name(self) -> &'static str {
        match self {
            Module::Q => "q_proj",
            Module::K => "k_proj",
            Module::V => "v_proj",
            Module::O => "o_proj",
            Module::Gate => "gate_proj",
            Module::Up => "up_proj",
            Module::Down => "down_proj",
        }
    }

    /// The module of this name.
    pub fn parse(name: &str) -> Option<Module> {
        Module::ALL.into_iter().find(|module| module.name() == name)
    }

    /// Name of the linear layer in block `layer`, without `.weight`.
    pub fn path(self, layer: usize) -> String {
        let part = if self < Module::Gate { "self_attn" } else { "mlp" };
        format!("model.layers.{layer}.{part}.{}", self.name())
    }

    /// Widths (out, in) in a model of this shape.
    pub fn widths(self, config: &Config) -> (usize, usize) {
        let (d, q, kv, ff) = (config.d_model, config.q_width(), config.kv_width(), config.d_ff);
        match self {
            Module::Q => (q, d),
            Module::K | Module::V => (kv, d),
            Module::O => (d, q),
            Module::Gate | Module::Up => (ff, d),
            Module::Down => (d, ff),
        }
    }
}

/// Where an adapter's numbers lie among what is trained, and what they add to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// The columns of the output.
    pub columns: Range<usize>,
    /// A `[rank, in]`.
    pub a: Range<usize>,
    /// B `[columns, rank]`.
    pub b: Range<usize>,
}

/// Which adapters a model has.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rank r, at least 1.
    pub rank: usize,
    /// α: the adapter's product is scaled by α / r.
    pub alpha: f64,
    /// The layers that have one, ascending, none twice, at least one.
    pub targets: Vec<Module>,
}

impl Lora {
    /// α / r.
    pub fn scale(&self) -> f32 {
        (self.alpha / self.rank as f64) as f32
    }

    /// Names, shapes and offsets of what is trained: A and B of every target, and the value head if there is one.
    ///
    /// Names are those of an adapter file without the prefix `base_model.model.`.
    pub fn table(&self, config: &Config) -> Table {
        let mut table = Table { entries: Vec::new() };
        for layer in 0..config.n_layers {
            for module in &self.targets {
                let (path, (out, input)) = (module.path(layer), module.widths(config));
                table.push(format!("{path}.lora_A.weight"), &[self.rank, input]);
                table.push(format!("{path}.lora_B.weight"), &[out, self.rank]);
            }
        }
        if config.value_head {
            table.push("value_head.weight".into(), &[1, config.d_model]);
            table.push("value_head.bias".into(), &[1]);
        }
        table
    }

    /// The adapters of block `layer` on these modules, whose outputs lie side by side; `table` is that of [`Lora::table`].
    pub(crate) fn places(&self, config: &Config, table: &Table, layer: usize, modules: &[Module]) -> Vec<Place> {
        let mut from = 0;
        let mut places = Vec::new();
        for module in modules {
            let columns = from..from + module.widths(config).0;
            from = columns.end;
            if self.targets.contains(module) {
                let place = |part: &str| {
                    let name = format!("{}.{part}.weight", module.path(layer));
                    table.find(&name).map(|e| e.range()).unwrap_or_default()
                };
                places.push(Place { columns, a: place("lora_A"), b: place("lora_B") });
            }
        }
        places
    }

    /// Fresh adapters: A uniform in ±1/√in (peft's Kaiming draw with a = √5), B and the value head zero.
    pub fn initial(&self, config: &Config, seed: u64) -> Params {
        let mut params = Params::zeros(Arc::new(self.table(config)));
        let key = Key::new(seed).named("initial adapters");
        let table = params.table.clone();
        for (i, entry) in table.entries.iter().enumerate().filter(|(_, e)| e.name.ends_with("lora_A.weight")) {
            let bound = 1.0 / (entry.shape[1] as f64).sqrt();
            let key = key.with(i as u64);
            for (j, value) in params.data[entry.range()].iter_mut().enumerate() {
                *value = ((2.0 * key.uniform(j as u64) - 1.0) * bound) as f32;
            }
        }
        params
    }

    /// Adds (α / r)·B·A to the weights of `base`: the model that computes without adapters what it computed with them, up to
    /// rounding.
    ///
    /// **Panics** when `adapters` or `base` are those of another shape.
    pub fn merge(&self, config: &Config, base: &mut Params, adapters: &Params) {
        let scale = self.scale();
        for layer in 0..config.n_layers {
            for module in &self.targets {
                let (path, (_, input)) = (module.path(layer), module.widths(config));
                let a = adapters.get(&format!("{path}.lora_A.weight"));
                let b = adapters.get(&format!("{path}.lora_B.weight"));
                let w = base.get_mut(&format!("{path}.weight"));
                for (row, b) in w.chunks_exact_mut(input).zip(b.chunks_exact(self.rank)) {
                    for (j, w) in row.iter_mut().enumerate() {
                        let product = b.iter().enumerate().fold(0.0f32, |sum, (r, b)| b.mul_add(a[r * input + j], sum));
                        *w = scale.mul_add(product, *w);
                    }
                }
            }
        }
    }
}
