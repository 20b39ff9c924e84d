//! [`Preset`]: the shapes of real models, and small ones for tests.
//!
//! Invariant: a preset with fewer layers than its model says so in its name.

use anyhow::Context;

/// The architecture of a model, which decides its tensor names and metadata keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Qwen35,
    Qwen3Moe,
    GptOss,
    Gemma3,
}

impl Architecture {
    /// Returns its name in metadata.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen35 => "qwen35",
            Self::Qwen3Moe => "qwen3moe",
            Self::GptOss => "gpt-oss",
            Self::Gemma3 => "gemma3",
        }
    }
}

/// The shape of a model. Source: the `config.json` of each.
#[derive(Clone, Debug)]
pub(super) struct Preset {
    pub(super) name: &'static str,
    pub(super) architecture: Architecture,
    pub(super) n_layers: u32,
    pub(super) n_embd: u32,
    pub(super) n_ff: u32,
    pub(super) n_heads: u32,
    pub(super) n_kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) n_vocab: u32,
    pub(super) n_ctx: u32,
    pub(super) rope_base: f32,
    pub(super) rms_epsilon: f32,
    /// Whether the output head is the embedding.
    pub(super) is_tied: bool,
    /// Whether low frequencies are stretched as in Llama 3.1 and later.
    pub(super) has_rope_factors: bool,
    /// Experts in the place of the feed-forward network.
    pub(super) experts: Option<Experts>,
    /// Gated delta nets in three of four layers.
    pub(super) delta_net: Option<DeltaNet>,
    /// The sliding window of the layers that have one.
    pub(super) window: Option<u32>,
}

/// The experts of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    /// How many there are.
    pub(super) total: u32,
    /// Number of experts that a token uses.
    pub(super) used: u32,
    /// Width inside each.
    pub(super) n_ff: u32,
}

/// A gated delta net.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeltaNet {
    pub(super) n_k_heads: u32,
    pub(super) n_v_heads: u32,
    /// Width of a head.
    pub(super) head_dim: u32,
    pub(super) n_taps: u32,
}

/// The base of most presets.
const DENSE: Preset = Preset {
    name: "",
    architecture: Llama,
    n_layers: 2,
    n_embd: 256,
    n_ff: 512,
    n_heads: 4,
    n_kv_heads: 2,
    head_dim: 64,
    n_vocab: 2048,
    n_ctx: 4096,
    rope_base: 1e6,
    rms_epsilon: 1e-6,
    is_tied: true,
    has_rope_factors: false,
    experts: None,
    delta_net: None,
    window: None,
};

use Architecture::{Gemma3, GptOss, Llama, Qwen2, Qwen3, Qwen3Moe, Qwen35};

#[rustfmt::skip]
const PRESETS: [Preset; 14] = [
    Preset {
        name: "qwen2.5-0.5b", architecture: Qwen2, n_layers: 24, n_embd: 896, n_ff: 4864, n_heads: 14,
        n_vocab: 151_936, n_ctx: 32_768, ..DENSE
    },
    Preset {
        name: "qwen3-0.6b", architecture: Qwen3, n_layers: 28, n_embd: 1024, n_ff: 3072, n_heads: 16,
        n_kv_heads: 8, head_dim: 128, n_vocab: 151_936, n_ctx: 40_960, ..DENSE
    },
    Preset {
        name: "llama-3.2-1b", architecture: Llama, n_layers: 16, n_embd: 2048, n_ff: 8192, n_heads: 32,
        n_kv_heads: 8, n_vocab: 128_256, n_ctx: 131_072, rope_base: 5e5, rms_epsilon: 1e-5,
        has_rope_factors: true, ..DENSE
    },
    Preset {
        name: "llama-3-8b", architecture: Llama, n_layers: 32, n_embd: 4096, n_ff: 14_336, n_heads: 32,
        n_kv_heads: 8, head_dim: 128, n_vocab: 128_256, n_ctx: 8192, rope_base: 5e5, rms_epsilon: 1e-5,
        is_tied: false, ..DENSE
    },
    Preset {
        name: "tiny-llama", architecture: Llama, rope_base: 5e5, rms_epsilon: 1e-5, has_rope_factors: true,
        ..DENSE
    },
    Preset { name: "tiny-qwen2", architecture: Qwen2, n_embd: 128, n_heads: 2, n_kv_heads: 1, ..DENSE },
    // Qwen3.5-2B.
    Preset {
        name: "qwen3.5-2b", architecture: Qwen35, n_layers: 24, n_embd: 2048, n_ff: 6144, n_heads: 8,
        head_dim: 256, n_vocab: 248_320, n_ctx: 262_144, rope_base: 1e7,
        delta_net: Some(DeltaNet { n_k_heads: 16, n_v_heads: 16, head_dim: 128, n_taps: 4 }), ..DENSE
    },
    // Qwen3-30B-A3B, 8 of its 48 layers.
    Preset {
        name: "qwen3-30b-a3b-8l", architecture: Qwen3Moe, n_layers: 8, n_embd: 2048, n_ff: 6144,
        n_heads: 32, n_kv_heads: 4, head_dim: 128, n_vocab: 151_936, n_ctx: 40_960, is_tied: false,
        experts: Some(Experts { total: 128, used: 8, n_ff: 768 }), ..DENSE
    },
    // gpt-oss-20b, 6 of its 24 layers.
    Preset {
        name: "gpt-oss-20b-6l", architecture: GptOss, n_layers: 6, n_embd: 2880, n_ff: 2880, n_heads: 64,
        n_kv_heads: 8, n_vocab: 201_088, n_ctx: 131_072, rope_base: 150_000.0, rms_epsilon: 1e-5,
        is_tied: false, experts: Some(Experts { total: 32, used: 4, n_ff: 2880 }), window: Some(128),
        ..DENSE
    },
    Preset {
        name: "gemma-3-4b", architecture: Gemma3, n_layers: 34, n_embd: 2560, n_ff: 10_240, n_heads: 8,
        n_kv_heads: 4, head_dim: 256, n_vocab: 262_208, n_ctx: 131_072, window: Some(1024), ..DENSE
    },
    Preset {
        name: "tiny-qwen3.5", architecture: Qwen35, n_layers: 4,
        delta_net: Some(DeltaNet { n_k_heads: 2, n_v_heads: 4, head_dim: 64, n_taps: 4 }), ..DENSE
    },
    Preset {
        name: "tiny-qwen3-moe", architecture: Qwen3Moe, is_tied: false,
        experts: Some(Experts { total: 8, used: 2, n_ff: 256 }), ..DENSE
    },
    Preset {
        name: "tiny-gpt-oss", architecture: GptOss, is_tied: false,
        experts: Some(Experts { total: 4, used: 2, n_ff: 256 }), window: Some(32), ..DENSE
    },
    Preset { name: "tiny-gemma-3", architecture: Gemma3, n_layers: 6, window: Some(32), ..DENSE },
];

