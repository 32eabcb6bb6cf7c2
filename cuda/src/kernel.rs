//! What is known of a kernel before it runs, and how arguments are handed to it.

use crate::buffer::{Element, View, ViewMut};
use crate::driver::{Arg, Source, Unit};

/// A kernel: its name in its source, and what is known of it before it runs.
#[derive(Debug)]
pub struct Kernel {
    /// Name of the function.
    pub name: &'static str,
    /// The file it stands in.
    pub source: &'static Source,
    /// Threads of a block, as in its `KERNEL(…)`.
    pub threads: u32,
    /// The `HEAD_DIM`s that its source is compiled for; one 0 where it does not depend on the width of heads.
    pub head_dims: &'static [usize],
    /// Why it has a frame in local memory; `None` for a kernel that must not have one.
    pub frame: Option<&'static str>,
    /// Dynamic shared memory of a block at a shape.
    pub shared_bytes: fn(&Shape) -> usize,
    /// What a launch moves and computes at a shape.
    pub work: fn(&Shape) -> Work,
}

impl Kernel {
    /// A kernel without shared memory and local frame, of which nothing more is known yet: the manifest's entries begin with this.
    pub(crate) const fn new(name: &'static str, source: &'static Source, threads: u32) -> Self {
        Kernel {
            name,
            source,
            threads,
            head_dims: &[0],
            frame: None,
            shared_bytes: |_| 0,
            work: |_| Work { bytes: 0.0, flops: 0.0 },
        }
    }

    /// The unit that has this kernel for activations of type E, when it does not depend on the width of heads.
    pub(crate) fn unit<E: Element>(&self) -> Unit {
        Unit { source: self.source, element: E::KIND, head_dim: 0 }
    }
}

/// The shape at which kernels are compared with one another: a model and a batch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of an `element`.
    pub element_bytes: usize,
    /// Tokens of the batch.
    pub rows: usize,
    /// Tokens of each of its sequences.
    pub sequence: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads, key heads and their width.
    pub heads: [usize; 3],
    /// Width of the SwiGLU.
    pub d_ff: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Trained numbers.
    pub parameters: usize,
}

impl Shape {
    /// The 0.5B shape (24 layers like Qwen2.5-0.5B's) with 8 sequences of 512 tokens.
    pub const fn half_billion(element_bytes: usize) -> Self {
        Shape {
            element_bytes,
            rows: 8 * 512,
            sequence: 512,
            d_model: 896,
            heads: [14, 2, 64],
            d_ff: 4864,
            vocab: 151_936,
            parameters: 494_032_768,
        }
    }

    /// A shape that the emulator gets through in no time.
    pub const fn tiny(element_bytes: usize) -> Self {
        Shape {
            element_bytes,
            rows: 2 * 33,
            sequence: 33,
            d_model: 40,
            heads: [4, 2, 16],
            d_ff: 72,
            vocab: 83,
            parameters: 20_000,
        }
    }
}

/// What a launch moves from and to device memory when everything is read and written once, and computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Bytes.
    pub bytes: f64,
    /// Floating-point operations.
    pub flops: f64,
}

/// Turns views and numbers into what [`crate::Gpu::launch`] takes.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { &[$($crate::kernel::AsArg::as_arg(&$arg)),*] };
}
pub(crate) use args;

/// Something that a kernel takes as an argument.
pub(crate) trait AsArg {
    fn as_arg(&self) -> Arg;
}

impl AsArg for Arg {
    fn as_arg(&self) -> Arg {
        *self
    }
}

impl<T> AsArg for View<'_, T> {
    fn as_arg(&self) -> Arg {
        Arg::Address(self.address)
    }
}

impl<T> AsArg for ViewMut<'_, T> {
    fn as_arg(&self) -> Arg {
        Arg::Address(self.address)
    }
}

/// A missing argument is a null pointer.
impl<T> AsArg for Option<View<'_, T>> {
    fn as_arg(&self) -> Arg {
        Arg::Address(self.map_or(0, |view| view.address))
    }
}

impl<T> AsArg for Option<ViewMut<'_, T>> {
    fn as_arg(&self) -> Arg {
        Arg::Address(self.as_ref().map_or(0, |view| view.address))
    }
}

/// Sizes and indices are `u32` in kernels.
impl AsArg for usize {
    fn as_arg(&self) -> Arg {
        Arg::U32(u32::try_from(*self).expect("a size below 2^32"))
    }
}

impl AsArg for u64 {
    fn as_arg(&self) -> Arg {
        Arg::U64(*self)
    }
}

impl AsArg for u32 {
    fn as_arg(&self) -> Arg {
        Arg::U32(*self)
    }
}

impl AsArg for bool {
    fn as_arg(&self) -> Arg {
        Arg::U32(u32::from(*self))
    }
}

impl AsArg for f32 {
    fn as_arg(&self) -> Arg {
        Arg::F32(*self)
    }
}

impl AsArg for f64 {
    fn as_arg(&self) -> Arg {
        Arg::F64(*self)
    }
}
