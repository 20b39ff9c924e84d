//! [`Bands`]: the thread blocks and the shared memory of products by 9 rows and more.
//!
//! K-quants are stored in strips; Q8_0, F16 and BF16 have bands of their own. Launches, tests and benches all use these sizes. Invariant: they
//! equal those in `kernels/bands.cuh`, `kernels/byte_bands.cuh` and `kernels/float_bands.cuh`.

use tokenmill_gguf::TensorType;

use crate::{
    FewRows, HalfBands, Wide, WideCut,
    parts::{MAX_SPLIT_BLOCKS, MULTIPROCESSORS},
};

/// Threads of a thread block.
pub(crate) const BAND_THREADS: u32 = 128;
/// Smallest number of thread blocks for which bands are high, by up to 64 rows of x: as many as multiprocessors, or almost.
const MANY_BLOCKS: usize = 128;
/// The same for more rows of x. By the timing model a launch of high bands takes as long as one of low bands at 73 high bands in Q4_K and 85 in
/// Q6_K. With more high bands, up to the number of multiprocessors, it takes no longer.
const MANY_BLOCKS_OF_MORE_ROWS: usize = 80;
/// Largest number of rows of x at which narrow products are faster in strips than in low bands, by the timing model. Strips read the weights again
/// for each 16 rows.
const STRIP_ROWS: usize = 48;
/// The same for Q6_K, which takes more work to unpack.
const Q6_K_STRIP_ROWS: usize = 16;
/// The same if warpgroups multiply, which take up to 64 rows of x at once.
const WIDE_STRIP_ROWS: usize = 16;
/// Largest number of rows of x at which bands of K-quants are never split; their kernel takes 64.
const UNSPLIT_ROWS: usize = 32;
/// Smallest number of thread blocks of a split; with fewer, low bands are faster.
const MIN_SPLIT_BLOCKS: usize = 96;
/// The most shared memory of a thread block on compute capability 8.6 and 8.9, in bytes.
const MAX_SHARED_BYTES: usize = 99 << 10;
/// The shared memory of a thread block of byte bands, in bytes: a multiprocessor of compute capability 8.0
/// has room for two.
const MAX_BYTES_SHARED: usize = 81 << 10;

/// Describes how weights of a type are multiplied by more than a few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bands {
    weights: Weights,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weights {
    /// Bytes of a group of 32 weights beyond its nibbles.
    Strips { high_bytes: usize },
    /// Groups of 32 bytes with one scale.
    Bytes,
    /// F16 or BF16.
    Words,
}

/// Height of a band: the rows of the matrix that a thread block takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandHeight {
    /// 128, a quarter of them each warp.
    High,
    /// 32, with each warp summing a quarter of the columns.
    Low,
}

impl BandHeight {
    /// Both.
    pub const ALL: [Self; 2] = [Self::High, Self::Low];

    /// Returns the height for matrices with `n_out` rows in total, by `n_rows` rows of x: high if that gives enough thread blocks.
    pub fn of(n_out: usize, n_rows: usize) -> Self {
        let n_tiles = n_rows.div_ceil(64);
        let many = if n_tiles > 1 {
            MANY_BLOCKS_OF_MORE_ROWS
        } else {
            MANY_BLOCKS
        };
        if n_out.div_ceil(128) * n_tiles >= many {
            Self::High
        } else {
            Self::Low
        }
    }

    /// Returns the number of rows.
    pub fn rows(self) -> usize {
        match self {
            Self::High => 128,
            Self::Low => 32,
        }
    }

