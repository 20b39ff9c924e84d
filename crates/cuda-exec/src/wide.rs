//! [`Wide`]: products of quantized matrices by matrix operations of warpgroups, which only compute capability 9.0 has.
//!
//! Invariant: the sizes and limits equal those in `kernels/wide.cuh` and `kernels/wide_groups.cuh`; a matrix beyond the limits is never multiplied
//! by these kernels.

use tokenmill_gguf::TensorType;

use crate::{
    CudaExecError, Device, HalfBands, Kernel, LaunchShape,
    error::Result,
    modules::{Target, wide_name},
    parts::{MAX_SPLIT_BLOCKS, MULTIPROCESSORS},
};

/// Threads of a thread block.
pub(crate) const WIDE_THREADS: u32 = 256;
/// Rows of a tile of x.
const WIDE_TILE_ROWS: usize = 64;
/// The cost of a thread block before its first sum and after its last, in the units of [`WideCut::cost`].
const FIXED: usize = 100;
/// The bits of f16 numbers: 1, and the largest below a half.
const ONE: u16 = 0x3c00;
const BELOW_HALF: u16 = 0x37ff;
/// Largest exponent of a block of zeros in MXFP4: a scale of 32.
const LARGEST_OF_ZEROS: u8 = 133;

/// Describes how weights of a type are multiplied by many rows on compute capability 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wide {
    ty: TensorType,
    /// Bytes of a block in a file.
    block_bytes: usize,
    /// The scale of a block.
    scale: Limit,
    /// The number added to the block's numbers or subtracted from them, if the format stores one.
    offset: Option<Limit>,
}

/// The place of a number in a block, and its largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// An f16 number, whose magnitude has at most these bits.
    Magnitude { at: usize, largest: u16 },
    /// The same, and not negative.
    Positive { at: usize, largest: u16 },
    /// A byte that holds an exponent.
    Exponent { at: usize, least: u8, largest: u8 },
}

impl Limit {
    fn takes(self, block: &[u8]) -> bool {
        let bits = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        // Infinities and NaN have the largest bits of their sign, and negative numbers have larger bits than all others.
        match self {
            Self::Magnitude { at, largest } => bits(at) & 0x7fff <= largest,
            Self::Positive { at, largest } => bits(at) <= largest,
            Self::Exponent { at, least, largest } => (least..=largest).contains(&block[at]),
        }
    }
}

/// Describes how a product is divided into thread blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideCut {
    /// Rows of x that a thread block takes.
    pub columns: usize,
    /// Number of thread blocks that share a band.
    pub n_splits: usize,
}

impl Wide {
    /// Rows of a matrix that a thread block takes.
    pub const ROWS: usize = 128;
    /// Rows of gate and of up that a thread block takes.
    pub const GATED_ROWS: usize = 64;
    /// Rows of x that kernels are compiled for.
    pub const COLUMNS: [usize; 5] = [16, 32, 64, 128, 256];
    /// Smallest number of rows of x for which these kernels are used; fewer rows have other kernels.
    pub const MIN_ROWS: usize = 9;

    /// Returns the limits of a type, if it has any.
    pub fn of(ty: TensorType) -> Option<Self> {
        let magnitude = |at, largest| Limit::Magnitude { at, largest };
        let positive = |at, largest| Limit::Positive { at, largest };
        // The largest scale is chosen such that 1024 times the product of it, the largest scale of a group and the largest number, plus the offset,
        // is at most 65,504.
        let (block_bytes, scale, offset) = match ty {
            // 0.0666, 0.0322 and 0.0156, rounded down.
            TensorType::Q4_K => (144, positive(0, 0x2c43), Some(positive(2, ONE))),
            TensorType::Q5_K => (176, positive(0, 0x281f), Some(positive(2, ONE))),
            TensorType::Q6_K => (210, magnitude(208, 0x23fc), None),
            TensorType::Q2_K => (84, magnitude(80, ONE), Some(magnitude(82, ONE))),
            TensorType::Q3_K => (110, magnitude(108, BELOW_HALF), None),
            TensorType::IQ4_XS => (136, magnitude(0, 0x23fc), None),
            TensorType::Q8_0 => (34, magnitude(0, BELOW_HALF), None),
            TensorType::IQ4_NL => (18, magnitude(0, BELOW_HALF), None),
            // 7.996 and 3.998; they are subtracted 8 and 16 times.
            TensorType::Q4_0 => (18, magnitude(0, 0x47ff), None),
            TensorType::Q5_0 => (22, magnitude(0, 0x43ff), None),
            // 2 and 1; 31.98 is added.
            TensorType::Q4_1 => (20, magnitude(0, 0x4000), Some(magnitude(2, 0x4fff))),
            TensorType::Q5_1 => (24, magnitude(0, ONE), Some(magnitude(2, 0x4fff))),
            // 2^-24 and 4.
            TensorType::MXFP4 => {
                let (at, least, largest) = (0, 104, 130);
                (17, Limit::Exponent { at, least, largest }, None)
            }
            _ => return None,
        };
        Some(Self {
            ty,
            block_bytes,
            scale,
            offset,
        })
    }

