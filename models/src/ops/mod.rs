//! The operations of a transformer, forward and backward side by side.
//!
//! A backward ADDS into the gradients that it returns; the caller zeroes them.

pub mod attention;
pub mod embedding;
pub mod gemm;
pub mod head;
pub mod linear;
pub mod norm;
pub mod pointwise;
pub mod rope;