    /// Returns the numbers of rows of x that its kernels are compiled for. Low bands take at most 32: more thread blocks, which read the weights
    /// again, are faster by the timing model.
    pub fn columns(self) -> &'static [usize] {
        match self {
            Self::High => &Bands::COLUMNS,
            Self::Low => &Bands::COLUMNS[..2],
        }
    }

    /// Returns the index of the entry of [`Self::columns`] for `n_rows` rows of x; more rows are further
    /// thread blocks.
    pub fn variant_of(self, n_rows: usize) -> usize {
        let all = self.columns();
        let variant = all.iter().position(|&columns| n_rows <= columns);
        variant.unwrap_or(all.len() - 1)
    }

    /// Returns the name of the kernel for `columns` rows of x.
    pub fn kernel(self, columns: usize) -> String {
        match self {
            Self::High => format!("matmul_band_n{columns}"),
            Self::Low => format!("matmul_low_band_n{columns}"),
        }
    }
}

/// Selects the launch of a product by 9 rows and more, for a quantized type or one that has bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManyRows {
    /// In strips, by 16 rows at a time.
    Strips,
    /// In bands.
    Bands(BandHeight),
    /// In high bands, whose columns are split among this number of thread blocks.
    Splits(usize),
    /// In bands in f16, whose columns are split among this number of thread blocks; 1 if each has all
    /// columns.
    Halves(usize),
    /// By matrix operations of warpgroups.
    Wide(WideCut),
    /// In tiles, for types that have nothing else.
    Tiles,
}

/// Says for which kernels there is device memory besides matrices and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductRoom {
    /// Largest number of thread blocks that share a band: 1 if there is no memory for their parts.
    pub max_splits: usize,
    /// Whether rows of x can be converted to f16.
    pub has_halves: bool,
    /// Whether they can be converted to tiles for matrix operations of warpgroups: on compute capability 9.0, if all matrices of the launch fit
    /// ([`Wide::takes`]). Such tiles use the memory of f16 rows.
    pub has_tiles: bool,
}

impl ProductRoom {
    /// No memory.
    pub const NONE: Self = Self {
        max_splits: 1,
        has_halves: false,
        has_tiles: false,
    };
    /// All memory that GPUs of compute capabilities other than 9.0 use.
    pub const WITHOUT_TILES: Self = Self {
        max_splits: ManyRows::MAX_SPLITS,
        has_halves: true,
        has_tiles: false,
    };
    /// Memory for all.
    pub const ALL: Self = Self {
        has_tiles: true,
        ..Self::WITHOUT_TILES
    };
}

impl ManyRows {
    /// Largest number of thread blocks that share a band. The last of them adds all parts up.
    pub const MAX_SPLITS: usize = 8;

    /// Returns the launch for matrices of `n_outs` rows of `n_in` weights, by `n_rows` rows of x.
    pub fn of(ty: TensorType, n_outs: &[usize], n_in: usize, n_rows: usize, room: ProductRoom) -> Self {
        let height = BandHeight::of(n_outs.iter().sum(), n_rows);
        let wide = Wide::of(ty).filter(|_| room.has_tiles && n_rows >= Wide::MIN_ROWS);
        let strip_rows = match ty {
            _ if wide.is_some() => WIDE_STRIP_ROWS,
            TensorType::Q6_K => Q6_K_STRIP_ROWS,
            _ => STRIP_ROWS,
        };
        if n_rows <= strip_rows && height == BandHeight::Low && FewRows::of(ty).takes_sixteen() {
            return Self::Strips;
        }
        let n_bands: usize = n_outs.iter().map(|n_out| n_out.div_ceil(128)).sum();
        if let Some(wide) = wide {
            let n_supers = n_in / 256;
            return Self::Wide(WideCut::of(wide, n_bands, n_supers, n_rows, room.max_splits));
        }
        if Bands::of_rows(ty, n_in).is_none() {
            return Self::Tiles;
        }
        let splits = n_splits(n_bands * n_rows.div_ceil(64), n_in / 256, room.max_splits);
        if room.has_halves && n_rows >= HalfBands::MIN_ROWS && HalfBands::of(ty).is_some() {
            match splits {
                1 if height == BandHeight::Low => {}
                n => return Self::Halves(n),
            }
        }
        let can_split = n_rows > UNSPLIT_ROWS && Bands::of(ty).is_some_and(Bands::has_gated);
        match splits {
            n if n > 1 && can_split => Self::Splits(n),
            _ => Self::Bands(height),
        }
    }
}

