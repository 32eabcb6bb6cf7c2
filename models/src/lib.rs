//! From a buffer to a language model: tensor core, transformer, sampling, optimiser, weights.
//!
//! This crate knows tensors; it has never heard of a reward. It alone reads weights and tokenizers.

pub mod atomic_file;
pub mod chat_template;
pub mod config;
pub mod device;
pub mod doctor;
pub mod engine;
pub mod gguf;
pub mod gpu;
pub mod kv_cache;
pub mod lora;
pub mod math;
pub mod memory;
pub mod named_buffers;
pub mod ops;
pub mod optim;
pub mod params;
pub mod peft;
pub mod pretrained;
pub mod random;
pub mod sampler;
pub mod simd;
pub mod threads;
pub mod token_tree;
pub mod tokenizer;
pub mod transformer;
pub mod twin;
pub mod weights;
