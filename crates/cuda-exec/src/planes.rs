//! [`FormatPlanes`]: the planes into which a format's blocks are divided.
//!
//! Nothing is listed here: the planes follow from the parts of a block ([`QuantBlock`]). Their order is the bits of a quant,
//! then the groups' scales, then the per-block values; `kernels/formats/planes.cuh` says where each weight is in them.

use bytemuck::cast_slice;
use tokenmill_gguf::TensorType;
use tokenmill_quant::{Block, BlockParts, QuantBlock, for_each_format, formats};

/// Weights of a group.
const GROUP: usize = 32;
/// Largest number of planes of a format.
const MAX_PLANES: usize = 4;

macro_rules! table {
    (
        floats: [$($float:ident: $float_block:ident,)*],
        quants: [$($quant:ident: $quant_block:ident,)*],
    ) => {
        &[
            $(FormatPlanes::float::<formats::$float_block>(),)*
            $(FormatPlanes::quant::<formats::$quant_block>(),)*
        ]
    };
}

static FORMATS: &[FormatPlanes] = for_each_format!(table);

/// Describes how rows of a format are divided into planes.
#[derive(Debug)]
pub(crate) struct FormatPlanes {
    ty: TensorType,
    /// The planes, for quantized formats.
    planes: Option<Planes>,
    /// Divides a row of whole blocks; the parts are its bytes in each plane.
    repack_row: fn(&[u8], &mut [&mut [u8]]),
}

impl PartialEq for FormatPlanes {
    fn eq(&self, other: &Self) -> bool {
        self.ty == other.ty
    }
}

impl Eq for FormatPlanes {}

impl FormatPlanes {
    const fn float<B: Block>() -> Self {
        Self {
            ty: B::TYPE,
            planes: None,
            repack_row: |row, parts| {
                let (values, padding) = parts[0].split_at_mut(row.len());
                values.copy_from_slice(row);
                padding.fill(0);
            },
        }
    }

    const fn quant<B: QuantBlock>() -> Self {
        Self {
            ty: B::TYPE,
            planes: Some(Planes::of::<B>()),
            repack_row: |row, parts| {
                let planes = const { Planes::of::<B>() };
                for (index, block) in cast_slice::<u8, B>(row).iter().enumerate() {
                    let block = block.parts();
                    for (plane, part) in planes.iter().zip(parts.iter_mut()) {
                        let bytes = plane.block_bytes(B::LEN);
                        plane.write(&block, &mut part[index * bytes..][..bytes]);
                    }
                }
            },
        }
    }

    /// Returns the planes of a type; `None` if no kernel reads it.
    pub(crate) fn of(ty: TensorType) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.ty == ty)
    }

    /// Returns the type.
    pub(crate) fn ty(&self) -> TensorType {
        self.ty
    }

    /// Returns whether rows are stored unchanged.
    pub(crate) fn is_float(&self) -> bool {
        self.planes.is_none()
    }

    /// Bytes that a block of a quantized format has in each plane.
    pub(crate) fn block_bytes(&self) -> impl Iterator<Item = usize> {
        let planes = self.planes.iter().flat_map(Planes::iter);
        planes.map(|plane| plane.block_bytes(self.ty.block_len()))
    }

    /// Divides a row into its parts, which have the lengths that a layout says and are zero.
    pub(crate) fn repack_row(&self, row: &[u8], parts: &mut [&mut [u8]]) {
        (self.repack_row)(row, parts);
    }
}

/// The planes of a format.
#[derive(Clone, Copy, Debug)]
struct Planes {
    kinds: [PlaneKind; MAX_PLANES],
    len: usize,
}

impl Planes {
    const fn of<B: QuantBlock>() -> Self {
        let none = Self {
            kinds: [PlaneKind::Low4; MAX_PLANES],
            len: 0,
        };
        let quants = match B::QUANT_BITS {
            1 => none.with(PlaneKind::Bits { shift: 0 }),
            2 => none.with(PlaneKind::Pairs { shift: 0 }),
            3 => none
                .with(PlaneKind::Pairs { shift: 0 })
                .with(PlaneKind::Bits { shift: 2 }),
            4 => none.with(PlaneKind::Low4),
            5 => none.with(PlaneKind::Low4).with(PlaneKind::Bits { shift: 4 }),
            6 => none.with(PlaneKind::Low4).with(PlaneKind::Pairs { shift: 4 }),
            8 => none
                .with(PlaneKind::Bytes { upper: false })
                .with(PlaneKind::Bytes { upper: true }),
            _ => panic!("no planes for quants of this many bits"),
        };
        let scales = match B::GROUP_SCALE_BYTES {
            0 => quants,
            bytes => quants.with(PlaneKind::GroupScales(bytes)),
        };
        match B::HEADER_BYTES {
            0 => scales,
            bytes => scales.with(PlaneKind::Header(bytes)),
        }
    }

    const fn with(mut self, kind: PlaneKind) -> Self {
        self.kinds[self.len] = kind;
        self.len += 1;
        self
    }

    fn iter(&self) -> impl Iterator<Item = &PlaneKind> {
        self.kinds[..self.len].iter()
    }
}

/// The contents of a plane of a quantized matrix.
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
    /// Scales of the groups, with this number of bytes per group.
    GroupScales(usize),
    /// The per-block values: up to 16 bytes.
    Header(usize),
}

impl PlaneKind {
    const fn block_bytes(self, block_len: usize) -> usize {
        let n_groups = block_len / GROUP;
        match self {
            Self::Low4 | Self::Bytes { .. } => 16 * n_groups,
            Self::Pairs { .. } => 8 * n_groups,
            Self::Bits { .. } => 4 * n_groups,
            Self::GroupScales(bytes) => bytes * n_groups,
            Self::Header(bytes) => bytes,
        }
    }

    /// Writes the plane's part of a block to `out`, which is zero.
    fn write<Q: AsRef<[u8]>>(self, block: &BlockParts<Q>, out: &mut [u8]) {
        match self {
            Self::GroupScales(_) => return out.copy_from_slice(&block.group_scales[..out.len()]),
            Self::Header(bytes) => return out.copy_from_slice(&block.header[..bytes]),
            _ => {}
        }
        for (group, quants) in block.quants.as_ref().chunks_exact(GROUP).enumerate() {
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
                        let (word, byte) = (i / 4, i % 4);
                        out[4 * group + byte] |= (quant >> shift & 1) << word;
                    }
                }
                Self::Bytes { upper } => {
                    out[16 * group..][..16].copy_from_slice(&quants[if upper { 16 } else { 0 }..][..16]);
                }
                Self::GroupScales(_) | Self::Header(_) => {}
            }
        }
    }
}