/// Returns the number of superblocks for each of `n_splits` thread blocks that share `n_supers`. It is even, since the per-superblock values are
/// copied for two superblocks at a time.
pub(crate) fn supers_of_each(n_supers: usize, n_splits: usize) -> usize {
    n_supers.div_ceil(n_splits).next_multiple_of(2)
}

/// Returns how many thread blocks share a band, at most `most`, if there are `n_blocks` without sharing: the number that makes the launch shortest.
/// By the timing model two on a multiprocessor take 1.75 times as long as one.
fn n_splits(n_blocks: usize, n_supers: usize, most: usize) -> usize {
    let quarters = |n: usize| {
        let rounds = if n * n_blocks <= MULTIPROCESSORS { 4 } else { 7 };
        rounds * supers_of_each(n_supers, n)
    };
    // Each thread block must have superblocks.
    let is_full = |n: usize| (n - 1) * supers_of_each(n_supers, n) < n_supers;
    (2..=most)
        .filter(|&n| (MIN_SPLIT_BLOCKS..=MAX_SPLIT_BLOCKS).contains(&(n * n_blocks)) && is_full(n))
        .min_by_key(|&n| quarters(n))
        .filter(|&n| quarters(n) < quarters(1))
        .unwrap_or(1)
}

impl Bands {
    /// Rows of x that kernels of high and of gated bands are compiled for.
    pub const COLUMNS: [usize; 3] = [16, 32, 64];
    /// Rows of gate and up that a thread block takes; its band is a high one with 64 of each.
    pub const GATED_ROWS: usize = 64;

    /// Returns the bands of a type, if it has any.
    pub fn of(ty: TensorType) -> Option<Self> {
        let weights = match ty {
            TensorType::Q4_K => Weights::Strips { high_bytes: 0 },
            TensorType::Q5_K => Weights::Strips { high_bytes: 4 },
            TensorType::Q6_K => Weights::Strips { high_bytes: 8 },
            TensorType::Q8_0 => Weights::Bytes,
            TensorType::F16 | TensorType::BF16 => Weights::Words,
            _ => return None,
        };
        Some(Self { weights })
    }

    /// Returns the bands of a type for rows of `n_in` weights. Bands of F16 and BF16 copy 16 bytes at a time,
    /// others runs of 256 weights.
    pub(crate) fn of_rows(ty: TensorType, n_in: usize) -> Option<Self> {
        let run = |bands: &Self| match bands.weights {
            Weights::Words => 8,
            Weights::Bytes | Weights::Strips { .. } => 256,
        };
        Self::of(ty).filter(|bands| n_in.is_multiple_of(run(bands)))
    }

    /// Returns whether gate and up can be one launch.
    pub fn has_gated(self) -> bool {
        self.weights != Weights::Words
    }

