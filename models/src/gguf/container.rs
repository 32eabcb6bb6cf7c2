//! The container: header, metadata and table of tensors of a GGUF file, as ranges of its bytes.
//!
//! Counts, lengths and offsets come from the file and are believed only as far as the file is long: each is checked
//! before anything of its size is allocated or skipped. Knows nothing of what keys and tensors mean.
//!
//! **Source** the format's description in ggml, `docs/gguf.md`; versions 2 and 3, little-endian.

use super::GgufFault;
use super::blocks::TensorType;
use std::collections::BTreeMap;
use std::ops::Range;

/// A value of the metadata. Texts and arrays stay in the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number of any width without sign.
    Unsigned(u64),
    /// A whole number of any width with sign.
    Signed(i64),
    /// An f32.
    F32(f32),
    /// An f64.
    F64(f64),
    /// true or false.
    Bool(bool),
    /// A text: where its bytes lie.
    Text(Range<usize>),
    /// Numbers, texts or arrays.
    Array(Array),
}

/// An array of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// What its elements are.
    pub kind: Kind,
    /// How many they are.
    pub len: usize,
    /// Where their bytes lie, end to end.
    pub at: Range<usize>,
}

/// Types of metadata values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_id(id: u32) -> Option<Kind> {
        use Kind::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Text, Array, U64, I64, F64].get(usize::try_from(id).ok()?).copied()
    }

    /// Bytes of the shortest value; of every value but for texts and arrays.
    fn least_bytes(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 | Kind::Text => 8,
            Kind::Array => 12,
        }
    }
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its number format.
    pub kind: TensorType,
    /// Its shape, row-major (the file lists it the other way round).
    pub shape: Vec<usize>,
    /// Where its bytes lie in the file.
    pub at: Range<usize>,
}

/// All that a file holds.
#[derive(Clone, Debug, Default)]
pub struct Container {
    /// Metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// Tensors by name.
    pub tensors: BTreeMap<String, TensorInfo>,
}

/// Arrays in arrays in arrays: deeper than any file, shallower than the stack.
const MAX_DEPTH: usize = 4;

/// Bytes of the shortest metadata entry (length of the key, type, value) and of the shortest tensor entry (length of the
/// name, number of dimensions, one dimension, type, offset).
const LEAST_ENTRY_BYTES: (usize, usize) = (8 + 4 + 1, 8 + 4 + 8 + 4 + 8);

/// Reads header, metadata and table of tensors of a file, and checks that every tensor lies in the file, none upon another.
///
/// **Errors** [`GgufFault`]; nothing larger than the file is allocated on the way.
pub fn parse(file: &[u8]) -> Result<Container, GgufFault> {
    let mut cursor = Cursor { file, at: 0 };
    if file.get(..4) != Some(b"GGUF") {
        return Err(GgufFault::Magic);
    }
    cursor.at = 4;
    let version = cursor.u32("the version")?;
    if !matches!(version, 2 | 3) {
        return Err(GgufFault::Version(version));
    }
    let tensor_count = cursor.count("the table of tensors", LEAST_ENTRY_BYTES.1)?;
    let entry_count = cursor.count("the metadata", LEAST_ENTRY_BYTES.0)?;
    let mut container = Container::default();
    for i in 0..entry_count {
        let key = cursor.name(|| format!("the key of metadata entry {i}"))?;
        let kind = cursor.kind(&key)?;
        let value = cursor.value(&key, kind, 0)?;
        if container.metadata.insert(key.clone(), value).is_some() {
            return Err(GgufFault::Metadata { key, reason: "is there twice".into() });
        }
    }
    let split = container.metadata.get("split.count");
    if let Some(Value::Unsigned(count @ 2..)) = split {
        return Err(GgufFault::Split(*count));
    }
    let mut infos = Vec::new();
    for i in 0..tensor_count {
        let name = cursor.name(|| format!("the name of tensor {i}"))?;
        infos.push(cursor.tensor(name)?);
    }
    place(&mut container, infos, cursor.at, file.len())?;
    Ok(container)
}

