//! [`TensorType`]: every element type a GGUF tensor may have, with its block layout.
//!
//! One table, because a file with a type that no backend computes must still open and list. Invariant: the
//! ids and sizes are those of the format; decoding a block is not part of this crate.

use std::fmt;

/// Defines the enum and its lookups from one table, so that a type is one row.
macro_rules! tensor_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal: $block_len:literal elements in $block_bytes:literal bytes;)*) => {
        /// The element type of a tensor: its GGUF id, its name and the layout of its blocks.
        ///
        /// Variants carry the names of the format, so that a file listing greps to code.
        /// Source: `enum ggml_type` and its type traits in ggml.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(non_camel_case_types, reason = "the names of the format, as every file listing shows them")]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum TensorType {
            $($(#[$doc])* $name = $id,)*
        }

        impl TensorType {
            /// Every type, by ascending id.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the type with this id; `None` for ids that are unknown or were removed.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns its name in the format, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Returns the number of elements in one block.
            pub const fn block_len(self) -> usize {
                match self {
                    $(Self::$name => $block_len,)*
                }
            }

            /// Returns the number of bytes of one block.
            pub const fn block_bytes(self) -> usize {
                match self {
                    $(Self::$name => $block_bytes,)*
                }
            }
        }
    };
}

tensor_types! {
    /// 32-bit float.
    F32 = 0: 1 elements in 4 bytes;
    /// 16-bit float.
    F16 = 1: 1 elements in 2 bytes;
    /// 4 bits, one scale.
    Q4_0 = 2: 32 elements in 18 bytes;
    /// 4 bits, scale and minimum.
    Q4_1 = 3: 32 elements in 20 bytes;
    /// 5 bits, one scale.
    Q5_0 = 6: 32 elements in 22 bytes;
    /// 5 bits, scale and minimum.
    Q5_1 = 7: 32 elements in 24 bytes;
    /// 8 bits, one scale.
    Q8_0 = 8: 32 elements in 34 bytes;
    /// 8 bits, scale and sum: an activation format.
    Q8_1 = 9: 32 elements in 36 bytes;
    /// 2-bit super-block.
    Q2_K = 10: 256 elements in 84 bytes;
    /// 3-bit super-block.
    Q3_K = 11: 256 elements in 110 bytes;
    /// 4-bit super-block.
    Q4_K = 12: 256 elements in 144 bytes;
    /// 5-bit super-block.
    Q5_K = 13: 256 elements in 176 bytes;
    /// 6-bit super-block.
    Q6_K = 14: 256 elements in 210 bytes;
    /// 8-bit super-block with sums: an activation format.
    Q8_K = 15: 256 elements in 292 bytes;
    /// 2.06 bits, codebook.
    IQ2_XXS = 16: 256 elements in 66 bytes;
    /// 2.31 bits, codebook.
    IQ2_XS = 17: 256 elements in 74 bytes;
    /// 3.06 bits, codebook.
    IQ3_XXS = 18: 256 elements in 98 bytes;
    /// 1.56 bits, codebook.
    IQ1_S = 19: 256 elements in 50 bytes;
    /// 4 bits, non-linear levels.
    IQ4_NL = 20: 32 elements in 18 bytes;
    /// 3.44 bits, codebook.
    IQ3_S = 21: 256 elements in 110 bytes;
    /// 2.56 bits, codebook.
    IQ2_S = 22: 256 elements in 82 bytes;
    /// 4.25 bits, non-linear levels in a super-block.
    IQ4_XS = 23: 256 elements in 136 bytes;
    /// Signed 8-bit integer.
    I8 = 24: 1 elements in 1 bytes;
    /// Signed 16-bit integer.
    I16 = 25: 1 elements in 2 bytes;
    /// Signed 32-bit integer.
    I32 = 26: 1 elements in 4 bytes;
    /// Signed 64-bit integer.
    I64 = 27: 1 elements in 8 bytes;
    /// 64-bit float.
    F64 = 28: 1 elements in 8 bytes;
    /// 1.75 bits, codebook.
    IQ1_M = 29: 256 elements in 56 bytes;
    /// 16-bit float with the exponent of a 32-bit one.
    BF16 = 30: 1 elements in 2 bytes;
    /// 1.69 bits, ternary, five to a byte.
    TQ1_0 = 34: 256 elements in 54 bytes;
    /// 2.06 bits, ternary.
    TQ2_0 = 35: 256 elements in 66 bytes;
    /// 4-bit floats with one shared exponent (OCP microscaling).
    MXFP4 = 39: 32 elements in 17 bytes;
    /// 4-bit floats with an 8-bit float scale per 16.
    NVFP4 = 40: 64 elements in 36 bytes;
    /// 1 bit, one scale.
    Q1_0 = 41: 128 elements in 18 bytes;
    /// 2 bits, one scale.
    Q2_0 = 42: 64 elements in 18 bytes;
}

/// Ids that files once used and no reader supports any more.
const REMOVED: [(u32, &str); 8] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl TensorType {
    /// Returns the id that files store.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Returns the type with this name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// Returns the bytes of `n_elements` consecutive elements; `None` if they are not whole blocks or too
    /// many to count.
    pub const fn row_bytes(self, n_elements: usize) -> Option<usize> {
        if !n_elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (n_elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Returns the former name of a removed id; `None` for ids in use and ids never assigned.
    pub(crate) fn removed_name(id: u32) -> Option<&'static str> {
        REMOVED
            .iter()
            .find(|(removed, _)| *removed == id)
            .map(|(_, name)| *name)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_and_never_removed_ones() {
        for pair in TensorType::ALL.windows(2) {
            assert!(pair[0].id() < pair[1].id());
        }
        for &ty in TensorType::ALL {
            assert_eq!(TensorType::from_id(ty.id()), Some(ty));
            assert_eq!(TensorType::from_name(&ty.name().to_lowercase()), Some(ty));
            assert_eq!(TensorType::removed_name(ty.id()), None);
        }
        for (id, _) in REMOVED {
            assert_eq!(TensorType::from_id(id), None);
        }
    }

    #[test]
    fn row_bytes_wants_whole_blocks_and_no_overflow() {
        assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(TensorType::Q4_K.row_bytes(0), Some(0));
        assert_eq!(TensorType::Q4_K.row_bytes(257), None);
        assert_eq!(TensorType::F32.row_bytes(usize::MAX), None);
    }
}
