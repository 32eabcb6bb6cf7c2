//! Weights on the device: what products read, and the f32 numbers that the optimiser changes.

use crate::params::{Params, Table};
use half::bf16;
use ragen_cuda::{Buffer, CudaError, Element, Gpu, View, ViewMut};
use std::ops::Range;
use std::sync::Arc;

/// Weights that are rounded at once on their way to the device.
const PIECE: usize = 1 << 22;

/// A number type of activations on the GPU.
pub trait Precision: Element {
    /// The master copy of the weights, if products can read it as it is.
    fn of_master(master: &Buffer<f32>) -> Option<View<'_, Self>>;
}

impl Precision for f32 {
    fn of_master(master: &Buffer<f32>) -> Option<View<'_, f32>> {
        Some(master.view())
    }
}

impl Precision for bf16 {
    fn of_master(_: &Buffer<f32>) -> Option<View<'_, bf16>> {
        None
    }
}

/// Weights over a table. Frozen ones lie there once, in E; trained ones in f32 and, where that is not E, beside it rounded to E.
pub(super) struct Weights<E> {
    pub table: Arc<Table>,
    master: Option<Buffer<f32>>,
    copy: Option<Buffer<E>>,
}

impl<E: Precision> Weights<E> {
    /// Memory for them, with undefined contents.
    pub fn new(gpu: &Gpu, table: Arc<Table>, frozen: bool) -> Result<Self, CudaError> {
        let n = table.len();
        let master = if frozen { None } else { Some(gpu.buffer("the weights", n)?) };
        let readable = master.as_ref().is_some_and(|master| E::of_master(master).is_some());
        let copy = if readable { None } else { Some(gpu.buffer("the weights that products read", n)?) };
        Ok(Weights { table, master, copy })
    }

    /// Whether there is nothing that an optimiser could change.
    pub fn frozen(&self) -> bool {
        self.master.is_none()
    }

    /// The weights at a place, as products read them.
    pub fn view(&self, place: &Range<usize>) -> View<'_, E> {
        let copy = self.copy.as_ref().map(Buffer::view);
        let all = copy.or_else(|| self.master.as_ref().and_then(E::of_master));
        all.expect("a copy where the master cannot be read").slice(place.clone())
    }

    /// **Panics** when `params` belong to another table.
    pub fn write(&mut self, gpu: &Gpu, params: &Params) -> Result<(), CudaError> {
        assert_eq!(*params.table, *self.table, "the weights are those of this shape");
        if let Some(master) = &mut self.master {
            gpu.write(master.view_mut(), &params.data)?;
        }
        if let Some(copy) = &mut self.copy {
            // Piece by piece, so that the host never has all of it twice.
            for (i, piece) in params.data.chunks(PIECE).enumerate() {
                let rounded: Vec<E> = piece.iter().map(|&w| E::from_f32(w)).collect();
                gpu.write(copy.slice_mut(i * PIECE..i * PIECE + piece.len()), &rounded)?;
            }
        }
        Ok(())
    }

    /// A copy on the host: of the master, or of what frozen weights were rounded to.
    pub fn read(&self, gpu: &Gpu) -> Result<Params, CudaError> {
        let data = match &self.master {
            Some(master) => gpu.to_vec(master.view())?,
            None => gpu.to_vec(self.view(&(0..self.table.len())))?.into_iter().map(E::to_f32).collect(),
        };
        Ok(Params { table: self.table.clone(), data })
    }

    /// The copy, if there is one, and the master, for an optimiser step.
    ///
    /// **Panics** when the weights are frozen.
    pub fn change(&mut self) -> (Option<ViewMut<'_, E>>, ViewMut<'_, f32>) {
        let master = self.master.as_mut().expect("frozen weights are not trained");
        (self.copy.as_mut().map(Buffer::view_mut), master.view_mut())
    }
}
