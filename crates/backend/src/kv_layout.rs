//! [`KvLayout`]: the contents of a KV store.
//!
//! The memory plan needs it before there is a store.

use std::{fmt, str::FromStr};

use crate::{PAGE_TOKENS, PageGroup};

/// How K and V are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// Exact.
    F32,
    /// Rounded to half precision.
    #[default]
    F16,
    /// Blocks of 32 signed bytes with an f16 scale, along a head.
    Q8_0,
    /// Floats of 8 bits, with four exponent and three mantissa bits, without a scale: numbers beyond 448
    /// become 448.
    E4M3,
    /// Blocks of 32 4-bit integers with an f16 scale, along a head whose columns are first
    /// [rotated](KvLayerShape::key_rotation).
    Q4_0,
}

impl KvType {
    /// All types, exact ones first.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Q8_0, Self::E4M3, Self::Q4_0];

    /// Returns its name, as used by GGUF, if it has the type, and by command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::E4M3 => "e4m3",
            Self::Q4_0 => "q4_0",
        }
    }

    /// Returns other accepted names: those of vLLM.
    pub fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::E4M3 => &["fp8", "fp8_e4m3"],
            _ => &[],
        }
    }

    /// Returns the bytes of a head of `head_dim` numbers.
    pub fn head_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => head_dim * 4,
            Self::F16 => head_dim * 2,
            Self::Q8_0 => head_dim.div_ceil(32) * 34,
            Self::E4M3 => head_dim,
            Self::Q4_0 => head_dim.div_ceil(32) * 18,
        }
    }

    /// Returns the number of values that share a scale; a head must be a multiple of it. 1 for types without
    /// scales.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::E4M3 => 1,
            Self::Q8_0 | Self::Q4_0 => 32,
        }
    }

    /// Returns whether heads are rotated before they are rounded. A few outliers of a head take precision
    /// from the numbers that share their scale; the rotation spreads them over all.
    pub fn is_rotated(self) -> bool {
        self == Self::Q4_0
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a KV type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a type of stored keys and values; expected `f32`, `f16`, `q8_0`, `e4m3` or `q4_0`")]
pub struct KvTypeError {
    found: String,
}

impl FromStr for KvType {
    type Err = KvTypeError;

    fn from_str(name: &str) -> Result<Self, KvTypeError> {
        let named = |ty: &Self| ty.name() == name || ty.aliases().contains(&name);
        Self::ALL.into_iter().find(named).ok_or_else(|| KvTypeError {
            found: name.to_owned(),
        })
    }
}

/// The contents of a KV store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Shape of each layer.
    pub layers: Vec<KvLayerShape>,
    /// Group of each layer.
    pub groups: Vec<PageGroup>,
    /// Number of pages in the pool; in the main group's, if there are two.
    pub n_pages: usize,
    /// Number of pages in the host tier; in the main group's, if there are two.
    pub n_host_pages: usize,
    /// Number of pages in the pool of the layers with a window, if they have a separate group.
    pub n_window_pages: usize,
    /// Number of pages in the host tier of that group.
    pub n_window_host_pages: usize,
    /// Type of the keys in the KV cache.
    pub key_type: KvType,
    /// Type of the values in the KV cache.
    pub value_type: KvType,
}

impl KvLayout {
    /// Returns the layout of each existing group as if it were the only one, in the order of
    /// [`PageGroup::ALL`].
    pub fn by_group(&self) -> impl Iterator<Item = Self> {
        let is_present = |group: &PageGroup| *group == PageGroup::Main || self.groups.contains(group);
        (PageGroup::ALL.into_iter().filter(is_present)).map(|group| {
            let of_group = |(shape, of): (&KvLayerShape, &PageGroup)| (*of == group).then_some(*shape);
            let layers: Vec<_> = (self.layers.iter().zip(&self.groups))
                .filter_map(of_group)
                .collect();
            let (n_pages, n_host_pages) = match group {
                PageGroup::Main => (self.n_pages, self.n_host_pages),
                PageGroup::Window => (self.n_window_pages, self.n_window_host_pages),
            };
            Self {
                groups: vec![PageGroup::Main; layers.len()],
                layers,
                n_pages,
                n_host_pages,
                n_window_pages: 0,
                n_window_host_pages: 0,
                key_type: self.key_type,
                value_type: self.value_type,
            }
        })
    }

    /// Returns the bytes of one page, all layers, with numbers packed without gaps.
    pub fn page_bytes(&self) -> usize {
        let token_bytes: usize = (self.layers.iter())
            .map(|layer| {
                layer.n_kv_heads
                    * (self.key_type.head_bytes(layer.head_dim_k)
                        + self.value_type.head_bytes(layer.own_value_dim()))
            })
            .sum();
        token_bytes * PAGE_TOKENS
    }
}

/// One layer's row in the KV store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayerShape {
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Width of a key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
    /// Whether a head's value is the beginning of its key, and not stored separately.
    pub has_values_in_keys: bool,
}

impl KvLayerShape {
    /// Returns the number of a value's numbers that are stored separately.
    pub fn own_value_dim(&self) -> usize {
        if self.has_values_in_keys {
            0
        } else {
            self.head_dim_v
        }
    }

    /// Returns the number of columns of a key that are rotated together if its type [needs
    /// it](KvType::is_rotated): the largest power of two, up to [`MAX_ROTATION`], that divides the head width
    /// and, if values are in keys, their width too.
    ///
    /// A rotation is the Hadamard matrix `h[i][j] = (-1)^popcount(i & j) / sqrt(n)`, which is its own
    /// inverse. Queries are rotated like keys, which preserves their products, and sums of values are rotated
    /// back.
    pub fn key_rotation(&self) -> usize {
        let values = if self.has_values_in_keys {
            self.head_dim_v
        } else {
            0
        };
        rotation_of(self.head_dim_k | values)
    }

    /// Returns the number of columns of a value that are rotated together, by the same rule.
    pub fn value_rotation(&self) -> usize {
        if self.has_values_in_keys {
            self.key_rotation()
        } else {
            rotation_of(self.head_dim_v)
        }
    }
}

/// Maximum number of columns that are rotated together.
pub const MAX_ROTATION: usize = 256;

fn rotation_of(width: usize) -> usize {
    1 << width.trailing_zeros().min(MAX_ROTATION.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_rotated_in_powers_of_two() {
        let check = |head_dim_k, head_dim_v, has_values_in_keys, expected| {
            let shape = KvLayerShape {
                n_kv_heads: 1,
                head_dim_k,
                head_dim_v,
                has_values_in_keys,
            };
            assert_eq!(
                [shape.key_rotation(), shape.value_rotation()],
                expected,
                "{shape:?}"
            );
        };
        check(64, 128, false, [64, 128]);
        check(96, 80, false, [32, 16]);
        check(512, 256, false, [256, 256]);
        // A latent row: its beginning is the value.
        check(576, 512, true, [64, 64]);
        check(0, 32, false, [256, 32]);
    }

    #[test]
    fn types_read_back_from_their_names() {
        for ty in KvType::ALL {
            assert_eq!(ty.to_string().parse(), Ok(ty));
            for alias in ty.aliases() {
                assert_eq!(alias.parse(), Ok(ty));
            }
        }
        assert!("q4_1".parse::<KvType>().is_err());
    }
}
