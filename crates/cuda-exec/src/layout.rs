//! [`MatrixLayout`]: how a weight matrix lies on the device, and the way there from the rows of a file.
//!
//! Separate from the driver because it is arithmetic on bytes: it runs on many host threads while others upload. It is the
//! twin of `kernels/formats/planes.cuh`, which describes the planes; each format's header lists its own. Invariant: row `r`
//! of plane `p` is `plane.row_bytes` bytes at `plane.offset + r * plane.row_bytes`, so rows can be repacked in any order.

use tokenmill_gguf::TensorType;

/// Planes start at multiples of this.
const PLANE_ALIGN: usize = 256;
/// Rows of unquantized matrices are padded to multiples of this.
const ROW_ALIGN: usize = 16;
/// Weights of a group.
const GROUP: usize = 32;

/// A part of a matrix on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// Where it starts, from the start of the matrix.
    pub offset: usize,
    /// Bytes of each row.
    pub row_bytes: usize,
}

/// The planes of a matrix `[n_out, n_in]` of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    ty: TensorType,
    n_out: usize,
    n_in: usize,
    file_row_bytes: usize,
    planes: Vec<Plane>,
    bytes: usize,
}

/// Why a matrix cannot be laid out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// No kernel reads this type.
    #[error("no kernel computes with type {ty}")]
    UnsupportedType {
        /// Name of the type.
        ty: &'static str,
    },
    /// A row that is not a whole number of blocks.
    #[error("a row of {n_in} values is not a whole number of {ty} blocks")]
    PartialBlock {
        /// Name of the type.
        ty: &'static str,
        /// Values of a row.
        n_in: usize,
    },
    /// Sizes beyond what a kernel can index.
    #[error("a matrix of {n_out} rows of {n_in} values is too large for one device buffer")]
    TooLarge {
        /// Rows.
        n_out: usize,
        /// Values of a row.
        n_in: usize,
    },
    /// A slice of the wrong length.
    #[error("{what} has {found} bytes, expected {expected}")]
    ByteLength {
        /// Which slice.
        what: &'static str,
        /// Bytes it should have.
        expected: usize,
        /// Bytes it has.
        found: usize,
    },
}

impl MatrixLayout {
    /// The layout of a matrix.
    ///
    /// # Errors
    /// [`LayoutError`] where no kernel reads the type, or the sizes do not fit it.
    pub fn of(ty: TensorType, n_out: usize, n_in: usize) -> Result<Self, LayoutError> {
        let too_large = LayoutError::TooLarge { n_out, n_in };
        if n_out > i32::MAX as usize || n_in > i32::MAX as usize {
            return Err(too_large);
        }
        let row_bytes: Vec<usize> = match ty {
            TensorType::F32 => vec![(n_in * 4).next_multiple_of(ROW_ALIGN)],
            TensorType::F16 | TensorType::BF16 => vec![(n_in * 2).next_multiple_of(ROW_ALIGN)],
            _ => {
                let planes = planes(ty).ok_or(LayoutError::UnsupportedType { ty: ty.name() })?;
                if !n_in.is_multiple_of(ty.block_len()) {
                    return Err(LayoutError::PartialBlock { ty: ty.name(), n_in });
                }
                let n_blocks = n_in / ty.block_len();
                let block_bytes = |plane: &PlaneKind| plane.block_bytes(ty.block_len());
                planes.iter().map(|plane| block_bytes(plane) * n_blocks).collect()
            }
        };
        let Some(file_row_bytes) = ty.row_bytes(n_in) else {
            return Err(LayoutError::PartialBlock { ty: ty.name(), n_in });
        };
        let mut end = 0usize;
        let mut planes = Vec::with_capacity(row_bytes.len());
        for row_bytes in row_bytes {
            planes.push(Plane {
                offset: end,
                row_bytes,
            });
            end = row_bytes
                .checked_mul(n_out)
                .and_then(|bytes| bytes.checked_next_multiple_of(PLANE_ALIGN))
                .and_then(|bytes| bytes.checked_add(end))
                .ok_or_else(|| too_large.clone())?;
        }
        Ok(Self {
            ty,
            n_out,
            n_in,
            file_row_bytes,
            planes,
            bytes: end,
        })
    }

