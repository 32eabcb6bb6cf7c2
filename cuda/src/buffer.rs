//! Device memory: owned buffers and borrowed views of one element type, like `Vec`, `&[T]` and `&mut [T]`.

use crate::CudaError;
use crate::driver::{Driver, Kind};
use bytemuck::Pod;
use half::bf16;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A number type that the kernels' `element` can be: f32 or bf16.
pub trait Element: Pod + Send + Sync {
    /// Its name below the driver.
    const KIND: Kind;
    /// The nearest number of this type.
    fn from_f32(x: f32) -> Self;
    /// The same number as f32.
    fn to_f32(self) -> f32;
}

impl Element for f32 {
    const KIND: Kind = Kind::F32;
    fn from_f32(x: f32) -> f32 {
        x
    }
    fn to_f32(self) -> f32 {
        self
    }
}

impl Element for bf16 {
    const KIND: Kind = Kind::Bf16;
    fn from_f32(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
}

/// Bytes that all buffers of a device hold.
#[derive(Default)]
pub(crate) struct Holding {
    pub now: AtomicUsize,
    pub most: AtomicUsize,
}

/// One allocation of the device, given back when it is dropped.
struct Allocation {
    driver: Arc<dyn Driver>,
    holding: Arc<Holding>,
    address: u64,
    /// As the driver rounds it.
    taken_bytes: usize,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.driver.free(self.address);
        self.holding.now.fetch_sub(self.taken_bytes, Relaxed);
    }
}

/// `len` numbers of type T in device memory.
pub struct Buffer<T> {
    /// Held so that the memory stays as long as the buffer.
    allocation: Allocation,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Memory with undefined contents; `what` names it when memory is short.
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        holding: &Arc<Holding>,
        what: &str,
        len: usize,
    ) -> Result<Self, CudaError> {
        let bytes = len * size_of::<T>();
        let (address, taken_bytes) = (driver.allocate(what, bytes)?, driver.taken(bytes));
        let now = holding.now.fetch_add(taken_bytes, Relaxed) + taken_bytes;
        holding.most.fetch_max(now, Relaxed);
        let allocation = Allocation { driver: driver.clone(), holding: holding.clone(), address, taken_bytes };
        Ok(Buffer { allocation, len, kind: PhantomData })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it, to be read.
    pub fn view(&self) -> View<'_, T> {
        View { address: self.allocation.address, len: self.len, life: PhantomData }
    }

    /// All of it, to be written.
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut { address: self.allocation.address, len: self.len, life: PhantomData }
    }

    /// A part, to be read.
    ///
    /// **Panics** outside the buffer.
    pub fn slice(&self, range: Range<usize>) -> View<'_, T> {
        self.view().slice(range)
    }

    /// A part, to be written.
    ///
    /// **Panics** outside the buffer.
    pub fn slice_mut(&mut self, range: Range<usize>) -> ViewMut<'_, T> {
        self.view_mut().slice(range)
    }
}

/// Device memory borrowed to be read.
#[derive(Debug)]
pub struct View<'a, T> {
    pub(crate) address: u64,
    pub(crate) len: usize,
    life: PhantomData<&'a [T]>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<'a, T: Pod> View<'a, T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// **Panics** outside the view.
    pub fn slice(self, range: Range<usize>) -> View<'a, T> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of a view of {}", self.len);
        View { address: self.address + (range.start * size_of::<T>()) as u64, len: range.len(), life: PhantomData }
    }

    /// The same memory as numbers of another type.
    ///
    /// **Panics** if it is no whole number of them, or does not begin where one can.
    pub fn cast<U: Pod>(self) -> View<'a, U> {
        View { address: self.address, len: recount::<T, U>(self.address, self.len), life: PhantomData }
    }

    /// Where it begins: a name for the memory, by which it is known again.
    pub fn address(&self) -> u64 {
        self.address
    }
}

/// How many U there are in `len` T at an address.
fn recount<T, U>(address: u64, len: usize) -> usize {
    let bytes = len * size_of::<T>();
    let fits = bytes.is_multiple_of(size_of::<U>()) && address.is_multiple_of(align_of::<U>() as u64);
    assert!(fits, "{bytes} bytes at {address:#x} are no numbers of {} bytes", size_of::<U>());
    bytes / size_of::<U>()
}

/// Device memory borrowed to be written.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    pub(crate) address: u64,
    pub(crate) len: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<'a, T: Pod> ViewMut<'a, T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same memory for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut { address: self.address, len: self.len, life: PhantomData }
    }

    /// The same memory, to be read.
    pub fn view(&self) -> View<'_, T> {
        View { address: self.address, len: self.len, life: PhantomData }
    }

    /// A part of it.
    ///
    /// **Panics** outside the view.
    pub fn slice(self, range: Range<usize>) -> ViewMut<'a, T> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of a view of {}", self.len);
        ViewMut { address: self.address + (range.start * size_of::<T>()) as u64, len: range.len(), life: PhantomData }
    }

    /// The same memory as numbers of another type.
    ///
    /// **Panics** if it is no whole number of them, or does not begin where one can.
    pub fn cast<U: Pod>(self) -> ViewMut<'a, U> {
        ViewMut { address: self.address, len: recount::<T, U>(self.address, self.len), life: PhantomData }
    }

    /// Two parts that may be written side by side.
    ///
    /// **Panics** if `middle` is outside the view.
    pub fn split_at(self, middle: usize) -> (ViewMut<'a, T>, ViewMut<'a, T>) {
        assert!(middle <= self.len, "{middle} of a view of {}", self.len);
        let second = self.address + (middle * size_of::<T>()) as u64;
        (
            ViewMut { address: self.address, len: middle, life: PhantomData },
            ViewMut { address: second, len: self.len - middle, life: PhantomData },
        )
    }
}
