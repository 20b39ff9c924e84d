//! [`ROWS`]: the rows of `kernel-bench`, in the order of a step, and [`What`] they launch.
//!
//! Shapes are those of Llama 3 8B in Q4_K_M unless a row says otherwise. Invariant: a row names its kernel, so one that launches another kernel at
//! its real shape is an error and gives no figure.

use anyhow::Context;
use tokenmill_backend::KvType;
use tokenmill_gguf::TensorType;

use super::work::{HEAD_DIM, HEADS, N_EMBD, N_FF, N_VOCAB};

/// A row.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowSpec {
    pub(super) name: &'static str,
    pub(super) what: What,
    /// Prefixes of its kernels' names; the GPU decides which of several it launches.
    pub(super) kernels: &'static [&'static str],
    /// Whether it is launched as on a GPU without matrix operations of warpgroups.
    pub(super) is_without_wide: bool,
}

impl RowSpec {
    /// Finds the row of a name.
    ///
    /// # Errors
    /// A name that no row has.
    pub(super) fn find(name: &str) -> anyhow::Result<&'static Self> {
        (ROWS.iter())
            .find(|row| row.name == name)
            .with_context(|| format!("no row is called `{name}`"))
    }

    /// Returns whether a model of Llama's 8B in Q4_K_M with f16 keys and values launches it.
    pub(super) fn is_of_q4_k_m(&self) -> bool {
        let is_quant = |ty| matches!(ty, Q4_K | Q6_K);
        match self.what {
            What::Qkv { .. }
            | What::AddNorm { .. }
            | What::Turn { .. }
            | What::Argmax
            | What::Sample { .. } => true,
            What::Product { ty, .. } | What::Gated { ty, .. } => is_quant(ty),
            What::Decode { ty, .. } => ty == KvType::F16,
            What::Prompt { ty, head_dim, .. } => ty == KvType::F16 && head_dim == HEAD_DIM,
            What::Experts { .. } | What::Embed { .. } | What::RopeKv => false,
        }
    }
}

/// The launch of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// Query, key and value weights of two types at once: the first type has the queries and keys.
    Qkv {
        types: [TensorType; 2],
        /// Rows for the queries, and for the keys and the values each.
        n_outs: [usize; 2],
        n_rows: usize,
    },
    /// A product with a matrix `[n_out, n_in]`.
    Product {
        ty: TensorType,
        shape: [usize; 2],
        n_rows: usize,
    },
    /// Gate and up, each of `n_out` rows.
    Gated {
        ty: TensorType,
        n_out: usize,
        n_rows: usize,
    },
    /// Gate and up of experts.
    Experts {
        of: ExpertShape,
        n_rows: usize,
    },
    AddNorm {
        n_rows: usize,
    },
    /// One row of a table.
    Embed {
        ty: TensorType,
    },
    /// Rotation of queries and keys of one token, and the store of keys and values.
    RopeKv,
    /// A token of each of so many sequences, after keys and values of a type.
    Decode {
        ty: KvType,
        /// Heads of queries, and of keys and values.
        heads: [usize; 2],
        n_seqs: usize,
        n_ctx: usize,
        window: Option<usize>,
    },
    /// The same with norm, rotation and store before it, as a step launches it.
    Turn {
        n_seqs: usize,
        n_ctx: usize,
    },
    /// Tokens of one sequence after others of it.
    Prompt {
        ty: KvType,
        head_dim: usize,
        n_before: usize,
        n_tokens: usize,
    },
    Argmax,
    /// A draw by top-p, from the best `top_k` if that is not 0, with flags of a [`SampleRecord`](tokenmill_cuda_exec::SampleRecord).
    Sample {
        flags: u32,
        top_k: u32,
        top_p: f32,
    },
}

/// Experts of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertShape {
    pub(super) ty: TensorType,
    pub(super) n_experts: usize,
    pub(super) n_used: usize,
    pub(super) n_in: usize,
    pub(super) n_out: usize,
}

