//! The operations of a transformer, forward and backward side by side.
//!
//! A backward ADDS into the gradients that it returns; the caller zeroes them.

pub mod gemm;