impl Preset {
    /// Layers in a group of a network with delta nets. The last layer of each group has attention.
    pub(super) const ATTENTION_INTERVAL: u32 = 4;

    /// Finds a preset by its name.
    ///
    /// # Errors
    /// A name that no preset has.
    pub(super) fn find(name: &str) -> anyhow::Result<&'static Self> {
        PRESETS
            .iter()
            .find(|preset| preset.name == name)
            .with_context(|| {
                let names = PRESETS.map(|preset| preset.name).join(", ");
                format!("unknown preset `{name}`; known are {names}")
            })
    }

    /// Returns the bytes of `rope_freqs.weight`, the divisor of each frequency.
    ///
    /// Source: `rope_type: llama3` of Hugging Face transformers, with the constants of Llama 3.2.
    pub(super) fn rope_factors(&self) -> Vec<u8> {
        const FACTOR: f64 = 32.0;
        const LOW_FREQ_FACTOR: f64 = 1.0;
        const HIGH_FREQ_FACTOR: f64 = 4.0;
        const OLD_CONTEXT: f64 = 8192.0;
        let head_dim = f64::from(self.head_dim);
        (0..self.head_dim / 2)
            .map(|pair_idx| {
                let exponent = f64::from(2 * pair_idx) / head_dim;
                let wavelength = std::f64::consts::TAU * f64::from(self.rope_base).powf(exponent);
                if wavelength < OLD_CONTEXT / HIGH_FREQ_FACTOR {
                    1.0
                } else if wavelength > OLD_CONTEXT / LOW_FREQ_FACTOR {
                    FACTOR
                } else {
                    let smooth =
                        (OLD_CONTEXT / wavelength - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR);
                    1.0 / ((1.0 - smooth) / FACTOR + smooth)
                }
            })
            .flat_map(|factor| (factor as f32).to_le_bytes())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tensors::TensorKind, *};

    #[test]
    fn presets_have_the_published_number_of_parameters() {
        for (name, expected) in [
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen3-0.6b", 596_049_920),
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3-8b", 8_030_261_248),
            ("gemma-3-4b", 3_880_263_168),
        ] {
            let n_elements: u64 = Preset::find(name)
                .unwrap()
                .tensors()
                .iter()
                .filter(|tensor| tensor.kind != TensorKind::RopeFactors)
                .map(|tensor| tensor.dims.iter().product::<u64>())
                .sum();
            assert_eq!(n_elements, expected, "{name}");
        }
    }

    #[test]
    fn rope_factors_go_from_one_to_the_full_factor() {
        let bytes = Preset::find("llama-3.2-1b").unwrap().rope_factors();
        let factors: Vec<f32> = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&factor| f32::from_le_bytes(factor))
            .collect();
        assert_eq!(factors.len(), 32);
        assert_eq!((factors[0], factors[31]), (1.0, 32.0));
        assert!(factors.is_sorted());
    }
}
