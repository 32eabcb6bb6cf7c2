//! Tasks for language-model agents: text in, text out.
//!
//! This crate knows tasks; it has never heard of a token.
