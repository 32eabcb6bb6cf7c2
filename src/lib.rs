//! Rewards, advantages, filters, diagnosis, the training loop and the command line.
//!
//! This crate knows rewards, advantages, filters and the loop; it never sees a tensor: its numbers are host slices, one
//! value a token.

pub mod agent_proxy;
pub mod bench;
pub mod collapse;
pub mod config;
pub mod context_manager;
pub mod doctor;
pub mod env_manager;
pub mod estimator;
pub mod eval;
pub mod filter;
pub mod from_ragen;
pub mod gradient_analysis;
pub mod guards;
pub mod hydra;
pub mod objective;
pub mod plan;
pub mod policy;
pub mod protocol;
pub mod reward;
pub mod run;
pub mod settings;
pub mod statistics;
pub mod train;
pub mod trajectory;
pub mod update;
pub mod warmstart;
