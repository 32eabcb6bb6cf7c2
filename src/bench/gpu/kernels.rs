//! Every kernel, and the library's products, alone at the model's shape.

use super::{Bench, Cost, percent, short};
use ragen_models::doctor::ceilings::milliseconds;
use ragen_models::gpu::{Bf16, CudaError, KernelShape, Trial, trials};
use ragen_models::params::Table;
use ragen_models::transformer::Config;
use serde_json::{Value, json};

/// Tokens of a sequence, and sequences, that kernels run on.
const SEQUENCE: usize = 512;
const SEQUENCES: usize = 8;

/// The shape of a model with so many sequences of so many tokens, as kernels are compared at, in bf16.
pub fn kernel_shape(c: &Config, sequences: usize, sequence: usize) -> KernelShape {
    KernelShape {
        element_bytes: 2,
        rows: sequences * sequence,
        sequence,
        d_model: c.d_model,
        heads: [c.n_heads, c.n_kv_heads, c.head_dim],
        d_ff: c.d_ff,
        vocab: c.vocab,
        parameters: Table::len_of(c),
    }
}

impl Bench<'_> {
    /// All kernels in bf16.
    pub(super) fn kernels(&mut self) -> Vec<Value> {
        let (sequence, sequences) = if self.timed { (SEQUENCE, SEQUENCES) } else { (33, 2) };
        let shape = kernel_shape(self.config, sequences, sequence.min(self.config.max_positions));
        trials::<Bf16>().iter().map(|trial| self.kernel(trial, &shape)).collect()
    }

    fn kernel(&mut self, trial: &Trial, shape: &KernelShape) -> Value {
        let gpu = self.gpu;
        let time = trial.prepare(gpu, shape).and_then(|mut run| milliseconds(gpu, &mut || run(gpu)));
        match time {
            Ok(ms) => self.reached(trial, shape, ms),
            Err(error) => self.broken(trial, &error),
        }
    }

    fn reached(&mut self, trial: &Trial, shape: &KernelShape, ms: Option<f64>) -> Value {
        let work = trial.work(shape);
        let least = self.ceilings.least(Cost { flops: work.flops, bytes: work.bytes }, shape.element_bytes);
        let share = ms.zip(least).map(|(ms, least)| least / ms * 1e3);
        let (gigabytes, teraflops) = (ms.map(|ms| work.bytes / ms / 1e6), ms.map(|ms| work.flops / ms / 1e9));
        self.say(format!(
            "{:<40} {} ms, {} GB/s, {} TFLOP/s, {} of the roofline",
            trial.name,
            short(ms),
            short(gigabytes),
            short(teraflops),
            percent(share)
        ));
        json!({
            "name": trial.name, "milliseconds": ms, "gb_per_s": gigabytes, "tflops_per_s": teraflops,
            "share_of_roofline": share,
        })
    }

    fn broken(&mut self, trial: &Trial, error: &CudaError) -> Value {
        self.give_up(format!("{}: {error}", trial.name));
        json!({"name": trial.name, "why": error.to_string()})
    }
}
