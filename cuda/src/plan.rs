//! Memory planned up front.

use crate::buffer::{Allocation, Buffer};
use crate::{CudaError, Gpu};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::Arc;

/// Every buffer of a plan begins at a multiple of this many bytes.
const ALIGNMENT_BYTES: usize = 256;

/// Buffers that are allocated together: first their sizes are added up, then there is one allocation, so that a run that
/// does not fit is refused before it starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    bytes: usize,
}

/// A place in a [`Plan`].
#[derive(Clone, Copy, Debug)]
pub struct Place<T> {
    offset_bytes: usize,
    len: usize,
    kind: PhantomData<T>,
}

impl Plan {
    /// A place for `len` numbers.
    pub fn add<T: Pod>(&mut self, len: usize) -> Place<T> {
        let offset_bytes = self.bytes;
        self.bytes = (offset_bytes + len * size_of::<T>()).next_multiple_of(ALIGNMENT_BYTES);
        Place { offset_bytes, len, kind: PhantomData }
    }

    /// Bytes of all places.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Allocates all of it; `what` names it when memory is short.
    ///
    /// **Errors** [`CudaError::Memory`].
    pub fn allocate(self, gpu: &Gpu, what: &str) -> Result<Arena, CudaError> {
        Ok(Arena { taken: 0, allocation: Arc::new(gpu.allocation(what, self.bytes)?) })
    }
}

/// The memory of a [`Plan`].
pub struct Arena {
    allocation: Arc<Allocation>,
    /// Places below this offset were handed out.
    taken: usize,
}

impl Arena {
    /// The buffer of a place. Places are taken in the order in which they were added, each once.
    ///
    /// **Panics** otherwise, or on a place of a larger plan.
    pub fn take<T: Pod>(&mut self, place: Place<T>) -> Buffer<T> {
        assert!(place.offset_bytes >= self.taken, "a place of the plan is taken twice or out of order");
        self.taken = place.offset_bytes + place.len * size_of::<T>();
        Buffer::part(self.allocation.clone(), place.offset_bytes, place.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_side_by_side_at_multiples_of_256_bytes() {
        let Some(gpu) = Gpu::for_tests() else { return };
        let mut plan = Plan::default();
        let (ids, none, rest) = (plan.add::<u32>(3), plan.add::<f64>(0), plan.add::<f32>(65));
        assert_eq!(plan.bytes(), 256 + 512);
        let mut arena = plan.allocate(&gpu, "a step").unwrap();
        let (mut ids, none, mut rest) = (arena.take(ids), arena.take(none), arena.take(rest));
        assert_eq!((ids.len(), none.len(), rest.len()), (3, 0, 65));
        assert_eq!(rest.view().address - ids.view().address, 256);
        gpu.write(ids.view_mut(), &[1, 2, 3]).unwrap();
        gpu.write(rest.view_mut(), &[4.0; 65]).unwrap();
        drop(arena);
        assert_eq!(gpu.to_vec(ids.view()).unwrap(), [1, 2, 3]);
        assert_eq!(gpu.to_vec(rest.slice(63..65)).unwrap(), [4.0, 4.0]);
    }

    #[test]
    fn a_place_is_taken_once() {
        let Some(gpu) = Gpu::for_tests() else { return };
        let mut plan = Plan::default();
        let (first, second) = (plan.add::<u32>(3), plan.add::<u32>(3));
        let mut arena = plan.allocate(&gpu, "a step").unwrap();
        drop(arena.take(second));
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| arena.take(first)));
        let message = again.err().and_then(|panic| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        assert_eq!(message.as_deref(), Some("a place of the plan is taken twice or out of order"));
    }
}