    /// The type of the weights.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Rows.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// Values of a row.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Whether the kernels multiply these weights with quantized activations.
    pub fn takes_quantized_input(&self) -> bool {
        planes(self.ty).is_some()
    }

    /// Bytes of the whole matrix on the device.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The planes, in the order in which kernels know them.
    pub fn planes(&self) -> &[Plane] {
        &self.planes
    }

    /// Bytes of a row in the file.
    pub fn file_row_bytes(&self) -> usize {
        self.file_row_bytes
    }

    /// Repacks a whole matrix.
    ///
    /// # Errors
    /// [`LayoutError::ByteLength`].
    pub fn repack(&self, file_rows: &[u8], device: &mut [u8]) -> Result<(), LayoutError> {
        check_len("the matrix", self.file_row_bytes * self.n_out, file_rows.len())?;
        check_len("the device image", self.bytes, device.len())?;
        device.fill(0);
        for row_idx in 0..self.n_out {
            let row = &file_rows[row_idx * self.file_row_bytes..][..self.file_row_bytes];
            let mut rest = &mut *device;
            let mut start = 0;
            let mut parts: Vec<&mut [u8]> = Vec::with_capacity(self.planes.len());
            for plane in &self.planes {
                let at = plane.offset + row_idx * plane.row_bytes;
                let (_, after) = rest.split_at_mut(at - start);
                let (part, after) = after.split_at_mut(plane.row_bytes);
                parts.push(part);
                (rest, start) = (after, at + plane.row_bytes);
            }
            self.repack_row(row, &mut parts)?;
        }
        Ok(())
    }

    /// Repacks one row: `parts` are its bytes in each plane.
    ///
    /// # Errors
    /// [`LayoutError::ByteLength`].
    pub fn repack_row(&self, file_row: &[u8], parts: &mut [&mut [u8]]) -> Result<(), LayoutError> {
        check_len("a row of the matrix", self.file_row_bytes, file_row.len())?;
        check_len("the list of planes", self.planes.len(), parts.len())?;
        for (plane, part) in self.planes.iter().zip(parts.iter()) {
            check_len("a row of a plane", plane.row_bytes, part.len())?;
        }
        if matches!(self.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16) {
            let (values, padding) = parts[0].split_at_mut(file_row.len());
            values.copy_from_slice(file_row);
            padding.fill(0);
            return Ok(());
        }
        let kinds = planes(self.ty).expect("the type was checked when the layout was made");
        let n_blocks = self.n_in / self.ty.block_len();
        for (block, index) in file_row.chunks_exact(self.ty.block_bytes()).zip(0..n_blocks) {
            let fields = Fields::of(self.ty, block);
            for (kind, part) in kinds.iter().zip(parts.iter_mut()) {
                let bytes = kind.block_bytes(self.ty.block_len());
                kind.write(&fields, &mut part[index * bytes..][..bytes]);
            }
        }
        Ok(())
    }
}

fn check_len(what: &'static str, expected: usize, found: usize) -> Result<(), LayoutError> {
    if expected == found {
        Ok(())
    } else {
        Err(LayoutError::ByteLength {
            what,
            expected,
            found,
        })
    }
}

/// What a plane of a quantized matrix holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaneKind {
    /// The lower four bits, 16 bytes a group.
    Low4,
    /// Two bits from `shift` on, 8 bytes a group.
    Pairs { shift: u8 },
    /// The bit at `shift`, 4 bytes a group.
    Bits { shift: u8 },
    /// Whole bytes of the first or the last 16 weights, 16 bytes a group.
    Bytes { upper: bool },
    /// Scales of the groups, two bytes a group.
    GroupScales,
    /// What the block has once: 2, 4 or 16 bytes.
    Header(usize),
}