/// Experts of gpt-oss 20B.
const MXFP4_EXPERTS: ExpertShape = ExpertShape {
    ty: TensorType::MXFP4,
    n_experts: 32,
    n_used: 4,
    n_in: 2880,
    n_out: 2880,
};
/// Experts of Qwen3 30B A3B in Q4_K.
const Q4_K_EXPERTS: ExpertShape = ExpertShape {
    ty: TensorType::Q4_K,
    n_experts: 128,
    n_used: 8,
    n_in: 2048,
    n_out: 768,
};

/// Matrices of the model, `[n_out, n_in]`.
const OUTPUT: [usize; 2] = [N_EMBD, N_EMBD];
const GATE: [usize; 2] = [N_FF, N_EMBD];
const DOWN: [usize; 2] = [N_EMBD, N_FF];
const HEAD: [usize; 2] = [N_VOCAB, N_EMBD];

const fn row(name: &'static str, what: What, kernels: &'static [&'static str]) -> RowSpec {
    RowSpec {
        name,
        what,
        kernels,
        is_without_wide: false,
    }
}

const fn without_wide(row: RowSpec) -> RowSpec {
    RowSpec {
        is_without_wide: true,
        ..row
    }
}

const fn qkv(n_rows: usize) -> What {
    let n_outs = [N_EMBD, HEADS[1] * HEAD_DIM];
    What::Qkv {
        types: [Q4_K, Q6_K],
        n_outs,
        n_rows,
    }
}

const fn product(ty: TensorType, shape: [usize; 2], n_rows: usize) -> What {
    What::Product { ty, shape, n_rows }
}

const fn gated(ty: TensorType, n_rows: usize) -> What {
    What::Gated {
        ty,
        n_out: N_FF,
        n_rows,
    }
}

const fn experts(of: ExpertShape, n_rows: usize) -> What {
    What::Experts { of, n_rows }
}

const fn add_norm(n_rows: usize) -> What {
    What::AddNorm { n_rows }
}

const fn decode(ty: KvType, n_seqs: usize, n_ctx: usize) -> What {
    What::Decode {
        ty,
        heads: HEADS,
        n_seqs,
        n_ctx,
        window: None,
    }
}

const fn turn(n_seqs: usize, n_ctx: usize) -> What {
    What::Turn { n_seqs, n_ctx }
}

const fn prompt(ty: KvType, head_dim: usize) -> What {
    What::Prompt {
        ty,
        head_dim,
        n_before: 0,
        n_tokens: 512,
    }
}

const fn sample(top_k: u32) -> What {
    What::Sample {
        flags: 0,
        top_k,
        top_p: 0.95,
    }
}

use KvType::{E4M3, F16};
use TensorType::{BF16, Q4_K, Q6_K, Q8_0};

/// All rows.
#[rustfmt::skip]
pub(super) const ROWS: [RowSpec; 53] = [
    row("q, k, v", qkv(1), &["matvec_pair_m1"]),
    row("turned attention, context 512", turn(1, 512), &["turn_attention_f16_d128"]),
    row("turned attention, context 8192", turn(1, 8192), &["turn_attention_f16_d128"]),
    row("o", product(Q4_K, OUTPUT, 1), &["matvec_m1"]),
    row("add, norm", add_norm(1), &["add_norm"]),
    row("gate, up", gated(Q4_K, 1), &["matvec_gated_m1"]),
    row("down", product(Q6_K, DOWN, 1), &["matvec_m1"]),
    row("head", product(Q6_K, HEAD, 1), &["matvec_m1"]),
    row("argmax", What::Argmax, &["argmax_partial"]),
    row("sample top-k, top-p", sample(40), &["sample_rows"]),
    row("sample top-p", sample(0), &["sample_candidates"]),
    row("o, Q8_0", product(Q8_0, OUTPUT, 1), &["matvec_m1"]),
    row("gate, up, Q8_0", gated(Q8_0, 1), &["matvec_gated_m1"]),
    row("down, Q8_0", product(Q8_0, DOWN, 1), &["matvec_m1"]),
    row("o, BF16", product(BF16, OUTPUT, 1), &["matvec_m1"]),
    row("experts, MXFP4", experts(MXFP4_EXPERTS, 1), &["experts_m1"]),
    row("experts, Q4_K", experts(Q4_K_EXPERTS, 1), &["experts_m1"]),
    // Steps of several sequences.
    row("q, k, v, 16 rows", qkv(16), &["matvec_pair_m16"]),
    row("turned attention, 16 sequences", turn(16, 512), &["turn_attention_f16_d128"]),
    row("turned attention, 64 sequences", turn(64, 512), &["turn_attention_f16_d128"]),
    row("turned attention, 8 behind 8192", turn(8, 8192), &["turn_attention_f16_d128"]),
    row("o, 4 rows", product(Q4_K, OUTPUT, 4), &["matvec_m4"]),
    row("o, 8 rows", product(Q4_K, OUTPUT, 8), &["matvec_m8"]),
    row("o, 16 rows", product(Q4_K, OUTPUT, 16), &["matvec_m16"]),
    row("o, 16 rows, BF16", product(BF16, OUTPUT, 16), &["matmul_low_band_n16"]),
    row("o, 16 rows, Q8_0", product(Q8_0, OUTPUT, 16), &["wide_band_n16", "matmul_low_band_n16"]),
    row("o, 64 rows", product(Q4_K, OUTPUT, 64), &["wide_band", "matmul_low_band", "half_split"]),
    row("o, 64 rows, Q8_0", product(Q8_0, OUTPUT, 64), &["wide_band", "matmul_split_n64", "matmul_low_band"]),
    row("gate, up, 8 rows", gated(Q4_K, 8), &["matvec_gated_m8"]),
    row("gate, up, 16 rows", gated(Q4_K, 16), &["wide_gated_n16", "matmul_gated_n16"]),
    row("gate, up, 64 rows", gated(Q4_K, 64), &["wide_gated", "half_gated_n64"]),
    without_wide(row("gate, up, 64 rows, no wgmma", gated(Q4_K, 64), &["half_gated_n64"])),
    row("down, 8 rows", product(Q6_K, DOWN, 8), &["matvec_m8"]),
    row("down, 64 rows", product(Q6_K, DOWN, 64), &["wide_band", "matmul_low_band", "half_split"]),
    row("experts, MXFP4, 64 rows", experts(MXFP4_EXPERTS, 64), &["experts_n16"]),
    row("experts, Q4_K, 64 rows", experts(Q4_K_EXPERTS, 64), &["experts_n16"]),
    row("add, norm, 64 rows", add_norm(64), &["add_norm"]),
    // Attention over the other types.
    row("attention, context 512", decode(F16, 1, 512), &["attention_f16_d128"]),
    row("attention, context 8192", decode(F16, 1, 8192), &["attention_f16_d128"]),
    row("attention, context 8192, q8_0", decode(KvType::Q8_0, 1, 8192), &["attention_of_types_g4"]),
    row("attention, context 8192, e4m3", decode(E4M3, 1, 8192), &["attention_of_types_d128"]),
    row("attention, 64 sequences, q8_0", decode(KvType::Q8_0, 64, 512), &["attention_of_types_g4"]),
    row("attention, 64 sequences, e4m3", decode(E4M3, 64, 512), &["attention_of_types_d128"]),
    // Steps of prompts.
    row("o, 512 rows", product(Q4_K, OUTPUT, 512), &["wide_band", "half_band_n64", "half_split"]),
    row("gate, 512 rows", product(Q4_K, GATE, 512), &["wide_band", "half_band_n64"]),
    row("gate, up, 512 rows", gated(Q4_K, 512), &["wide_gated", "half_gated_n64"]),
    without_wide(row("gate, up, 512 rows, no wgmma", gated(Q4_K, 512), &["half_gated_n64"])),
    row("gate, 512 rows, Q8_0", product(Q8_0, GATE, 512), &["wide_band", "matmul_band_n64"]),
    row("down, 512 rows", product(Q6_K, DOWN, 512), &["wide_band", "half_band_n64", "half_split"]),
    row("attention of a prompt of 512", prompt(F16, 128), &["attention_wide", "attention_prefill"]),
    without_wide(row("attention of a prompt of 512, no wgmma", prompt(F16, 128), &["attention_prefill"])),
    row("attention of a prompt of 512, q8_0", prompt(KvType::Q8_0, 128), &["attention_prefill"]),
    row("attention of a prompt of 512, heads of 256", prompt(F16, 256), &["attention_prefill"]),
];
