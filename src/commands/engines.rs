//! From weights to engines, on the device that was taken. What lies on a GPU leaves nothing of its size on the host.

use super::Failure;
use ragen::config::Config;
use ragen::plan::Plan;
use ragen::policy::model::Model;
use ragen_models::device::{Cpu, Taken};
use ragen_models::engine::{CpuEngine, Engine, GpuEngine, Room};
use ragen_models::gpu::{Bf16, CudaError, Gpu, GpuTransformer, Learns, Precision as OnDevice};
use ragen_models::lora::Lora;
use ragen_models::optim::AdamWSettings;
use ragen_models::params::Params;
use ragen_models::transformer::{Config as Shape, Precision, Transformer};
use ragen_models::weights::Checkpoint;
use std::sync::Arc;

/// What a policy is made of.
pub struct Parts {
    /// The shape of what is computed, with a value head if there is to be one.
    pub shape: Shape,
    /// The longest context, in tokens.
    pub positions: usize,
    /// The weights as they were loaded.
    pub checkpoint: Checkpoint,
    /// Adapters to train instead of the weights.
    pub adapters: Option<(Lora, Params)>,
    /// How it is trained.
    pub optimiser: AdamWSettings,
}

/// The policy that the configuration asks for, on the device, with all that the plan holds for it.
pub fn policy(parts: Parts, config: &Config, device: &Taken, plan: &Plan) -> Result<Model, Failure> {
    let failed = |e: CudaError| Failure::Run(format!("{}: {e}", device.device));
    match (&device.gpu, config.model.dtype) {
        (None, _) => on_cpu(parts, config, plan),
        (Some(gpu), Precision::F32) => on_gpu::<f32>(parts, config, gpu, plan).map_err(failed),
        (Some(gpu), Precision::Bf16) => on_gpu::<Bf16>(parts, config, gpu, plan).map_err(failed),
    }
}

fn on_cpu(parts: Parts, config: &Config, plan: &Plan) -> Result<Model, Failure> {
    let Parts { shape, positions, checkpoint, adapters, optimiser } = parts;
    let cpu = Arc::new(Cpu::new(config.run.threads).map_err(Failure::Usage)?);
    let precision = config.model.dtype;
    let value_model = config.model.value_model.then(|| {
        let Checkpoint { config, params } = checkpoint.clone().with_value_head();
        Transformer::new(&cpu, config, params, precision).with_context(positions)
    });
    let model = match adapters {
        None => {
            let Checkpoint { config, params } = with_head_of(&shape, checkpoint);
            Transformer::new(&cpu, config, params, precision)
        }
        Some((lora, adapters)) => {
            let frozen = checkpoint.without_value_head().params;
            Transformer::with_adapters(&cpu, shape, frozen, precision, lora, adapters)
        }
    };
    let engine = |model| Box::new(CpuEngine::new(cpu.clone(), model, optimiser));
    let mut policy = Model::over(engine(model.with_context(positions)));
    if let Some(value_model) = value_model {
        policy = policy.with_value_model(engine(value_model), config.model.value_lr_factor);
    }
    policy.set_recompute(plan.work.recompute);
    Ok(policy)
}

fn on_gpu<E: OnDevice + 'static>(parts: Parts, config: &Config, gpu: &Gpu, plan: &Plan) -> Result<Model, CudaError> {
    let Parts { shape, positions, checkpoint, adapters, optimiser } = parts;
    let (work, room) = (&plan.work, Room::of(&shape, &plan.work));
    let empty = |shape: &Shape, learns| {
        GpuTransformer::<E>::empty(gpu.clone(), config.run.products.into(), shape.clone(), positions, learns)
    };
    let trained = |model, room| Ok(Box::new(GpuEngine::new(model, room, optimiser)?.ready(work.recompute)?));
    let value_model: Option<Box<dyn Engine>> = if work.value_model {
        let Checkpoint { config, params } = checkpoint.clone().with_value_head();
        let mut model = empty(&config, Learns::Weights)?;
        model.write(&params, None)?;
        Some(trained(model, room.unsampled())?)
    } else {
        None
    };
    let model = match adapters {
        None => {
            let mut model = empty(&shape, if work.trains { Learns::Weights } else { Learns::Nothing })?;
            model.write(&with_head_of(&shape, checkpoint).params, None)?;
            model
        }
        Some((lora, adapters)) => {
            let mut model = empty(&shape, Learns::Adapters(lora))?;
            model.write(&checkpoint.without_value_head().params, Some(&adapters))?;
            model
        }
    };
    let engine: Box<dyn Engine> = match work.trains {
        true => trained(model, room)?,
        false => Box::new(GpuEngine::playing(model, room)?.ready(work.recompute)?),
    };
    let policy = Model::over(engine);
    Ok(match value_model {
        Some(value_model) => policy.with_value_model(value_model, config.model.value_lr_factor),
        None => policy,
    })
}

/// The weights with a value head, if the shape has one.
fn with_head_of(shape: &Shape, checkpoint: Checkpoint) -> Checkpoint {
    if shape.value_head { checkpoint.with_value_head() } else { checkpoint }
}
