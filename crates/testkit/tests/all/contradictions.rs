//! Keys of a GGUF file that make no sense, or contradict each other or its tensors, are refused by name.

use tokenmill_gguf::{GgufFile, GgufWriter, TensorType, Value};
use tokenmill_model::Model;

/// A file of zeros with only the tensors that its description reads.
#[derive(Clone)]
struct File {
    arch: &'static str,
    keys: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>)>,
}

impl File {
    fn new(arch: &'static str) -> Self {
        let file = Self {
            arch,
            keys: Vec::new(),
            tensors: Vec::new(),
        };
        file.key("block_count", 2_u32)
            .key("context_length", 64_u32)
            .key("embedding_length", 8_u32)
            .key("feed_forward_length", 16_u32)
            .key("attention.head_count", 2_u32)
            .key("attention.layer_norm_rms_epsilon", 1e-5_f32)
            .tensor("token_embd.weight", &[8, 12])
            .tensor("blk.0.attn_norm.weight", &[8])
            .tensor("blk.1.attn_norm.weight", &[8])
    }

    /// Sets a key, and drops its earlier value.
    fn key(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.keys.retain(|(known, _)| known != name);
        self.keys.push((name.to_owned(), value.into()));
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64]) -> Self {
        self.tensors.retain(|(known, _)| known != name);
        self.tensors.push((name.to_owned(), dims.to_vec()));
        self
    }

    fn open(&self) -> Result<Model, String> {
        let mut writer = GgufWriter::new();
        let metadata = writer.metadata_mut();
        metadata.insert("general.architecture", self.arch).unwrap();
        for (name, value) in &self.keys {
            metadata
                .insert(format!("{}.{name}", self.arch), value.clone())
                .unwrap();
        }
        for (name, dims) in &self.tensors {
            writer.add_tensor(name, TensorType::F32, dims).unwrap();
        }
        let mut out = writer.write_header(Vec::new()).unwrap();
        for (_, dims) in &self.tensors {
            out.write(&vec![0; 4 * dims.iter().product::<u64>() as usize])
                .unwrap();
        }
        let file = GgufFile::from_bytes(&out.finish().unwrap()).unwrap();
        Model::from_gguf(file).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn opens(self) -> Self {
        assert_eq!(self.open().map(drop), Ok(()));
        self
    }

    #[track_caller]
    fn is_refused(&self, expected: &str) {
        assert_eq!(self.open().map(drop).unwrap_err(), expected);
    }
}

fn mamba() -> File {
    File::new("mamba2")
        .key("ssm.time_step_rank", 2_u32)
        .key("ssm.inner_size", 16_u32)
        .key("ssm.group_count", 1_u32)
        .key("ssm.state_size", 4_u32)
        .key("ssm.conv_kernel", 4_u32)
        .opens()
}

fn qwen35() -> File {
    File::new("qwen35")
        .key("ssm.time_step_rank", 2_u32)
        .key("ssm.inner_size", 16_u32)
        .key("ssm.group_count", 1_u32)
        .key("ssm.state_size", 4_u32)
        .key("ssm.conv_kernel", 4_u32)
        .key("full_attention_interval", 2_u32)
        .opens()
}

/// One dense layer, and one with four experts.
fn experts(arch: &'static str) -> File {
    let file = File::new(arch)
        .key("expert_count", 4_u32)
        .key("expert_used_count", 2_u32)
        .key("expert_feed_forward_length", 8_u32)
        .key("leading_dense_block_count", 1_u32)
        .tensor("blk.0.ffn_up.weight", &[8, 16])
        .tensor("blk.0.ffn_down.weight", &[16, 8])
        .tensor("blk.1.ffn_gate_inp.weight", &[8, 4])
        .tensor("blk.1.ffn_up_exps.weight", &[8, 8, 4])
        .tensor("blk.1.ffn_down_exps.weight", &[8, 8, 4]);
    file.opens()
}

fn deepseek() -> File {
    File::new("deepseek2")
        .key("rope.dimension_count", 2_u32)
        .key("attention.kv_lora_rank", 4_u32)
        .key("attention.key_length_mla", 6_u32)
        .key("attention.value_length_mla", 4_u32)
        .key("expert_count", 4_u32)
        .key("expert_used_count", 2_u32)
        .key("expert_feed_forward_length", 8_u32)
        .opens()
}

#[test]
fn a_size_that_makes_no_sense_is_named_with_its_own_key() {
    mamba().key("ssm.inner_size", 3_u32).is_refused(
        "the model's state space width is 3, expected a multiple of the time step rank (key `mamba2.ssm.inner_size`)",
    );
    mamba().key("ssm.time_step_rank", 0_u32).is_refused(
        "the model's state space head count is 0, expected between 1 and 2^24 (key `mamba2.ssm.time_step_rank`)",
    );
    mamba().key("ssm.conv_kernel", 0_u32).is_refused(
        "the model's convolution kernel is 0, expected between 2 and 16 (key `mamba2.ssm.conv_kernel`)",
    );
    qwen35().key("ssm.state_size", 0_u32).is_refused(
        "the model's width of the delta net's key heads is 0, expected between 1 and 2^24 (key `qwen35.ssm.state_size`)",
    );
    qwen35().key("ssm.inner_size", 0_u32).is_refused(
        "the model's width of all the delta net's values is 0, expected a multiple of the time step rank \
         (key `qwen35.ssm.inner_size`)",
    );
    File::new("lfm2")
        .key("attention.head_count_kv", vec![0_u32, 1])
        .key("shortconv.l_cache", 0_u32)
        .is_refused(
            "the model's short convolution's kernel is 0, expected between 2 and 16 (key `lfm2.shortconv.l_cache`)",
        );
    deepseek().key("attention.key_length_mla", 2_u32).is_refused(
        "the model's width of latent keys is 2, expected more than the rope dimension count \
         (key `deepseek2.attention.key_length_mla`)",
    );
}

