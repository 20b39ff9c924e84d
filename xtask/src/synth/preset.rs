//! [`Preset`]: the shapes of real models, and small ones for tests.
//!
//! Invariant: tensors come in the order in which converters write them, so that files read alike.

/// Whose tensor names and metadata keys a model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
}

impl Architecture {
    /// Its name in metadata.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
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
    /// Whether low frequencies are stretched as Llama 3.1 and later do.
    pub(super) has_rope_factors: bool,
}

/// How a tensor's numbers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorKind {
    /// Random around 0, in the recipe's type.
    Weight,
    /// Random around 1.
    Norm,
    /// Random around 0.
    Bias,
    /// Computed.
    RopeFactors,
}

/// A tensor to write.
#[derive(Clone, Debug)]
pub(super) struct TensorSpec {
    pub(super) name: String,
    /// Dimensions, the contiguous one first.
    pub(super) dims: Vec<u64>,
    pub(super) kind: TensorKind,
}

const PRESETS: [Preset; 6] = [
    Preset {
        name: "qwen2.5-0.5b",
        architecture: Architecture::Qwen2,
        n_layers: 24,
        n_embd: 896,
        n_ff: 4864,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        n_vocab: 151_936,
        n_ctx: 32_768,
        rope_base: 1e6,
        rms_epsilon: 1e-6,
        is_tied: true,
        has_rope_factors: false,
    },
    Preset {
        name: "qwen3-0.6b",
        architecture: Architecture::Qwen3,
        n_layers: 28,
        n_embd: 1024,
        n_ff: 3072,
        n_heads: 16,
        n_kv_heads: 8,
        head_dim: 128,
        n_vocab: 151_936,
        n_ctx: 40_960,
        rope_base: 1e6,
        rms_epsilon: 1e-6,
        is_tied: true,
        has_rope_factors: false,
    },
    Preset {
        name: "llama-3.2-1b",
        architecture: Architecture::Llama,
        n_layers: 16,
        n_embd: 2048,
        n_ff: 8192,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        n_vocab: 128_256,
        n_ctx: 131_072,
        rope_base: 5e5,
        rms_epsilon: 1e-5,
        is_tied: true,
        has_rope_factors: true,
    },
    Preset {
        name: "llama-3-8b",
        architecture: Architecture::Llama,
        n_layers: 32,
        n_embd: 4096,
        n_ff: 14_336,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 128,
        n_vocab: 128_256,
        n_ctx: 8192,
        rope_base: 5e5,
        rms_epsilon: 1e-5,
        is_tied: false,
        has_rope_factors: false,
    },
    Preset {
        name: "tiny-llama",
        architecture: Architecture::Llama,
        n_layers: 2,
        n_embd: 256,
        n_ff: 512,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        n_vocab: 2048,
        n_ctx: 4096,
        rope_base: 5e5,
        rms_epsilon: 1e-5,
        is_tied: true,
        has_rope_factors: true,
    },
    Preset {
        name: "tiny-qwen2",
        architecture: Architecture::Qwen2,
        n_layers: 2,
        n_embd: 128,
        n_ff: 512,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 64,
        n_vocab: 2048,
        n_ctx: 4096,
        rope_base: 1e6,
        rms_epsilon: 1e-6,
        is_tied: true,
        has_rope_factors: false,
    },
];

impl Preset {
    /// Finds a preset by its name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// The names of all presets.
    pub(super) fn names() -> String {
        PRESETS.map(|preset| preset.name).join(", ")
    }

    /// The tensors in file order.
    pub(super) fn tensors(&self) -> Vec<TensorSpec> {
        let (n_embd, n_ff, head_dim) = (self.n_embd.into(), self.n_ff.into(), u64::from(self.head_dim));
        let n_q = u64::from(self.n_heads) * head_dim;
        let n_kv = u64::from(self.n_kv_heads) * head_dim;
        let mut tensors = Vec::new();
        let mut push = |name: String, dims: &[u64], kind| {
            tensors.push(TensorSpec {
                name,
                dims: dims.to_vec(),
                kind,
            });
        };
        let vocab_dims = [n_embd, self.n_vocab.into()];
        if !self.is_tied {
            push("output.weight".to_owned(), &vocab_dims, TensorKind::Weight);
        }
        push("token_embd.weight".to_owned(), &vocab_dims, TensorKind::Weight);
        if self.has_rope_factors {
            push(
                "rope_freqs.weight".to_owned(),
                &[head_dim / 2],
                TensorKind::RopeFactors,
            );
        }
        for layer_idx in 0..self.n_layers {
            let mut push =
                |name: &str, dims: &[u64], kind| push(format!("blk.{layer_idx}.{name}"), dims, kind);
            push("attn_norm.weight", &[n_embd], TensorKind::Norm);
            push("ffn_down.weight", &[n_ff, n_embd], TensorKind::Weight);
            push("ffn_gate.weight", &[n_embd, n_ff], TensorKind::Weight);
            push("ffn_up.weight", &[n_embd, n_ff], TensorKind::Weight);
            push("ffn_norm.weight", &[n_embd], TensorKind::Norm);
            push("attn_k.weight", &[n_embd, n_kv], TensorKind::Weight);
            push("attn_output.weight", &[n_q, n_embd], TensorKind::Weight);
            push("attn_q.weight", &[n_embd, n_q], TensorKind::Weight);
            push("attn_v.weight", &[n_embd, n_kv], TensorKind::Weight);
            match self.architecture {
                Architecture::Llama => {}
                Architecture::Qwen2 => {
                    push("attn_k.bias", &[n_kv], TensorKind::Bias);
                    push("attn_q.bias", &[n_q], TensorKind::Bias);
                    push("attn_v.bias", &[n_kv], TensorKind::Bias);
                }
                Architecture::Qwen3 => {
                    push("attn_k_norm.weight", &[head_dim], TensorKind::Norm);
                    push("attn_q_norm.weight", &[head_dim], TensorKind::Norm);
                }
            }
        }
        push("output_norm.weight".to_owned(), &[n_embd], TensorKind::Norm);
        tensors
    }

    /// The bytes of `rope_freqs.weight`: what each frequency is divided by.
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
    use super::*;

    #[test]
    fn presets_have_the_published_number_of_parameters() {
        for (name, expected) in [
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen3-0.6b", 596_049_920),
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3-8b", 8_030_261_248),
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