/// Finds the tensors in the file: behind the tables, in their order, each at the next aligned place (as ggml demands).
fn place(
    container: &mut Container,
    infos: Vec<(String, TensorInfo, usize)>,
    tables_end: usize,
    file_bytes: usize,
) -> Result<(), GgufFault> {
    let alignment = alignment(container)?;
    let cut = |name: &str| GgufFault::Cut(format!("tensor {name}"));
    let (mut start, mut expected) = (None, 0usize);
    for (name, mut info, offset) in infos {
        if offset != expected {
            let reason = format!("has the offset {offset}, but the tensors before it make that {expected}");
            return Err(GgufFault::Tensor { tensor: name, reason });
        }
        // The place of the data is asked for only when there is some: a file without tensors may end unaligned.
        let first = *start.get_or_insert(tables_end.checked_next_multiple_of(alignment).ok_or_else(|| cut(&name))?);
        let end =
            first.checked_add(offset).and_then(|at| at.checked_add(info.at.len())).filter(|end| *end <= file_bytes);
        let end = end.ok_or_else(|| cut(&name))?;
        info.at = end - info.at.len()..end;
        expected = (end - first).checked_next_multiple_of(alignment).ok_or_else(|| cut(&name))?;
        if container.tensors.insert(name.clone(), info).is_some() {
            return Err(GgufFault::Tensor { tensor: name, reason: "is there twice".into() });
        }
    }
    Ok(())
}

/// The multiple of bytes at which tensors begin.
fn alignment(container: &Container) -> Result<usize, GgufFault> {
    let key = "general.alignment";
    match container.metadata.get(key) {
        None => Ok(32),
        Some(Value::Unsigned(n)) if n.is_power_of_two() => Ok(usize::try_from(*n).unwrap_or(usize::MAX)),
        Some(other) => {
            let reason = format!("is {other:?}, not a power of two");
            Err(GgufFault::Metadata { key: key.into(), reason })
        }
    }
}

/// The elements of an array of texts.
pub fn texts<'a>(file: &'a [u8], array: &Array) -> impl Iterator<Item = &'a [u8]> {
    let mut cursor = Cursor { file, at: array.at.start };
    // The walk was checked when the file was opened.
    (0..array.len).map_while(move |_| cursor.text_range("a text").ok().map(|at| &file[at]))
}