    /// Lists the f16 numbers of a block in a file, and the bits of the largest accepted magnitude: the scale, and the offset. MXFP4 has none.
    pub fn limits(self) -> impl Iterator<Item = (usize, u16)> {
        let f16 = |limit| match limit {
            Limit::Magnitude { at, largest } | Limit::Positive { at, largest } => Some((at, largest)),
            Limit::Exponent { .. } => None,
        };
        [Some(self.scale), self.offset]
            .into_iter()
            .flatten()
            .filter_map(f16)
    }

    /// Returns the numbers of rows of x that the type's kernels are compiled for: some of [`Self::COLUMNS`], in their order.
    pub fn columns(self) -> &'static [usize] {
        match HalfBands::of(self.ty) {
            Some(_) => &Self::COLUMNS,
            None => &Self::COLUMNS[..4],
        }
    }

    /// Returns whether these kernels multiply rows of `n_in` weights: whole runs of 256.
    pub(crate) fn takes_width(n_in: usize) -> bool {
        n_in.is_multiple_of(256)
    }

    /// Returns whether all weights of some blocks of a file are f16 numbers after multiplication by 1024. In superblocks with a `dmin`, neither it
    /// nor `d` may be negative: each alone is in range, but with opposite signs their terms could add up beyond it.
    pub fn takes(self, blocks: &[u8]) -> bool {
        let fits =
            |block: &[u8]| self.scale.takes(block) && self.offset.is_none_or(|offset| offset.takes(block));
        // A block of zeros may have any exponent whose scale, times 1024, is an f16 number.
        let is_zero = |block: &[u8]| match self.scale {
            Limit::Exponent { at, .. } => {
                block[at] <= LARGEST_OF_ZEROS && block[at + 1..].iter().all(|&byte| byte == 0)
            }
            _ => false,
        };
        blocks
            .chunks_exact(self.block_bytes)
            .all(|block| fits(block) || is_zero(block))
    }

    /// Returns the dynamic shared memory of the kernel for `columns` rows of x.
    pub fn shared_bytes(columns: usize) -> usize {
        let n_stages = match columns {
            256 => 6,
            128 => 8,
            _ => 12,
        };
        n_stages * columns * 128 + 1024
    }
}

impl WideCut {
    /// Returns the cut for `n_bands` bands, `n_supers` superblocks wide, by `n_rows` rows of x. It chooses the cut whose thread blocks finish
    /// first, if as many run at a time as there are multiprocessors.
    pub fn of(wide: Wide, n_bands: usize, n_supers: usize, n_rows: usize, max_splits: usize) -> Self {
        let few = Self::few_columns(n_rows);
        let is_candidate = |columns: &usize| few.map_or(*columns >= WIDE_TILE_ROWS, |few| few == *columns);
        let candidates = wide.columns().iter().copied().filter(is_candidate);
        let cuts = candidates.flat_map(|columns| {
            (1..=max_splits.min(n_supers).max(1)).map(move |n_splits| Self { columns, n_splits })
        });
        let fits = |cut: &Self| {
            let each = n_supers.div_ceil(cut.n_splits);
            let n_tiles = n_bands * n_rows.div_ceil(cut.columns);
            // The memory for parts is in units of 64 rows of x, and each thread block must have superblocks.
            cut.n_splits == 1
                || (n_tiles * cut.n_splits * cut.columns.div_ceil(64) <= MAX_SPLIT_BLOCKS
                    && (cut.n_splits - 1) * each < n_supers)
        };
        let least = Self {
            columns: few.unwrap_or(64),
            n_splits: 1,
        };
        (cuts.filter(fits))
            .min_by_key(|cut| cut.cost(n_bands, n_supers, n_rows))
            .unwrap_or(least)
    }

