//! Steps of decoding that were put down once and are replayed at the cost of one call.

use super::decode::{Decoding, GpuCache, Shape};
use super::{GpuTransformer, Precision};
use crate::config::Config;
use crate::lora::Lora;
use ragen_cuda::gemm::Products;
use ragen_cuda::kernels::attention::CachedTables;
use ragen_cuda::{Buffer, CudaError, Recording};
use std::collections::BTreeMap;

/// Recordings of the steps of one [`Decoding`], by shape.
pub(super) struct Recordings {
    on: bool,
    of: Option<Owner>,
    /// Of every shape that was met; none yet when it was met once.
    steps: BTreeMap<Shape, Option<Recording>>,
}

/// A model and a cache, as far as launches name them or depend on them.
#[derive(PartialEq)]
struct Owner {
    config: Config,
    products: Products,
    /// The adapters that are on.
    adapters: Option<Lora>,
    /// Places and lengths of weights, adapters, the table of RoPE and the cache's layers.
    memory: Vec<(u64, usize)>,
}

impl Owner {
    fn of<E: Precision>(model: &GpuTransformer<E>, cache: &GpuCache<E>) -> Self {
        fn place<T: bytemuck::Pod>(buffer: &Buffer<T>) -> (u64, usize) {
            (buffer.view().address(), buffer.len())
        }
        let adapters = model.lora.as_ref().filter(|lora| lora.active);
        let weights = [Some(&model.base), adapters.map(|lora| &lora.weights)].into_iter().flatten();
        let mut memory: Vec<(u64, usize)> =
            weights.map(|weights| (weights.view(&(0..weights.table.len())).address(), weights.table.len())).collect();
        memory.push(place(&model.rope));
        memory.extend(cache.layers.iter().map(place));
        Owner {
            config: model.config.clone(),
            products: model.products,
            adapters: adapters.map(|lora| lora.settings.clone()),
            memory,
        }
    }
}

impl Recordings {
    /// None so far. They are off where the environment says `RAGEN_GRAPHS=off`.
    pub fn new() -> Self {
        let on = std::env::var("RAGEN_GRAPHS").as_deref() != Ok("off");
        Recordings { on, of: None, steps: BTreeMap::new() }
    }
}

impl<E> Decoding<E> {
    /// Whether steps that come again are recorded and replayed, as they are unless `RAGEN_GRAPHS=off`; the bits are the same.
    pub fn set_replay(&mut self, on: bool) {
        self.recordings.on = on;
    }

    /// Steps that are recorded.
    pub fn recorded(&self) -> usize {
        self.recordings.steps.values().flatten().count()
    }
}

impl<E: Precision> GpuTransformer<E> {
    /// A step in which every sequence grows by one token: the first of its shape is done as it is, so that its kernels are loaded, the
    /// second is recorded, and from there on it is replayed.
    pub(super) fn replay(
        &self,
        cache: &mut GpuCache<E>,
        space: &mut Decoding<E>,
        tables: &CachedTables,
        shape: Shape,
    ) -> Result<(), CudaError> {
        if !space.recordings.on {
            return self.step(cache, space, tables, shape);
        }
        let owner = Owner::of(self, cache);
        if space.recordings.of.as_ref() != Some(&owner) {
            space.recordings.steps.clear();
            space.recordings.of = Some(owner);
        }
        match space.recordings.steps.get(&shape) {
            Some(Some(_)) => {}
            Some(None) => {
                let recording = self.gpu.record(&mut || self.step(cache, space, tables, shape))?;
                space.recordings.steps.insert(shape, Some(recording));
            }
            None => {
                self.step(cache, space, tables, shape)?;
                space.recordings.steps.insert(shape, None);
            }
        }
        let Some(Some(recording)) = space.recordings.steps.get(&shape) else { return Ok(()) };
        // SAFETY: the work names buffers of `space`, which stay where they are as long as it and its recordings live, and is the owner's:
        // the model and the cache that are borrowed here lie where they lay, so their buffers are alive. What it looks up in tables was
        // checked when they were made: pages of this cache, and positions within the table of RoPE.
        unsafe { recording.replay() }
    }
}