/// The elements of an array of whole numbers of 32 bits.
pub fn words<'a>(file: &'a [u8], array: &Array) -> impl Iterator<Item = u32> + use<'a> {
    file[array.at.clone()].chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.file.len() - self.at
    }

    /// Passes over `len` bytes.
    fn skip(&mut self, len: usize, what: &str) -> Result<Range<usize>, GgufFault> {
        if len > self.left() {
            return Err(GgufFault::Cut(what.into()));
        }
        let at = self.at..self.at + len;
        self.at = at.end;
        Ok(at)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufFault> {
        let at = self.skip(N, what)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.file[at]);
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufFault> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// A length that no file of this size can hold is as good as a cut file.
    fn size(&mut self, what: &str) -> Result<usize, GgufFault> {
        let size = u64::from_le_bytes(self.array(what)?);
        usize::try_from(size).map_err(|_| GgufFault::Cut(what.into()))
    }

    /// A number of things that take at least `least_bytes` each.
    fn count(&mut self, what: &str, least_bytes: usize) -> Result<usize, GgufFault> {
        let count = self.size(what)?;
        let fits = count.checked_mul(least_bytes).is_some_and(|bytes| bytes <= self.left());
        if fits { Ok(count) } else { Err(GgufFault::Cut(what.into())) }
    }

    fn text_range(&mut self, what: &str) -> Result<Range<usize>, GgufFault> {
        let len = self.size(what)?;
        self.skip(len, what)
    }

    fn name(&mut self, what: impl Fn() -> String) -> Result<String, GgufFault> {
        let at = self.text_range(&what())?;
        let text = std::str::from_utf8(&self.file[at]).map_err(|_| GgufFault::NotText(what()))?;
        Ok(text.to_string())
    }

    fn kind(&mut self, key: &str) -> Result<Kind, GgufFault> {
        let id = self.u32(key)?;
        let unknown = || GgufFault::Metadata { key: key.into(), reason: format!("has the unknown type {id}") };
        Kind::from_id(id).ok_or_else(unknown)
    }

    fn value(&mut self, key: &str, kind: Kind, depth: usize) -> Result<Value, GgufFault> {
        Ok(match kind {
            Kind::U8 => Value::Unsigned(u8::from_le_bytes(self.array(key)?).into()),
            Kind::U16 => Value::Unsigned(u16::from_le_bytes(self.array(key)?).into()),
            Kind::U32 => Value::Unsigned(self.u32(key)?.into()),
            Kind::U64 => Value::Unsigned(u64::from_le_bytes(self.array(key)?)),
            Kind::I8 => Value::Signed(i8::from_le_bytes(self.array(key)?).into()),
            Kind::I16 => Value::Signed(i16::from_le_bytes(self.array(key)?).into()),
            Kind::I32 => Value::Signed(i32::from_le_bytes(self.array(key)?).into()),
            Kind::I64 => Value::Signed(i64::from_le_bytes(self.array(key)?)),
            Kind::F32 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            Kind::F64 => Value::F64(f64::from_le_bytes(self.array(key)?)),
            Kind::Bool => match self.array(key)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => {
                    let reason = format!("is {other}, neither 0 (false) nor 1 (true)");
                    return Err(GgufFault::Metadata { key: key.into(), reason });
                }
            },
            Kind::Text => Value::Text(self.text_range(key)?),
            Kind::Array => Value::Array(self.elements(key, depth)?),
        })
    }

    fn elements(&mut self, key: &str, depth: usize) -> Result<Array, GgufFault> {
        if depth == MAX_DEPTH {
            let reason = format!("holds arrays in arrays, deeper than {MAX_DEPTH}");
            return Err(GgufFault::Metadata { key: key.into(), reason });
        }
        let kind = self.kind(key)?;
        let len = self.count(key, kind.least_bytes())?;
        let start = self.at;
        match kind {
            Kind::Text => {
                for _ in 0..len {
                    self.text_range(key)?;
                }
            }
            Kind::Array => {
                for _ in 0..len {
                    self.elements(key, depth + 1)?;
                }
            }
            _ => {
                self.skip(len * kind.least_bytes(), key)?;
            }
        }
        Ok(Array { kind, len, at: start..self.at })
    }

    /// A line of the table of tensors: its name, what it is (`at` has the right length, from 0), its offset.
    fn tensor(&mut self, name: String) -> Result<(String, TensorInfo, usize), GgufFault> {
        let wrong = |reason: String| GgufFault::Tensor { tensor: name.clone(), reason };
        let n_dims = self.u32(&name)?;
        if !(1..=4).contains(&n_dims) {
            return Err(wrong(format!("has {n_dims} dimensions, not 1 to 4")));
        }
        let mut shape = Vec::with_capacity(4);
        for _ in 0..n_dims {
            shape.insert(0, self.size(&name)?);
        }
        let id = self.u32(&name)?;
        let offset = self.size(&name)?;
        let kind = TensorType::from_id(id).map_err(|kind| GgufFault::Type { tensor: name.clone(), kind })?;
        let elements = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size)).filter(|n| *n > 0);
        let elements = elements.ok_or_else(|| wrong(format!("has the impossible shape {shape:?}")))?;
        if !shape[shape.len() - 1].is_multiple_of(kind.block_elements()) {
            let reason = format!(
                "has rows of {} numbers, but {kind:?} packs {} together",
                shape[shape.len() - 1],
                kind.block_elements()
            );
            return Err(wrong(reason));
        }
        let bytes = kind.bytes(elements).ok_or_else(|| wrong(format!("has the impossible shape {shape:?}")))?;
        Ok((name, TensorInfo { kind, shape, at: 0..bytes }, offset))
    }
}