    /// Returns the kernel whose thread blocks take all of up to 32 rows of x.
    fn few_columns(n_rows: usize) -> Option<usize> {
        (Wide::COLUMNS.into_iter()).find(|&columns| n_rows <= columns && columns < WIDE_TILE_ROWS)
    }

    /// Returns the number of rows for which tiles are made if there are `n_rows`.
    pub(crate) fn padded_rows(n_rows: usize) -> usize {
        Self::few_columns(n_rows).unwrap_or_else(|| n_rows.next_multiple_of(WIDE_TILE_ROWS))
    }

    /// Returns the relative duration of a launch.
    fn cost(self, n_bands: usize, n_supers: usize, n_rows: usize) -> usize {
        // By the timing model, in units of 50 ns: a superblock of 128 rows, and summing the parts of several thread blocks.
        let (a_super, adding) = match self.columns {
            16 => (13, 8),
            32 => (14, 14),
            64 => (19, 24),
            128 => (33, 60),
            _ => (66, 170),
        };
        let n_blocks = n_bands * n_rows.div_ceil(self.columns) * self.n_splits;
        let adding = if self.n_splits > 1 { adding } else { 0 };
        let each = n_supers.div_ceil(self.n_splits);
        // Two thread blocks of up to 64 rows run on a multiprocessor at a time and take half as long again as one. With more rows they wait for
        // arithmetic and take twice as long.
        let pair = if n_rows > 64 { 4 } else { 3 };
        let halves_of_rounds = match self.columns {
            16 | 32 | 64 if n_blocks > MULTIPROCESSORS => pair * n_blocks.div_ceil(2 * MULTIPROCESSORS),
            _ => 2 * n_blocks.div_ceil(MULTIPROCESSORS),
        };
        halves_of_rounds * (each * a_super + FIXED + adding)
    }

    /// Returns the launch of `n_bands` bands by `n_rows` rows of x.
    pub(crate) fn shape(self, n_bands: usize, n_rows: usize) -> LaunchShape {
        let n_tiles = n_rows.div_ceil(self.columns);
        debug_assert!(
            self.columns >= WIDE_TILE_ROWS && n_rows > 32
                || n_tiles * self.columns <= Self::padded_rows(n_rows),
            "tiles have the rows that are read"
        );
        let grid = [n_tiles, n_bands, self.n_splits];
        LaunchShape::new(grid, WIDE_THREADS).with_shared_bytes(Wide::shared_bytes(self.columns))
    }

    fn pick(self, kernels: [Option<Kernel>; Wide::COLUMNS.len()]) -> Kernel {
        let variant = Wide::COLUMNS.iter().position(|&columns| columns == self.columns);
        (variant.and_then(|variant| kernels[variant])).expect("a cut has columns of a kernel")
    }
}

/// The kernels of a type, by [`Wide::COLUMNS`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct WideKernels {
    plain: [Option<Kernel>; Wide::COLUMNS.len()],
    gated: [Option<Kernel>; Wide::COLUMNS.len()],
}

impl WideKernels {
    /// Loads them if the device supports them; other kernels can replace all of them.
    pub(crate) fn load(device: &Device, wide: Wide) -> Result<Option<Self>> {
        let module = wide_name(wide.ty);
        if !has_module(device, &module)? {
            return Ok(None);
        }
        let load = |kind: &str| -> Result<[Option<Kernel>; Wide::COLUMNS.len()]> {
            let mut kernels = [None; Wide::COLUMNS.len()];
            for (kernel, &columns) in kernels.iter_mut().zip(wide.columns()) {
                let name = format!("wide_{kind}_n{columns}");
                *kernel =
                    Some(device.kernel_with_shared_bytes(&module, &name, Wide::shared_bytes(columns))?);
            }
            Ok(kernels)
        };
        Ok(Some(Self {
            plain: load("band")?,
            gated: load("gated")?,
        }))
    }

    pub(crate) fn plain_of(&self, cut: WideCut) -> Kernel {
        cut.pick(self.plain)
    }

    pub(crate) fn gated_of(&self, cut: WideCut) -> Kernel {
        cut.pick(self.gated)
    }
}

