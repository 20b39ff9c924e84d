//! [`TensorSpec`]: the tensors of a preset.
//!
//! Invariant: names, dimensions and types of unquantized tensors are those of a converter, so that other programs read the
//! files too.

use super::preset::{Architecture, DeltaNet, Experts, Preset};

/// Selects how a tensor's numbers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorKind {
    /// Random around 0, in the recipe's type.
    Weight,
    /// Random around 1.
    Norm,
    /// Random around 0: biases, and weights that are never quantized.
    Small,
    /// Random around -1: the logarithm by which a state decays.
    Decay,
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

impl TensorSpec {
    /// Returns the number of its elements.
    pub(super) fn n_elements(&self) -> usize {
        self.dims.iter().product::<u64>() as usize
    }
}

/// The tensors of one layer, or those of none.
struct List {
    prefix: String,
    tensors: Vec<TensorSpec>,
}

impl List {
    fn push(&mut self, name: &str, dims: &[u64], kind: TensorKind) {
        self.tensors.push(TensorSpec {
            name: format!("{}{name}", self.prefix),
            dims: dims.to_vec(),
            kind,
        });
    }

    fn weight(&mut self, name: &str, dims: &[u64]) {
        self.push(name, dims, TensorKind::Weight);
    }

    fn norm(&mut self, name: &str, width: u64) {
        self.push(name, &[width], TensorKind::Norm);
    }

    fn small(&mut self, name: &str, dims: &[u64]) {
        self.push(name, dims, TensorKind::Small);
    }
}

impl Preset {
    /// Lists the tensors in file order.
    pub(super) fn tensors(&self) -> Vec<TensorSpec> {
        let mut list = List {
            prefix: String::new(),
            tensors: Vec::new(),
        };
        let n_embd = u64::from(self.n_embd);
        let vocab_dims = [n_embd, self.n_vocab.into()];
        if !self.is_tied {
            list.weight("output.weight", &vocab_dims);
        }
        list.weight("token_embd.weight", &vocab_dims);
        if self.has_rope_factors {
            let n_pairs = u64::from(self.head_dim / 2);
            list.push("rope_freqs.weight", &[n_pairs], TensorKind::RopeFactors);
        }
        for layer_idx in 0..self.n_layers {
            list.prefix = format!("blk.{layer_idx}.");
            list.norm("attn_norm.weight", n_embd);
            match self.experts {
                Some(experts) => self.push_experts(&mut list, experts),
                None => self.push_dense(&mut list),
            }
            let ffn_norm = match self.architecture {
                Architecture::Qwen35 | Architecture::GptOss => "post_attention_norm.weight",
                _ => "ffn_norm.weight",
            };
            list.norm(ffn_norm, n_embd);
            match self.delta_net {
                Some(delta_net) if (layer_idx + 1) % Self::ATTENTION_INTERVAL != 0 => {
                    self.push_delta_net(&mut list, delta_net);
                }
                _ => self.push_attention(&mut list),
            }
        }
        list.prefix.clear();
        list.norm("output_norm.weight", n_embd);
        list.tensors
    }

    fn push_dense(&self, list: &mut List) {
        let (n_embd, n_ff) = (self.n_embd.into(), self.n_ff.into());
        list.weight("ffn_down.weight", &[n_ff, n_embd]);
        list.weight("ffn_gate.weight", &[n_embd, n_ff]);
        list.weight("ffn_up.weight", &[n_embd, n_ff]);
    }

    fn push_experts(&self, list: &mut List, experts: Experts) {
        let (n_embd, n_ff) = (self.n_embd.into(), experts.n_ff.into());
        let n_experts = experts.total.into();
        list.small("ffn_gate_inp.weight", &[n_embd, n_experts]);
        list.weight("ffn_down_exps.weight", &[n_ff, n_embd, n_experts]);
        list.weight("ffn_gate_exps.weight", &[n_embd, n_ff, n_experts]);
        list.weight("ffn_up_exps.weight", &[n_embd, n_ff, n_experts]);
        if self.architecture == Architecture::GptOss {
            list.small("ffn_gate_inp.bias", &[n_experts]);
            list.small("ffn_down_exps.bias", &[n_embd, n_experts]);
            list.small("ffn_gate_exps.bias", &[n_ff, n_experts]);
            list.small("ffn_up_exps.bias", &[n_ff, n_experts]);
        }
    }

    fn push_attention(&self, list: &mut List) {
        let (n_embd, head_dim) = (u64::from(self.n_embd), u64::from(self.head_dim));
        let (n_heads, n_kv_heads) = (u64::from(self.n_heads), u64::from(self.n_kv_heads));
        let (n_q, n_kv) = (n_heads * head_dim, n_kv_heads * head_dim);
        let n_q_rows = if self.architecture == Architecture::Qwen35 {
            // Each head's query and its gate.
            2 * n_q
        } else {
            n_q
        };
        list.weight("attn_k.weight", &[n_embd, n_kv]);
        list.weight("attn_output.weight", &[n_q, n_embd]);
        list.weight("attn_q.weight", &[n_embd, n_q_rows]);
        list.weight("attn_v.weight", &[n_embd, n_kv]);
        if matches!(self.architecture, Architecture::Qwen2 | Architecture::GptOss) {
            list.small("attn_k.bias", &[n_kv]);
            list.small("attn_q.bias", &[n_q]);
            list.small("attn_v.bias", &[n_kv]);
        }
        match self.architecture {
            Architecture::Llama | Architecture::Qwen2 => {}
            Architecture::GptOss => {
                list.small("attn_output.bias", &[n_embd]);
                list.small("attn_sinks.weight", &[n_heads]);
            }
            Architecture::Qwen3 | Architecture::Qwen35 | Architecture::Qwen3Moe => {
                list.norm("attn_k_norm.weight", head_dim);
                list.norm("attn_q_norm.weight", head_dim);
            }
            Architecture::Gemma3 => {
                list.norm("attn_k_norm.weight", head_dim);
                list.norm("attn_q_norm.weight", head_dim);
                list.norm("post_attention_norm.weight", n_embd);
                list.norm("post_ffw_norm.weight", n_embd);
            }
        }
    }

    fn push_delta_net(&self, list: &mut List, delta_net: DeltaNet) {
        let n_embd = u64::from(self.n_embd);
        let n_v_heads = u64::from(delta_net.n_v_heads);
        let (v_width, qkv_width) = delta_net.widths();
        list.weight("attn_gate.weight", &[n_embd, v_width]);
        list.weight("attn_qkv.weight", &[n_embd, qkv_width]);
        list.push("ssm_a", &[n_v_heads], TensorKind::Decay);
        list.weight("ssm_alpha.weight", &[n_embd, n_v_heads]);
        list.weight("ssm_beta.weight", &[n_embd, n_v_heads]);
        list.small("ssm_conv1d.weight", &[delta_net.n_taps.into(), qkv_width]);
        list.small("ssm_dt.bias", &[n_v_heads]);
        list.norm("ssm_norm.weight", delta_net.head_dim.into());
        list.weight("ssm_out.weight", &[v_width, n_embd]);
    }
}

impl DeltaNet {
    /// Returns the widths of the values, and of queries, keys and values together.
    pub(super) fn widths(self) -> (u64, u64) {
        let head_dim = u64::from(self.head_dim);
        let k_width = u64::from(self.n_k_heads) * head_dim;
        let v_width = u64::from(self.n_v_heads) * head_dim;
        (v_width, 2 * k_width + v_width)
    }
}