#[test]
fn a_number_that_makes_no_sense_is_named_with_its_own_key() {
    let llama = || File::new("llama").opens();
    llama()
        .key("attention.layer_norm_rms_epsilon", f32::NAN)
        .is_refused(
            "the model's norm epsilon is NaN, expected a number, not negative \
             (key `llama.attention.layer_norm_rms_epsilon`)",
        );
    experts("qwen3moe").key("expert_weights_scale", f32::NAN).is_refused(
        "the model's scale of the experts' weights is NaN, expected a number (key `qwen3moe.expert_weights_scale`)",
    );
    experts("qwen3moe").key("expert_gating_func", 9_u32).is_refused(
        "architecture `qwen3moe` with expert gating function 9 (key `qwen3moe.expert_gating_func`; supported are 1, \
         softmax; 2, sigmoid; and 3, softmax over the chosen) is not supported",
    );
    llama()
        .key("rope.scaling.type", "weird")
        .key("rope.scaling.factor", 2.0_f32)
        .is_refused(
            "architecture `llama` with rope scaling `weird` (key `llama.rope.scaling.type`; supported are none, linear, \
             yarn and longrope) is not supported",
        );
    llama()
        .key("block_count", "two")
        .is_refused("metadata key `llama.block_count` has type string, expected a count");
}

#[test]
fn a_width_that_tensors_have_otherwise_is_named_with_its_key() {
    File::new("llama").key("embedding_length", 10_u32).is_refused(
        "tensor `token_embd.weight` has shape [8, 12], expected [10, 12] (key `llama.embedding_length`)",
    );
    experts("qwen3moe").key("feed_forward_length", 24_u32).is_refused(
        "tensor `blk.0.ffn_down.weight` has shape [16, 8], expected [24, 8] (key `qwen3moe.feed_forward_length`)",
    );
    experts("qwen3moe")
        .key("expert_feed_forward_length", 24_u32)
        .is_refused(
            "tensor `blk.1.ffn_down_exps.weight` has shape [8, 8, 4], expected [24, 8, 4] \
         (key `qwen3moe.expert_feed_forward_length`)",
        );
    experts("qwen3moe").key("expert_count", 7_u32).is_refused(
        "tensor `blk.1.ffn_up_exps.weight` holds 4 experts, but the model's expert count is 7 \
         (key `qwen3moe.expert_count`)",
    );
}

#[test]
fn keys_that_would_be_ignored_are_refused() {
    let llama = || File::new("llama").opens();
    llama().key("attention.causal", true).opens();
    llama().key("attention.causal", false).is_refused(
        "the model's attention in one direction is false, expected true for a network of this architecture \
         (key `llama.attention.causal`)",
    );
    llama().key("attention.clamp_kqv", 0.0_f32).opens();
    llama().key("attention.clamp_kqv", 8.0_f32).is_refused(
        "the model's clamp of queries, keys and values is 8, expected 0, since nothing is clamped in a network of this \
         architecture (key `llama.attention.clamp_kqv`)",
    );
    llama().key("attention.max_alibi_bias", 8.0_f32).is_refused(
        "the model's largest ALiBi bias is 8, expected 0, since a network of this architecture has other positions \
         (key `llama.attention.max_alibi_bias`)",
    );
    llama().key("rope.scaling.attn_factor", 9.0_f32).is_refused(
        "the model's factor of the rope's magnitude is 9, expected 1 without a rope scaling of the kinds yarn and \
         longrope (key `llama.rope.scaling.attn_factor`)",
    );
    let yarn = llama().key("rope.scaling.type", "yarn");
    yarn.is_refused("metadata key `llama.rope.scaling.factor` is missing");
    yarn.key("rope.scaling.factor", 4.0_f32)
        .key("rope.scaling.attn_factor", 9.0_f32)
        .opens();
}

#[test]
fn keys_that_contradict_others_or_the_tensors_are_refused() {
    experts("qwen3moe")
        .key("leading_dense_block_count", 0_u32)
        .is_refused(
            "the model's count of dense layers that come first is 0, expected as many as have the tensors of a dense \
             network (key `qwen3moe.leading_dense_block_count`)",
        );
    let listed = qwen35()
        .key("attention.recurrent_layers", vec![true, false])
        .opens();
    listed.clone().key("full_attention_interval", 1_u32).is_refused(
        "the model's step between layers with attention is 1, expected the one of the list of recurrent layers \
         (key `qwen35.full_attention_interval`)",
    );
    listed.key("full_attention_interval", 0_u32).is_refused(
        "the model's step between layers with attention is 0, expected at least 1 (key `qwen35.full_attention_interval`)",
    );
}

#[test]
fn a_layer_for_further_tokens_is_whole_or_left_out() {
    let file = File::new("glm4moe")
        .key("block_count", 3_u32)
        .key("nextn_predict_layers", 1_u32)
        .key("expert_count", 4_u32)
        .key("expert_used_count", 2_u32)
        .key("expert_feed_forward_length", 8_u32)
        .opens();
    let part = file.tensor("blk.2.nextn.enorm.weight", &[8]);
    part.is_refused("tensor `blk.2.nextn.eh_proj.weight` is missing");
    part.tensor("blk.2.nextn.eh_proj.weight", &[16, 8]).opens();
}
