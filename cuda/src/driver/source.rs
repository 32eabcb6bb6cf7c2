//! Kernel sources, and what they are compiled for.

use super::Kind;
use std::fmt::{self, Write};

/// A file of `cuda/kernels`.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name, `norm.cu`.
    pub file: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// What every source stands on besides the machine's own prelude.
const COMMON: Source = Source { file: "common.cuh", text: include_str!("../../kernels/common.cuh") };

/// What the sources of attention stand on besides that: those that are compiled for a width of heads.
const ATTENTION: Source = Source { file: "attention.cuh", text: include_str!("../../kernels/attention.cuh") };

/// A source and the numbers that it is compiled for: what the compiler sees at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The source.
    pub source: &'static Source,
    /// What `element` is in it.
    pub element: Kind,
    /// `HEAD_DIM` of the kernels of attention: a head's width rounded up to a width that they are written for; 0 elsewhere.
    pub head_dim: u32,
}

impl Unit {
    /// The one text that is compiled: defines, the machine's prelude, what is shared, the source. It includes nothing.
    ///
    /// Its hash stands for the unit in every cache.
    pub fn text(&self, prelude: &Source) -> String {
        let mut text = String::new();
        if self.element == Kind::Bf16 {
            text.push_str("#define ELEMENT_BF16\n");
        }
        if self.head_dim > 0 {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "#define HEAD_DIM {}", self.head_dim);
        }
        let attention = Some(&ATTENTION).filter(|_| self.head_dim > 0);
        for source in [prelude, &COMMON].into_iter().chain(attention).chain([self.source]) {
            // So that messages name the file and line that a reader knows.
            let _ = writeln!(text, "#line 1 \"{}\"\n{}", source.file, source.text);
        }
        text
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = match self.element {
            Kind::F32 => "f32",
            Kind::Bf16 => "bf16",
        };
        write!(f, "{} for {element}", self.source.file)?;
        if self.head_dim > 0 { write!(f, " and heads of {}", self.head_dim) } else { Ok(()) }
    }
}
