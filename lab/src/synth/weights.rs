//! [`RandomBlocks`]: random weights of a given spread, written in the bytes of their type.
//!
//! Quantizing random floats would take minutes for a large model. Random bytes are already random quants; only the scales must
//! be set, so that decoded weights have the mean 0 and the requested standard deviation. Invariant: the bytes of a block
//! depend only on the stream and the block's index.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use tokenmill_gguf::TensorType;
use tokenmill_quant::Format;

/// An endless sequence of random numbers with random access: number `i` is a hash of `i` (SplitMix64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    key: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Stream {
    /// Returns the stream of one tensor.
    pub(crate) fn new(seed: u64, tensor_idx: u64) -> Self {
        Self {
            key: mix(mix(seed.wrapping_add(GOLDEN)) ^ tensor_idx.wrapping_mul(GOLDEN)),
        }
    }

    fn word(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(GOLDEN)))
    }

    /// Fills `bytes`, which start `first_byte` bytes into the stream; that must be a multiple of 8.
    fn fill(self, first_byte: usize, bytes: &mut [u8]) {
        let first_word = (first_byte / 8) as u64;
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for (word, index) in words.iter_mut().zip(first_word..) {
            *word = self.word(index).to_le_bytes();
        }
        let last = self.word(first_word + words.len() as u64).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// Fills `numbers` with floats spread evenly around `mean`.
    fn fill_floats(self, first_index: usize, mean: f32, std: f32, numbers: &mut [f32]) {
        // An even spread over [-a, a] has the standard deviation a / sqrt(3).
        let scale = std * 3_f32.sqrt() / (1_u32 << 31) as f32;
        for (number, index) in numbers.iter_mut().zip(first_index as u64..) {
            *number = mean + (self.word(index) >> 32) as u32 as i32 as f32 * scale;
        }
    }
}

/// Returns the bytes of `n` floats around `mean`.
pub(super) fn floats(stream: Stream, n: usize, mean: f32, std: f32) -> Vec<u8> {
    let mut numbers = vec![0.0; n];
    stream.fill_floats(0, mean, std, &mut numbers);
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Scales of the blocks of a quantized format, chosen so that their weights have mean 0 and the requested
/// spread.
#[derive(Clone, Copy, Debug)]
struct Scales {
    scale: f32,
    min: f32,
    /// Whether the quants are asymmetric without a minimum that balances them. The scale then has a random sign, so that
    /// blocks lean to either side.
    has_random_sign: bool,
    /// The share of blocks whose scale is doubled, of formats whose scales are powers of two.
    doubled: f64,
}

/// Largest relative error of the spread of weights.
const TOLERANCE: f64 = 0.02;

impl Scales {
    /// Measures random blocks. `None` for formats that cannot store such a scale, a power of two say.
    fn measure(format: &Format, std: f32) -> Option<Self> {
        let (mean, spread) = spread_of(format, 1.0, 0.0);
        let (mean_of_min, _) = spread_of(format, 0.0, 1.0);
        let min_per_scale = if mean_of_min == 0.0 {
            0.0
        } else {
            -mean / mean_of_min
        };
        let (mean, spread_with_min) = if mean_of_min == 0.0 {
            (mean, spread)
        } else {
            spread_of(format, 1.0, min_per_scale as f32)
        };
        let has_random_sign = mean.abs() > TOLERANCE / 4.0 * spread_with_min;
        // Blocks that lean to either side spread around 0, not around their mean.
        let spread = if has_random_sign {
            mean.hypot(spread_with_min)
        } else {
            spread_with_min
        };
        let scale = (f64::from(std) / spread) as f32;
        let scales = Self {
            scale,
            min: scale * min_per_scale as f32,
            has_random_sign,
            doubled: 0.0,
        };
        let (mean, spread) = spread_of(format, scales.scale, scales.min);
        let found = if has_random_sign {
            mean.hypot(spread)
        } else {
            spread
        };
        if (found / f64::from(std) - 1.0).abs() < TOLERANCE {
            return Some(scales);
        }
        // A mixture of two powers of two has any spread between theirs.
        let scale = 2_f32.powf(scale.log2().floor());
        let (_, spread) = spread_of(format, scale, 0.0);
        let doubled = ((f64::from(std) / spread).powi(2) - 1.0) / 3.0;
        (0.0..=1.0).contains(&doubled).then_some(Self {
            scale,
            doubled,
            ..scales
        })
    }
}

/// Returns the mean and the standard deviation of the weights of random blocks with these scales.
fn spread_of(format: &Format, scale: f32, min: f32) -> (f64, f64) {
    const N_WEIGHTS: usize = 1 << 18;
    let mut bytes = vec![0; N_WEIGHTS / format.block_len() * format.block_bytes()];
    Stream::new(0, 0).fill(0, &mut bytes);
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        format.set_scales(block, scale, min);
    }
    let mut weights = vec![0.0; N_WEIGHTS];
    format
        .dequantize_row(&bytes, &mut weights)
        .expect("the bytes are whole blocks");
    let n = N_WEIGHTS as f64;
    let mean = weights.iter().map(|&weight| f64::from(weight)).sum::<f64>() / n;
    let squares = weights.iter().map(|&weight| (f64::from(weight) - mean).powi(2));
    (mean, (squares.sum::<f64>() / n).sqrt())
}

/// Makes random blocks of one type.
pub(crate) struct RandomBlocks {
    format: &'static Format,
    std: f32,
    /// `None` for floats.
    scales: Option<Scales>,
}