/// Loads a module of [`Target::Hopper`]; `false` if the device or its driver cannot.
pub(crate) fn has_module(device: &Device, module: &str) -> Result<bool> {
    if !device.takes(Target::Hopper) {
        return Ok(false);
    }
    match device.load_module(module) {
        Err(CudaExecError::DriverTooOld { .. } | CudaExecError::NoJitCompiler { .. }) => Ok(false),
        loaded => loaded.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn a_matrix_is_taken_where_no_weight_is_beyond_f16() {
        // The largest number of each type, a scale of a group times a quant, and how often the offset counts. 1024 times the sum is at most 65,504.
        for (ty, number, times) in [
            (TensorType::Q4_K, 63.0 * 15.0, 0.0),
            (TensorType::Q5_K, 63.0 * 31.0, 0.0),
            (TensorType::Q6_K, 128.0 * 32.0, 0.0),
            (TensorType::Q2_K, 15.0 * 3.0, 15.0),
            (TensorType::Q3_K, 32.0 * 4.0, 0.0),
            (TensorType::IQ4_XS, 32.0 * 127.0, 0.0),
            (TensorType::Q8_0, 128.0, 0.0),
            (TensorType::IQ4_NL, 127.0, 0.0),
            (TensorType::Q4_0, 8.0, 0.0),
            (TensorType::Q5_0, 16.0, 0.0),
            (TensorType::Q4_1, 15.0, 1.0),
            (TensorType::Q5_1, 31.0, 1.0),
        ] {
            let wide = Wide::of(ty).unwrap();
            let parts = |limit: Limit| match limit {
                Limit::Magnitude { at, largest } => (at, largest, true),
                Limit::Positive { at, largest } => (at, largest, false),
                Limit::Exponent { .. } => panic!("{ty:?} has a scale"),
            };
            let limits: Vec<_> = [Some(wide.scale), wide.offset]
                .into_iter()
                .flatten()
                .map(parts)
                .collect();
            let sum: f32 = (limits.iter().zip([number, times]))
                .map(|((_, largest, _), times)| f32::from(f16::from_bits(*largest)) * times)
                .sum();
            assert!((59_000.0..=65_504.0).contains(&(sum * 1024.0)), "{ty:?}: {sum}");
            let mut blocks = vec![0; 3 * wide.block_bytes];
            let mut check = |at: usize, bits: u16, expected: bool| {
                let at = wide.block_bytes + at;
                blocks[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                assert_eq!(wide.takes(&blocks), expected, "{ty:?} {bits:x}");
                blocks[at..at + 2].fill(0);
            };
            for (at, largest, has_signs) in limits {
                check(at, largest, true);
                check(at, 0x8000 | largest, has_signs);
                check(at, largest + 1, false);
                check(at, 0x8000 | (largest + 1), false);
                check(at, f16::NAN.to_bits(), false);
            }
        }
        assert_eq!(f16::from_bits(ONE), f16::ONE);
        assert_eq!(Wide::of(TensorType::IQ2_XS), None);
    }

    #[test]
    fn exponents_are_within_f16_where_numbers_are_not_zero() {
        let wide = Wide::of(TensorType::MXFP4).unwrap();
        let check = |exponent: u8, numbers: u8, expected| {
            let mut blocks = [0x11; 34];
            blocks[0] = 120;
            blocks[17] = exponent;
            blocks[18..].fill(numbers);
            assert_eq!(wide.takes(&blocks), expected, "{exponent} {numbers}");
        };
        check(104, 0x77, true);
        check(103, 0x77, false);
        check(103, 0, true);
        check(130, 0xff, true);
        check(131, 0x11, false);
        check(133, 0, true);
        check(134, 0, false);
    }

    #[test]
    fn every_thread_block_fits_a_multiprocessor_of_its_capability() {
        // 227 KiB less the static shared memory of the kernels.
        for columns in Wide::COLUMNS {
            assert!(Wide::shared_bytes(columns) + 1024 <= 227 << 10, "{columns}");
        }
        assert_eq!(Wide::shared_bytes(256), 6 * 32_768 + 1024);
    }

    #[test]
    fn parts_fit_their_memory_and_no_thread_block_is_empty() {
        for (n_bands, n_supers, n_rows) in (1..200).flat_map(|n_bands| {
            [1, 3, 8, 16, 56].into_iter().flat_map(move |n_supers| {
                [9, 16, 17, 33, 64, 100, 512, 2048].map(|n_rows| (n_bands, n_supers, n_rows))
            })
        }) {
            let q4_k = Wide::of(TensorType::Q4_K).unwrap();
            let cut = WideCut::of(q4_k, n_bands, n_supers, n_rows, 8);
            let each = n_supers.div_ceil(cut.n_splits);
            let n_tiles = n_bands * n_rows.div_ceil(cut.columns);
            let what = format!("{n_bands} of {n_supers} by {n_rows}: {cut:?}");
            assert!(
                (cut.n_splits - 1) * each < n_supers && cut.n_splits <= 8,
                "{what}"
            );
            assert!(
                cut.n_splits == 1 || n_tiles * cut.n_splits * cut.columns <= MAX_SPLIT_BLOCKS * 64,
                "{what}"
            );
            assert_eq!(WideCut::of(q4_k, n_bands, n_supers, n_rows, 1).n_splits, 1);
        }
    }

    #[test]
    fn cuts_of_an_8b_are_those_that_end_first_by_the_timing_model() {
        // Bands and superblocks of gate and up, of query and key, of the output, of down, and of a value in Q6_K; largest number of thread blocks
        // of a band.
        const GATE: [usize; 3] = [224, 16, 1];
        const QUERY_AND_KEY: [usize; 3] = [40, 16, 8];
        const OUTPUT: [usize; 3] = [32, 16, 8];
        const DOWN: [usize; 3] = [32, 56, 8];
        const VALUE: [usize; 3] = [8, 16, 8];
        // By rows: columns and splits.
        for (shape, cuts) in [
            (
                GATE,
                [
                    (64, 1),
                    (64, 1),
                    (128, 1),
                    (128, 1),
                    (256, 1),
                    (256, 1),
                    (128, 1),
                    (256, 1),
                ],
            ),
            (
                QUERY_AND_KEY,
                [
                    (64, 3),
                    (64, 3),
                    (128, 3),
                    (128, 3),
                    (64, 1),
                    (128, 1),
                    (256, 1),
                    (128, 1),
                ],
            ),
            (
                OUTPUT,
                [
                    (64, 4),
                    (64, 4),
                    (64, 2),
                    (64, 2),
                    (64, 1),
                    (64, 1),
                    (128, 1),
                    (256, 1),
                ],
            ),
            (
                DOWN,
                [
                    (64, 8),
                    (64, 8),
                    (128, 4),
                    (128, 4),
                    (128, 2),
                    (128, 2),
                    (128, 1),
                    (256, 1),
                ],
            ),
            (
                VALUE,
                [
                    (64, 8),
                    (64, 8),
                    (64, 8),
                    (64, 8),
                    (64, 4),
                    (64, 4),
                    (64, 2),
                    (128, 1),
                ],
            ),
        ] {
            let [n_bands, n_supers, max_splits] = shape;
            let q4_k = Wide::of(TensorType::Q4_K).unwrap();
            for (n_rows, expected) in [33, 64, 65, 128, 129, 256, 512, 2048].into_iter().zip(cuts) {
                let cut = WideCut::of(q4_k, n_bands, n_supers, n_rows, max_splits);
                assert_eq!((cut.columns, cut.n_splits), expected, "{shape:?} by {n_rows}");
            }
        }
    }

    #[test]
    fn a_cut_costs_its_rounds_of_thread_blocks() {
        let cost =
            |columns, n_splits, n_bands, n_rows| WideCut { columns, n_splits }.cost(n_bands, 16, n_rows);
        // Halves of a round times a thread block's superblocks, its other work, and summed parts.
        assert_eq!(cost(256, 1, 132, 256), 2 * (16 * 66 + 100));
        assert_eq!(cost(256, 1, 133, 256), 4 * (16 * 66 + 100));
        assert_eq!(cost(128, 1, 132, 129), 4 * (16 * 33 + 100));
        assert_eq!(cost(128, 3, 40, 128), 2 * (6 * 33 + 100 + 60));
        // Two thread blocks of 64 rows run on a multiprocessor at a time, and take as long as one and a half by up to 64 rows.
        assert_eq!(cost(64, 1, 132, 64), 2 * (16 * 19 + 100));
        assert_eq!(cost(64, 1, 133, 64), 3 * (16 * 19 + 100));
        assert_eq!(cost(64, 1, 264, 64), 3 * (16 * 19 + 100));
        assert_eq!(cost(64, 1, 133, 65), 8 * (16 * 19 + 100));
        assert_eq!(cost(64, 1, 100, 65), 4 * (16 * 19 + 100));
    }
}
