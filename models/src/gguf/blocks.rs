//! Number formats of GGUF tensors: how many bytes they take and which f32 each one stands for.
//!
//! Every format is exact in f32 up to one rounding (a product of small integers and an f16 scale, then at most one sum),
//! so the order of operations cannot change a bit. Knows blocks of bytes; not where they lie in a file.
//!
//! **Source** the block structs of ggml (`ggml-common.h`), whose type numbers these are.

use half::{bf16, f16};

/// A number format that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)] // The names by which everybody calls them.
#[allow(missing_docs)]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

use TensorType::*;

/// What the numbers of other types are called, so that a refusal can name them.
const UNSUPPORTED: [(u32, &str); 27] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (39, "MXFP4"),
];

impl TensorType {
    /// All formats that can be read.
    pub const ALL: [TensorType; 11] = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K];

    /// The format of ggml's number `id`.
    ///
    /// **Errors** the name of a format that is not read here.
    pub fn from_id(id: u32) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.id() == id).ok_or_else(|| {
            UNSUPPORTED
                .iter()
                .find(|(other, _)| *other == id)
                .map_or(format!("number {id}"), |(_, name)| name.to_string())
        })
    }

    /// ggml's number of the format.
    pub fn id(self) -> u32 {
        match self {
            F32 => 0,
            F16 => 1,
            BF16 => 30,
            Q4_0 => 2,
            Q4_1 => 3,
            Q5_0 => 6,
            Q5_1 => 7,
            Q8_0 => 8,
            Q4_K => 12,
            Q5_K => 13,
            Q6_K => 14,
        }
    }

    /// Numbers in one block; a row is a whole number of blocks.
    pub fn block_elements(self) -> usize {
        match self {
            F32 | F16 | BF16 => 1,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 => 32,
            Q4_K | Q5_K | Q6_K => 256,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            F32 => 4,
            F16 | BF16 => 2,
            Q4_0 => 18,
            Q4_1 => 20,
            Q5_0 => 22,
            Q5_1 => 24,
            Q8_0 => 34,
            Q4_K => 144,
            Q5_K => 176,
            Q6_K => 210,
        }
    }

    /// Bytes of `elements` numbers, or `None` where that is no whole number of blocks or more than fits a `usize`.
    pub fn bytes(self, elements: usize) -> Option<usize> {
        let whole = elements.is_multiple_of(self.block_elements());
        if whole { (elements / self.block_elements()).checked_mul(self.block_bytes()) } else { None }
    }

    /// Converts blocks to f32.
    ///
    /// **Panics** unless `bytes` are the bytes of `to.len()` numbers.
    pub fn dequantise(self, bytes: &[u8], to: &mut [f32]) {
        assert_eq!(Some(bytes.len()), self.bytes(to.len()), "{self:?} blocks of another length");
        let blocks = bytes.chunks_exact(self.block_bytes()).zip(to.chunks_exact_mut(self.block_elements()));
        match self {
            F32 => blocks.for_each(|(b, y)| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            F16 => blocks.for_each(|(b, y)| y[0] = half_at(b, 0)),
            BF16 => blocks.for_each(|(b, y)| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            Q4_0 => blocks.for_each(|(b, y)| q4_0(b, y)),
            Q4_1 => blocks.for_each(|(b, y)| q4_1(b, y)),
            Q5_0 => blocks.for_each(|(b, y)| q5_0(b, y)),
            Q5_1 => blocks.for_each(|(b, y)| q5_1(b, y)),
            Q8_0 => blocks.for_each(|(b, y)| q8_0(b, y)),
            Q4_K => blocks.for_each(|(b, y)| q4_k(b, y)),
            Q5_K => blocks.for_each(|(b, y)| q5_k(b, y)),
            Q6_K => blocks.for_each(|(b, y)| q6_k(b, y)),
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// d f16, 16 bytes of nibbles: the low ones are the first 16 numbers. **Math** y = d (q − 8).
fn q4_0(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    for j in 0..16 {
        let q = block[2 + j];
        y[j] = d * (f32::from(q & 15) - 8.0);
        y[j + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

/// d f16, m f16, 16 bytes of nibbles. **Math** y = d q + m.
fn q4_1(block: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for j in 0..16 {
        let q = block[4 + j];
        y[j] = d * f32::from(q & 15) + m;
        y[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// The fifth bits of 32 numbers, number j's in bit j.
fn high_bits(block: &[u8], at: usize) -> impl Fn(usize) -> u8 {
    let bits = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    move |j| ((bits >> j & 1) as u8) << 4
}

/// d f16, 4 bytes of fifth bits, 16 bytes of nibbles. **Math** y = d (q − 16).
fn q5_0(block: &[u8], y: &mut [f32]) {
    let (d, high) = (half_at(block, 0), high_bits(block, 2));
    for j in 0..16 {
        let q = block[6 + j];
        y[j] = d * (f32::from(q & 15 | high(j)) - 16.0);
        y[j + 16] = d * (f32::from(q >> 4 | high(j + 16)) - 16.0);
    }
}

/// d f16, m f16, 4 bytes of fifth bits, 16 bytes of nibbles. **Math** y = d q + m.
fn q5_1(block: &[u8], y: &mut [f32]) {
    let (d, m, high) = (half_at(block, 0), half_at(block, 2), high_bits(block, 4));
    for j in 0..16 {
        let q = block[8 + j];
        y[j] = d * f32::from(q & 15 | high(j)) + m;
        y[j + 16] = d * f32::from(q >> 4 | high(j + 16)) + m;
    }
}

/// d f16, 32 signed bytes. **Math** y = d q.
fn q8_0(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 0);
    for j in 0..32 {
        y[j] = d * f32::from(block[2 + j] as i8);
    }
}

/// The 6-bit scale and minimum of sub-block `j` (of 8), packed in 12 bytes.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// d f16, dmin f16, 12 bytes of scales, 128 bytes of nibbles. **Math** y = (d s) q − dmin m for each 32 numbers.
fn q4_k(block: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for j in 0..4 {
        let (s0, m0) = scale_and_min(&block[4..16], 2 * j);
        let (s1, m1) = scale_and_min(&block[4..16], 2 * j + 1);
        for l in 0..32 {
            let q = block[16 + 32 * j + l];
            y[64 * j + l] = d * s0 * f32::from(q & 15) - dmin * m0;
            y[64 * j + 32 + l] = d * s1 * f32::from(q >> 4) - dmin * m1;
        }
    }
}

/// d f16, dmin f16, 12 bytes of scales, 32 bytes of fifth bits, 128 bytes of nibbles. **Math** as [`q4_k`].
fn q5_k(block: &[u8], y: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for j in 0..4 {
        let (s0, m0) = scale_and_min(&block[4..16], 2 * j);
        let (s1, m1) = scale_and_min(&block[4..16], 2 * j + 1);
        for l in 0..32 {
            let (high, q) = (block[16 + l] >> (2 * j), block[48 + 32 * j + l]);
            y[64 * j + l] = d * s0 * f32::from(q & 15 | (high & 1) << 4) - dmin * m0;
            y[64 * j + 32 + l] = d * s1 * f32::from(q >> 4 | (high >> 1 & 1) << 4) - dmin * m1;
        }
    }
}

/// 128 bytes of nibbles, 64 bytes of upper bit pairs, 16 signed scales, d f16. **Math** y = (d s) (q − 32) for each 16.
fn q6_k(block: &[u8], y: &mut [f32]) {
    let d = half_at(block, 208);
    for half in 0..2 {
        let scale = |j: usize| d * f32::from(block[192 + 8 * half + j] as i8);
        for l in 0..32 {
            let (low0, low1) = (block[64 * half + l], block[64 * half + 32 + l]);
            let high = block[128 + 32 * half + l];
            let mut put = |part: usize, low: u8| {
                let q = low | (high >> (2 * part) & 3) << 4;
                y[128 * half + 32 * part + l] = scale(2 * part + l / 16) * (f32::from(q) - 32.0);
            };
            put(0, low0 & 15);
            put(1, low1 & 15);
            put(2, low0 >> 4);
            put(3, low1 >> 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_of_formats_are_told_apart() {
        for kind in TensorType::ALL {
            assert_eq!(TensorType::from_id(kind.id()), Ok(kind));
            assert!(UNSUPPORTED.iter().all(|(id, name)| *id != kind.id() && *name != format!("{kind:?}")));
        }
        assert_eq!(TensorType::from_id(10), Err("Q2_K".to_string()));
        assert_eq!(TensorType::from_id(4), Err("number 4".to_string()));
        assert_eq!(TensorType::from_id(u32::MAX), Err("number 4294967295".to_string()));
    }

    #[test]
    fn bytes_of_a_row_need_whole_blocks() {
        assert_eq!(Q4_1.bytes(64), Some(40));
        assert_eq!(Q4_1.bytes(48), None);
        assert_eq!(Q6_K.bytes(512), Some(420));
        assert_eq!(F16.bytes(3), Some(6));
        assert_eq!(F32.bytes(usize::MAX), None);
        assert_eq!(Q8_0.bytes(0), Some(0));
    }

    #[test]
    fn the_extremes_of_each_integer_are_where_they_should_be() {
        // d = 2, m = −1; nibble 15 first, then zeros.
        let (two, minus_one) = (f16::from_f32(2.0).to_le_bytes(), f16::from_f32(-1.0).to_le_bytes());
        let mut y = [0.0; 32];
        let mut q40 = [0u8; 18];
        q40[..2].copy_from_slice(&two);
        q40[2] = 0x0f;
        Q4_0.dequantise(&q40, &mut y);
        assert_eq!((y[0], y[1], y[16]), (14.0, -16.0, -16.0));
        let mut q51 = [0u8; 24];
        q51[..2].copy_from_slice(&two);
        q51[2..4].copy_from_slice(&minus_one);
        q51[4..8].copy_from_slice(&(1u32 << 31 | 1).to_le_bytes());
        q51[8] = 0xf0;
        Q5_1.dequantise(&q51, &mut y);
        assert_eq!((y[0], y[1], y[16], y[31]), (31.0, -1.0, 29.0, 31.0));
        let mut q80 = [0x80u8; 34];
        q80[..2].copy_from_slice(&two);
        Q8_0.dequantise(&q80, &mut y);
        assert_eq!(y, [-256.0; 32]);
    }
}