/// The planes of a quantized type, in the order of its kernel header.
fn planes(ty: TensorType) -> Option<&'static [PlaneKind]> {
    use PlaneKind::{Bits, Bytes, GroupScales, Header, Low4, Pairs};
    Some(match ty {
        TensorType::Q4_0 => &[Low4, Header(2)],
        TensorType::Q4_1 => &[Low4, Header(4)],
        TensorType::Q5_0 => &[Low4, Bits { shift: 4 }, Header(2)],
        TensorType::Q5_1 => &[Low4, Bits { shift: 4 }, Header(4)],
        TensorType::Q8_0 => &[Bytes { upper: false }, Bytes { upper: true }, Header(2)],
        TensorType::Q2_K => &[Pairs { shift: 0 }, GroupScales, Header(4)],
        TensorType::Q3_K => &[Pairs { shift: 0 }, Bits { shift: 2 }, GroupScales, Header(2)],
        TensorType::Q4_K => &[Low4, Header(16)],
        TensorType::Q5_K => &[Low4, Bits { shift: 4 }, Header(16)],
        TensorType::Q6_K => &[Low4, Pairs { shift: 4 }, GroupScales, Header(2)],
        _ => return None,
    })
}

impl PlaneKind {
    fn block_bytes(self, block_len: usize) -> usize {
        let n_groups = block_len / GROUP;
        match self {
            Self::Low4 | Self::Bytes { .. } => 16 * n_groups,
            Self::Pairs { .. } => 8 * n_groups,
            Self::Bits { .. } => 4 * n_groups,
            Self::GroupScales => 2 * n_groups,
            Self::Header(bytes) => bytes,
        }
    }

    fn write(self, fields: &Fields, out: &mut [u8]) {
        for (group, quants) in fields.quants[..fields.block_len].chunks_exact(GROUP).enumerate() {
            // Weight 4 j + b goes to byte b of word j.
            match self {
                Self::Low4 => {
                    for i in 0..16 {
                        out[16 * group + i] = quants[i] & 0xf | quants[i + 16] << 4;
                    }
                }
                Self::Pairs { shift } => {
                    for (i, quant) in quants.iter().enumerate() {
                        let (word, byte) = (i / 4, i % 4);
                        out[8 * group + 4 * (word / 4) + byte] |= (quant >> shift & 3) << (2 * (word % 4));
                    }
                }
                Self::Bits { shift } => {
                    for (i, quant) in quants.iter().enumerate() {
                        out[4 * group + i % 4] |= (quant >> shift & 1) << (i / 4);
                    }
                }
                Self::Bytes { upper } => {
                    out[16 * group..][..16].copy_from_slice(&quants[if upper { 16 } else { 0 }..][..16]);
                }
                Self::GroupScales => out[2 * group..][..2].copy_from_slice(&fields.scales[2 * group..][..2]),
                Self::Header(_) => {}
            }
        }
        if let Self::Header(bytes) = self {
            out.copy_from_slice(&fields.header[..bytes]);
        }
    }
}

/// Weights of the longest block.
const MAX_BLOCK_LEN: usize = 256;

/// A block of a file, taken apart.
struct Fields {
    /// Unsigned quants in row order (the bytes themselves for Q8_0), as many as the block has.
    quants: [u8; MAX_BLOCK_LEN],
    block_len: usize,
    /// A scale for each 16 weights, where the format has them as bytes.
    scales: [u8; 16],
    /// What the kernels read once a block.
    header: [u8; 16],
}

