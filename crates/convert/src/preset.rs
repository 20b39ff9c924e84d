//! [`Preset`]: the kinds of quantized files, by their usual names.
//!
//! Names, help texts and metadata need only this list. Invariant: names, numbers and default types are
//! llama.cpp's, so a file made here has the same name as the same file made there.
//!
//! Source: ggml-org/llama.cpp, `include/llama.h` (`enum llama_ftype`), `tools/quantize/quantize.cpp`.

use std::{fmt, str::FromStr};

use tokenmill_gguf::TensorType;

use crate::ConvertError;

/// Defines the enum and its lookups from one table, so that a preset is one row.
macro_rules! presets {
    ($($name:ident = $file_type:literal: $default:ident, $about:literal;)*) => {
        /// A kind of quantized file, which determines the types of its tensors.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(non_camel_case_types, reason = "the names that every listing of models shows")]
        #[non_exhaustive]
        pub enum Preset {
            $(#[doc = $about] $name,)*
        }

        impl Preset {
            /// Every preset, roughly from the fewest bits to the most.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Returns a short description.
            pub const fn about(self) -> &'static str {
                match self {
                    $(Self::$name => $about,)*
                }
            }

            /// Returns the type of tensors without a rule of their own.
            pub const fn default_type(self) -> TensorType {
                match self {
                    $(Self::$name => TensorType::$default,)*
                }
            }

            /// Returns the number for `general.file_type`.
            pub const fn file_type(self) -> u32 {
                match self {
                    $(Self::$name => $file_type,)*
                }
            }
        }
    };
}

presets! {
    Q1_0 = 40: Q1_0, "1.1 bits: signs only; for models trained for it";
    IQ1_S = 24: IQ1_S, "1.6 bits; needs an importance matrix";
    TQ1_0 = 36: TQ1_0, "1.7 bits: ternary; for models trained for it";
    IQ1_M = 31: IQ1_M, "1.8 bits; needs an importance matrix";
    IQ2_XXS = 19: IQ2_XXS, "2.1 bits; needs an importance matrix";
    TQ2_0 = 37: TQ2_0, "2.1 bits: ternary; for models trained for it";
    Q2_0 = 41: Q2_0, "2.3 bits: ternary; for models trained for it";
    IQ2_XS = 20: IQ2_XS, "2.3 bits; needs an importance matrix";
    IQ2_S = 28: IQ2_XS, "2.5 bits; needs an importance matrix";
    Q2_K_S = 21: Q2_K, "2.6 bits; needs an importance matrix";
    IQ2_M = 29: IQ2_S, "2.7 bits; needs an importance matrix";
    Q2_K = 10: Q2_K, "2.6 to 3.4 bits; much is lost";
    IQ3_XXS = 23: IQ3_XXS, "3.1 bits; needs an importance matrix";
    IQ3_XS = 22: IQ3_S, "3.3 bits; needs an importance matrix";
    IQ3_S = 26: IQ3_S, "3.4 bits; better than Q3_K_S at its size";
    Q3_K_S = 11: Q3_K, "3.4 bits";
    IQ3_M = 27: IQ3_S, "3.6 bits: IQ3_S, and more for attention";
    Q3_K_M = 12: Q3_K, "3.9 bits: Q3_K, and more where it counts";
    Q3_K_L = 13: Q3_K, "4.3 bits: Q3_K, and still more where it counts";
    IQ4_XS = 30: IQ4_XS, "4.3 bits; nearly as good as Q4_K_S, and smaller";
    MXFP4_MOE = 38: MXFP4, "4.3 bits for experts, 8 for the rest; as gpt-oss has it";
    Q4_0 = 2: Q4_0, "4.5 bits: plain; Q4_K_S is better at its size";
    IQ4_NL = 25: IQ4_NL, "4.5 bits: any row of a multiple of 32";
    Q4_K_S = 14: Q4_K, "4.6 bits";
    Q4_K_M = 15: Q4_K, "4.8 bits: the most common choice";
    Q4_1 = 3: Q4_1, "5.0 bits: plain with a minimum";
    Q5_0 = 8: Q5_0, "5.5 bits: plain";
    Q5_K_S = 16: Q5_K, "5.5 bits";
    Q5_K_M = 17: Q5_K, "5.7 bits: close to the original";
    Q5_1 = 9: Q5_1, "6.0 bits: plain with a minimum";
    Q6_K = 18: Q6_K, "6.6 bits: very close to the original";
    Q8_0 = 7: Q8_0, "8.5 bits: almost identical to the original";
    BF16 = 32: BF16, "16 bits, with the range of 32";
    F16 = 1: F16, "16 bits";
    F32 = 0: F32, "32 bits";
}

/// Short names with their presets.
const ALIASES: [(&str, Preset); 3] = [
    ("Q3_K", Preset::Q3_K_M),
    ("Q4_K", Preset::Q4_K_M),
    ("Q5_K", Preset::Q5_K_M),
];

impl FromStr for Preset {
    type Err = ConvertError;

    /// Parses a name, in upper or lower case, or a short one: `q4_k` is `Q4_K_M`.
    fn from_str(name: &str) -> Result<Self, ConvertError> {
        let aliases = ALIASES.iter().map(|&(alias, preset)| (alias, preset));
        (Self::ALL.iter().map(|&preset| (preset.name(), preset)))
            .chain(aliases)
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, preset)| preset)
            .ok_or_else(|| ConvertError::UnknownPreset {
                name: name.to_owned(),
                known: Self::ALL.iter().map(|preset| preset.name()).collect(),
            })
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case_and_short() {
        for &preset in Preset::ALL {
            assert_eq!(preset.name().parse::<Preset>().unwrap(), preset);
            assert_eq!(preset.name().to_lowercase().parse::<Preset>().unwrap(), preset);
        }
        assert_eq!("q4_k".parse::<Preset>().unwrap(), Preset::Q4_K_M);
        assert_eq!(
            "Q4_L".parse::<Preset>().unwrap_err().to_string(),
            "`Q4_L` is not a file type; known are Q1_0, IQ1_S, TQ1_0, IQ1_M, IQ2_XXS, TQ2_0, Q2_0, IQ2_XS, IQ2_S, Q2_K_S, IQ2_M, Q2_K, \
             IQ3_XXS, IQ3_XS, IQ3_S, Q3_K_S, IQ3_M, Q3_K_M, Q3_K_L, IQ4_XS, MXFP4_MOE, Q4_0, IQ4_NL, Q4_K_S, Q4_K_M, Q4_1, Q5_0, \
             Q5_K_S, Q5_K_M, Q5_1, Q6_K, Q8_0, BF16, F16, F32"
        );
    }

    #[test]
    fn numbers_are_distinct() {
        let mut numbers: Vec<u32> = Preset::ALL.iter().map(|preset| preset.file_type()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), Preset::ALL.len());
    }
}