impl RandomBlocks {
    /// Prepares blocks whose weights have this standard deviation; `None` for types that cannot have it.
    pub(crate) fn new(ty: TensorType, std: f32) -> Option<Self> {
        let format = tokenmill_quant::format(ty)?;
        let scales = if format.is_float() {
            None
        } else {
            Some(Scales::measure(format, std)?)
        };
        Some(Self { format, std, scales })
    }

    /// Fills `bytes` with whole blocks, the first of which is block `first_block` of the tensor.
    pub(crate) fn fill(&self, stream: Stream, first_block: usize, bytes: &mut [u8]) {
        match self.scales {
            None => self.fill_floats(stream, first_block, bytes),
            Some(scales) => self.fill_quants(scales, stream, first_block, bytes),
        }
    }

    fn fill_floats(&self, stream: Stream, first_index: usize, bytes: &mut [u8]) {
        const BATCH: usize = 1024;
        let element_bytes = self.format.block_bytes();
        let mut numbers = [0.0; BATCH];
        let mut halves = [0; BATCH];
        for (bytes, index) in bytes
            .chunks_mut(BATCH * element_bytes)
            .zip((first_index..).step_by(BATCH))
        {
            let n = bytes.len() / element_bytes;
            let (numbers, halves) = (&mut numbers[..n], &mut halves[..n]);
            stream.fill_floats(index, 0.0, self.std, numbers);
            match self.format.tensor_type() {
                TensorType::F32 => {
                    for (bytes, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
                        *bytes = number.to_le_bytes();
                    }
                    continue;
                }
                TensorType::BF16 => {
                    for (half, &mut number) in halves.iter_mut().zip(numbers) {
                        *half = bf16::from_f32(number).to_bits();
                    }
                }
                _ => {
                    let mut rounded = [f16::ZERO; BATCH];
                    rounded[..n].convert_from_f32_slice(numbers);
                    for (half, number) in halves.iter_mut().zip(&rounded) {
                        *half = number.to_bits();
                    }
                }
            }
            for (bytes, half) in bytes.as_chunks_mut().0.iter_mut().zip(halves) {
                *bytes = half.to_le_bytes();
            }
        }
    }

    fn fill_quants(&self, scales: Scales, stream: Stream, first_block: usize, bytes: &mut [u8]) {
        let block_bytes = self.format.block_bytes();
        // Blocks are rarely a multiple of 8 bytes; each has its own whole words of the stream.
        let stride = block_bytes.next_multiple_of(8);
        for (block, block_idx) in bytes.chunks_exact_mut(block_bytes).zip(first_block..) {
            stream.fill(block_idx * stride, block);
            let is_negative = scales.has_random_sign && mix(stream.key ^ !(block_idx as u64)) >> 63 == 1;
            let scale = if is_negative { -scales.scale } else { scales.scale };
            let draw = (mix(stream.key ^ !(block_idx as u64)) >> 11) as f64 / (1_u64 << 53) as f64;
            let scale = if draw < scales.doubled { 2.0 * scale } else { scale };
            self.format.set_scales(block, scale, scales.min);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 MiB of blocks has some hundred thousand weights, so that their mean and spread are known to a percent.
    #[test]
    fn decoded_weights_have_the_mean_and_spread_asked_for() {
        const STD: f32 = 0.02;
        for &ty in TensorType::ALL {
            let Some(blocks) = RandomBlocks::new(ty, STD) else {
                continue;
            };
            let n_blocks = (1 << 20) / ty.block_bytes();
            let mut bytes = vec![0; n_blocks * ty.block_bytes()];
            blocks.fill(Stream::new(1, 2), 0, &mut bytes);
            let mut weights = vec![0.0; n_blocks * ty.block_len()];
            if tokenmill_quant::dequantize_row(ty, &bytes, &mut weights).is_err() {
                continue; // A type whose arithmetic is not known has a stated spread only.
            }
            let n = weights.len() as f64;
            let mean = weights.iter().map(|&weight| f64::from(weight)).sum::<f64>() / n;
            let variance = weights
                .iter()
                .map(|&weight| (f64::from(weight) - mean).powi(2))
                .sum::<f64>()
                / n;
            let std = f64::from(STD);
            assert!(mean.abs() < 0.02 * std, "{ty}: mean {mean}");
            assert!(
                (variance.sqrt() / std - 1.0).abs() < 0.02,
                "{ty}: {}",
                variance.sqrt()
            );
        }
    }

    #[test]
    fn blocks_do_not_depend_on_where_filling_starts() {
        for ty in [TensorType::F16, TensorType::Q4_0, TensorType::Q6_K] {
            let blocks = RandomBlocks::new(ty, 1.0).unwrap();
            let mut whole = vec![0; 40 * ty.block_bytes()];
            blocks.fill(Stream::new(1, 0), 0, &mut whole);
            let mut tail = vec![0; 15 * ty.block_bytes()];
            blocks.fill(Stream::new(1, 0), 25, &mut tail);
            assert!(whole.ends_with(&tail), "{ty}");
        }
    }

    #[test]
    fn tensors_have_streams_of_their_own() {
        let words: std::collections::HashSet<u64> = (0..100)
            .map(|tensor_idx| Stream::new(1, tensor_idx).word(0))
            .collect();
        assert_eq!(words.len(), 100);
        assert_ne!(Stream::new(1, 0).word(0), Stream::new(2, 0).word(0));
    }
}