impl Fields {
    fn of(ty: TensorType, block: &[u8]) -> Self {
        let mut fields = Self {
            quants: [0; MAX_BLOCK_LEN],
            block_len: ty.block_len(),
            scales: [0; 16],
            header: [0; 16],
        };
        match ty {
            TensorType::Q4_0 => fields.legacy(&block[..2], &[], &block[2..]),
            TensorType::Q4_1 => fields.legacy(&block[..4], &[], &block[4..]),
            TensorType::Q5_0 => fields.legacy(&block[..2], &block[2..6], &block[6..]),
            TensorType::Q5_1 => fields.legacy(&block[..4], &block[4..8], &block[8..]),
            TensorType::Q8_0 => {
                fields.header[..2].copy_from_slice(&block[..2]);
                fields.quants[..32].copy_from_slice(&block[2..]);
            }
            TensorType::Q2_K => {
                fields.scales.copy_from_slice(&block[..16]);
                fields.two_bits(&block[16..80]);
                fields.header[..4].copy_from_slice(&block[80..]);
            }
            TensorType::Q3_K => {
                fields.two_bits(&block[32..96]);
                for (i, quant) in fields.quants.iter_mut().enumerate() {
                    *quant |= (block[i % 32] >> (i / 32) & 1) << 2;
                }
                fields.q3_scales(&block[96..108]);
                fields.header[..2].copy_from_slice(&block[108..]);
            }
            TensorType::Q4_K => {
                fields.header.copy_from_slice(&block[..16]);
                fields.four_bits(&block[16..]);
            }
            TensorType::Q5_K => {
                fields.header.copy_from_slice(&block[..16]);
                fields.four_bits(&block[48..]);
                for (i, quant) in fields.quants.iter_mut().enumerate() {
                    *quant |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
                }
            }
            TensorType::Q6_K => {
                for (i, quant) in fields.quants.iter_mut().enumerate() {
                    let (half, run, l) = (i / 128, i % 128 / 32, i % 32);
                    let low = block[64 * half + 32 * (run % 2) + l] >> (4 * (run / 2)) & 0xf;
                    let high = block[128 + 32 * half + l] >> (2 * run) & 3;
                    *quant = low | high << 4;
                }
                fields.scales.copy_from_slice(&block[192..208]);
                fields.header[..2].copy_from_slice(&block[208..]);
            }
            _ => unreachable!("only types with planes come here"),
        }
        fields
    }

    /// Blocks of 32: a header, optional fifth bits, and nibbles of weights `i` and `i + 16`.
    fn legacy(&mut self, header: &[u8], high: &[u8], nibbles: &[u8]) {
        self.header[..header.len()].copy_from_slice(header);
        for (i, byte) in nibbles.iter().enumerate() {
            self.quants[i] = byte & 0xf;
            self.quants[i + 16] = byte >> 4;
        }
        for (i, byte) in high.iter().enumerate() {
            for bit in 0..8 {
                self.quants[8 * i + bit] |= (byte >> bit & 1) << 4;
            }
        }
    }

    /// Superblocks of nibbles: of each 64 weights, 32 bytes with weights `i` and `i + 32`.
    fn four_bits(&mut self, bytes: &[u8]) {
        for (i, quant) in self.quants.iter_mut().enumerate() {
            *quant = bytes[32 * (i / 64) + i % 32] >> (4 * (i % 64 / 32)) & 0xf;
        }
    }

    /// Superblocks of pairs of bits: of each 128 weights, 32 bytes with weights `i`, `i + 32`, `i + 64`, `i + 96`.
    fn two_bits(&mut self, bytes: &[u8]) {
        for (i, quant) in self.quants.iter_mut().enumerate() {
            *quant = bytes[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
        }
    }

    /// Sixteen scales of 6 bits, less 32: the lower four bits in 8 bytes, the upper two in 4.
    fn q3_scales(&mut self, packed: &[u8]) {
        for (i, scale) in self.scales.iter_mut().enumerate() {
            let low = packed[i % 8] >> (4 * (i / 8)) & 0xf;
            let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
            *scale = (low | high << 4).wrapping_sub(32);
        }
    }
}
