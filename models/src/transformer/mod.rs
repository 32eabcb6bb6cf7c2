//! The transformer: configuration, forward, backward, decode.

mod config;
pub use config::{Config, ConfigError, Fault};