    /// Returns the dynamic shared memory of a kernel: as many superblocks, or steps, ahead as fit, at most five.
    pub fn shared_bytes(self, height: BandHeight, columns: usize) -> usize {
        let n_strips = height.rows() / 16;
        let high_bytes = match self.weights {
            Weights::Strips { high_bytes } => high_bytes,
            Weights::Bytes => {
                // Steps of 128 columns, and scales of superblocks.
                let stage = n_strips * 2048 + columns * 128 + 4 * (columns * 4 + 32);
                let bytes = |n_stages: usize| n_stages * stage + (n_stages / 2 + 1) * n_strips * 256;
                let sizes = [5, 4].map(bytes).into_iter();
                return (sizes.filter(|&bytes| bytes <= MAX_BYTES_SHARED).max()).unwrap_or(bytes(3));
            }
            Weights::Words => {
                // Columns of a step.
                let n_columns = match height {
                    BandHeight::High => 64,
                    BandHeight::Low => 128,
                };
                let stage = n_columns * (2 * height.rows() + 4 * columns);
                return (MAX_SHARED_BYTES / stage).min(6) * stage;
            }
        };
        let stage = n_strips * (2048 + 8 * 16 * high_bytes) + columns * 256 + 16 * (columns * 4 + 32);
        // The values that a superblock has once per row are copied for two superblocks at a time.
        let bytes = |n_stages: usize| n_stages * stage + (n_stages / 2 + 1) * n_strips * 512;
        (3..=6)
            .rev()
            .map(bytes)
            .find(|&bytes| bytes <= MAX_SHARED_BYTES)
            .unwrap_or(bytes(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM_FOR_PARTS: ProductRoom = ProductRoom {
        has_halves: false,
        ..ProductRoom::WITHOUT_TILES
    };

    #[test]
    fn narrow_products_by_few_rows_are_strips_where_there_are_some() {
        let of = |ty, n_out, n_rows| ManyRows::of(ty, &[n_out], 4096, n_rows, ProductRoom::NONE);
        assert_eq!(of(TensorType::Q4_K, 4096, 48), ManyRows::Strips);
        assert_eq!(of(TensorType::Q4_K, 4096, 49), ManyRows::Bands(BandHeight::Low));
        assert_eq!(of(TensorType::Q6_K, 4096, 17), ManyRows::Bands(BandHeight::Low));
        assert_eq!(
            of(TensorType::Q4_K, 14336 * 2, 16),
            ManyRows::Bands(BandHeight::High)
        );
        assert_eq!(of(TensorType::BF16, 4096, 16), ManyRows::Bands(BandHeight::Low));
    }

    #[test]
    fn narrow_products_are_split_until_the_gpu_is_full() {
        let check = |ty, n_outs: &[usize], n_in, n_rows, expected| {
            let found = ManyRows::of(ty, n_outs, n_in, n_rows, ROOM_FOR_PARTS);
            assert_eq!(found, expected, "{ty:?} {n_outs:?} of {n_in} by {n_rows}");
        };
        let (high, low) = (
            ManyRows::Bands(BandHeight::High),
            ManyRows::Bands(BandHeight::Low),
        );
        check(TensorType::Q4_K, &[4096], 4096, 64, ManyRows::Splits(8));
        check(TensorType::Q4_K, &[4096], 4096, 128, ManyRows::Splits(4));
        check(TensorType::Q6_K, &[4096], 14_336, 33, ManyRows::Splits(4));
        check(TensorType::Q4_K, &[4096, 1024], 4096, 64, ManyRows::Splits(3));
        check(TensorType::Q6_K, &[4096], 14_336, 32, low);
        // Too few even when split, and enough without.
        check(TensorType::Q6_K, &[1024], 4096, 64, low);
        check(TensorType::Q4_K, &[4096], 4096, 512, high);
        check(TensorType::BF16, &[4096], 4096, 64, low);
    }

    #[test]
    fn many_rows_of_k_quants_are_in_f16() {
        let check = |ty, n_out, n_in, n_rows, expected| {
            let found = ManyRows::of(ty, &[n_out], n_in, n_rows, ProductRoom::WITHOUT_TILES);
            assert_eq!(found, expected, "{ty:?} {n_out} of {n_in} by {n_rows}");
        };
        check(TensorType::Q4_K, 4096, 4096, 64, ManyRows::Halves(8));
        check(TensorType::Q6_K, 4096, 14_336, 64, ManyRows::Halves(4));
        check(TensorType::Q4_K, 5120, 4096, 64, ManyRows::Halves(3));
        check(TensorType::Q6_K, 128_256, 4096, 33, ManyRows::Halves(1));
        check(TensorType::Q5_K, 4096, 4096, 512, ManyRows::Halves(1));
        // Too few rows of x, too few of the matrix, and a type without bands.
        check(
            TensorType::Q6_K,
            128_256,
            4096,
            32,
            ManyRows::Bands(BandHeight::High),
        );
        check(TensorType::Q4_K, 4096, 4096, 48, ManyRows::Strips);
        check(TensorType::Q6_K, 1024, 4096, 64, ManyRows::Bands(BandHeight::Low));
        check(
            TensorType::BF16,
            14_336,
            4096,
            128,
            ManyRows::Bands(BandHeight::High),
        );
    }

    #[test]
    fn splits_fit_their_memory_and_none_is_empty() {
        for (n_blocks, n_supers) in
            (1..300).flat_map(|n_blocks| (1..80).map(move |n_supers| (n_blocks, n_supers)))
        {
            let n = n_splits(n_blocks, n_supers, ManyRows::MAX_SPLITS);
            assert!(
                n == 1 || n * n_blocks <= MAX_SPLIT_BLOCKS,
                "{n_blocks} of {n_supers}"
            );
            let each = supers_of_each(n_supers, n);
            assert!(
                (n - 1) * each < n_supers && n * each >= n_supers,
                "{n_blocks} of {n_supers}"
            );
        }
    }

    #[test]
    fn every_band_fits_the_smallest_multiprocessor() {
        for ty in [
            TensorType::Q4_K,
            TensorType::Q5_K,
            TensorType::Q6_K,
            TensorType::Q8_0,
            TensorType::F16,
            TensorType::BF16,
        ] {
            let bands = Bands::of(ty).unwrap();
            for (height, columns) in BandHeight::ALL
                .into_iter()
                .flat_map(|height| height.columns().iter().map(move |&columns| (height, columns)))
            {
                let bytes = bands.shared_bytes(height, columns);
                assert!(
                    bytes <= MAX_SHARED_BYTES,
                    "{ty:?} {height:?} by {columns}: {bytes}"
                );
            }
        }
        let bands = Bands::of(TensorType::Q4_K).unwrap();
        assert_eq!(
            bands.shared_bytes(BandHeight::High, 64),
            2 * (16_384 + 64 * 256 + 16 * 288) + 2 * 4096
        );
        assert_eq!(Bands::of(TensorType::Q4_0), None);
        let bytes = Bands::of(TensorType::Q8_0).unwrap();
        assert_eq!(
            bytes.shared_bytes(BandHeight::High, 64),
            3 * (16_384 + 8192 + 1152) + 2 * 2048
        );
        let words = Bands::of(TensorType::BF16).unwrap();
        assert_eq!(words.shared_bytes(BandHeight::High, 64), 3 * (16_384 + 16_384));
        assert_eq!(words.shared_bytes(BandHeight::Low, 16), 6 * (8192 + 8192));
    }

    #[test]
    fn rows_are_in_bands_where_they_are_whole_chunks() {
        let check =
            |ty, n_in, expected| assert_eq!(Bands::of_rows(ty, n_in).is_some(), expected, "{ty:?} {n_in}");
        check(TensorType::Q8_0, 288, false);
        check(TensorType::F16, 72, true);
        check(TensorType::BF16, 76, false);
        check(TensorType::F32, 64, false);
        check(TensorType::Q4_K, 256, true);
    }

    #[test]
    fn bands_are_high_where_there_are_many() {
        let check = |n_out, n_rows, expected| {
            assert_eq!(BandHeight::of(n_out, n_rows), expected, "{n_out} by {n_rows}");
        };
        check(128_256, 9, BandHeight::High);
        check(10_240, 64, BandHeight::Low);
        check(5120, 65, BandHeight::High);
        check(4096, 128, BandHeight::Low);
        check(4096, 129, BandHeight::High);
        let variants = [9, 17, 33, 65].map(|n_rows| BandHeight::ALL.map(|height| height.variant_of(n_rows)));
        assert_eq!(variants, [[0, 0], [1, 1], [2, 1], [2, 1]]);
    }
}
