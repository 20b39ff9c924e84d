//! [`KScales`]: the eight 6-bit scales and eight 6-bit minima of a Q4_K or Q5_K block, in 12 bytes.
//!
//! | bytes | bits 0-3 | bits 4-5 | bits 6-7 |
//! |---|---|---|---|
//! | 0-3 | scale `i`, low | scale `i`, high | scale `i + 4`, high |
//! | 4-7 | min `i`, low | min `i`, high | min `i + 4`, high |
//! | 8-11 | scale `i + 4`, low | min `i + 4`, low (bits 4-7) | |

use bytemuck::{Pod, Zeroable};

use crate::F16Bits;
use crate::scale_search::{ScaleMin, nearest_int, search_positive};

/// Eight scales and eight minima of 6 bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct KScales(pub [u8; 12]);

impl KScales {
    /// Returns the scales and the minima, in 0..=63.
    #[inline(always)]
    pub const fn unpack(self) -> ([u8; 8], [u8; 8]) {
        const LOW_6: u32 = 0x3f3f_3f3f;
        const LOW_4: u32 = 0x0f0f_0f0f;
        const TOP_2: u32 = 0x3030_3030;
        let [low, mid, high] = self.words();
        let scales = (low & LOW_6) as u64 | ((high & LOW_4 | low >> 2 & TOP_2) as u64) << 32;
        let mins = (mid & LOW_6) as u64 | ((high >> 4 & LOW_4 | mid >> 2 & TOP_2) as u64) << 32;
        (scales.to_le_bytes(), mins.to_le_bytes())
    }

    const fn words(self) -> [u32; 3] {
        let b = self.0;
        [
            u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
            u32::from_le_bytes([b[8], b[9], b[10], b[11]]),
        ]
    }

    /// Packs scales and minima in 0..=63.
    pub fn pack(scales: [u8; 8], mins: [u8; 8]) -> Self {
        let mut bytes = [0; 12];
        for i in 0..4 {
            bytes[i] = scales[i] | scales[i + 4] >> 4 << 6;
            bytes[i + 4] = mins[i] | mins[i + 4] >> 4 << 6;
            bytes[i + 8] = scales[i + 4] & 0xf | mins[i + 4] << 4;
        }
        Self(bytes)
    }
}

/// The stored form of eight groups' scales and minima in Q4_K and Q5_K: each rounded to 6 bits relative to
/// the largest.
pub(super) struct QuantizedScales {
    pub(super) scale: F16Bits,
    pub(super) min: F16Bits,
    pub(super) group_scales: KScales,
}

impl QuantizedScales {
    pub(super) fn new(groups: &[ScaleMin; 8]) -> Self {
        let greatest = |part: fn(&ScaleMin) -> f32| {
            groups
                .iter()
                .map(part)
                .fold(0.0, |max, x| if x > max { x } else { max })
        };
        let (max_scale, max_min) = (greatest(|group| group.scale), greatest(|group| group.min));
        let inverse = |max: f32| if max > 0.0 { 63.0 / max } else { 0.0 };
        let quantize = |inverse: f32, x: f32| (nearest_int(inverse * x) as u8).min(63);
        Self {
            scale: F16Bits::from_f32(max_scale / 63.0),
            min: F16Bits::from_f32(max_min / 63.0),
            group_scales: KScales::pack(
                groups.map(|group| quantize(inverse(max_scale), group.scale)),
                groups.map(|group| quantize(inverse(max_min), group.min)),
            ),
        }
    }

    /// Rounds scales and minima of groups with weights `sums` to the multiples that fit best overall.
    pub(super) fn weighted(groups: &[ScaleMin; 8], sums: &[f32; 8]) -> Self {
        let (mut scales, mut mins) = ([0; 8], [0; 8]);
        let scale = search_positive(63, &groups.map(|group| group.scale), sums, &mut scales);
        let min = search_positive(63, &groups.map(|group| group.min), sums, &mut mins);
        Self {
            scale: F16Bits::from_f32(scale),
            min: F16Bits::from_f32(min),
            group_scales: KScales::pack(scales, mins),
        }
    }

    /// Quantizes all values again with the rounded scales. Groups whose scale became zero keep their quants.
    pub(super) fn requantize(&self, max_quant: i32, values: &[f32], quants: &mut [u8; 256]) {
        let (scales, mins) = self.group_scales.unpack();
        for (i, (values, quants)) in values
            .chunks_exact(32)
            .zip(quants.chunks_exact_mut(32))
            .enumerate()
        {
            let scale = self.scale.to_f32() * f32::from(scales[i]);
            if scale == 0.0 {
                continue;
            }
            let min = self.min.to_f32() * f32::from(mins[i]);
            for (quant, x) in quants.iter_mut().zip(values) {
                *quant = nearest_int((x + min) / scale).clamp(0, max_quant) as u8;
            }
        }
    }
}
