//! [`Ty`] and [`Space`]: the fundamental types and state spaces of PTX, shared by the parser, the decoder and reports.
//!
//! Invariant: only types and spaces that the interpreter executes exist here; any other name is rejected while
//! parsing.

use std::fmt;

/// A fundamental type of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ty {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    Bf16,
    B32,
    U32,
    S32,
    F32,
    F16x2,
    Bf16x2,
    B64,
    U64,
    S64,
    F64,
}

impl Ty {
    /// Reads a type's name, without its leading dot.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "b16" => Self::B16,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "b32" => Self::B32,
            "u32" => Self::U32,
            "s32" => Self::S32,
            "f32" => Self::F32,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::Bf16x2,
            "b64" => Self::B64,
            "u64" => Self::U64,
            "s64" => Self::S64,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Returns the size in memory, in bytes.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::Pred | Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 | Self::F16x2 | Self::Bf16x2 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    pub(crate) fn is_integer(self) -> bool {
        matches!(
            self,
            Self::U8 | Self::S8 | Self::U16 | Self::S16 | Self::U32 | Self::S32 | Self::U64 | Self::S64
        )
    }
}

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Memory of the device.
    Global,
    /// Memory of a thread block.
    Shared,
    /// Memory of a thread.
    Local,
    /// The address decides.
    Generic,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Generic => "generic",
        })
    }
}

/// Generic addresses of local memory start here.
pub(crate) const LOCAL_WINDOW: u64 = 0x6000_0000_0000;
/// Generic addresses of shared memory start here.
pub(crate) const SHARED_WINDOW: u64 = 0x7000_0000_0000;
/// Bytes of the shared and of the local window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;

/// Returns the space of a generic address and the offset in it.
pub(crate) fn resolve_generic(address: u64) -> (Space, u64) {
    if (SHARED_WINDOW..SHARED_WINDOW + WINDOW_BYTES).contains(&address) {
        (Space::Shared, address - SHARED_WINDOW)
    } else if (LOCAL_WINDOW..LOCAL_WINDOW + WINDOW_BYTES).contains(&address) {
        (Space::Local, address - LOCAL_WINDOW)
    } else {
        (Space::Global, address)
    }
}
