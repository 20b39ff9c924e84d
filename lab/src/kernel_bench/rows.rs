//! [`ROWS`]: the rows of `kernel-bench`, in the order of a step.
//!
//! Shapes are those of Llama 3 8B in Q4_K_M unless a row says otherwise. Invariant: a row names its kernel, so one that launches another kernel at
//! its real shape is an error and gives no figure.

use tokenmill_backend::KvType;
use tokenmill_gguf::TensorType;

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
    /// Returns whether a model of Llama's 8B in Q4_K_M with f16 keys and values launches it.
    pub(super) fn is_of_q4_k_m(&self) -> bool {
        let is_quant = |ty| matches!(ty, TensorType::Q4_K | TensorType::Q6_K);
        match self.what {
            What::Qkv { .. }
            | What::AddNorm { .. }
            | What::Turn { .. }
            | What::Argmax
            | What::Sample { .. } => true,
            What::Product { ty, .. } | What::Gated { ty, .. } => is_quant(ty),
            What::Decode { ty, .. } => ty == KvType::F16,
            What::Prompt { ty, head_dim } => ty == KvType::F16 && head_dim == 128,
            What::Experts { .. } => false,
        }
    }
}

/// The launch of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// Query, key and value weights of two types at once.
    Qkv {
        n_rows: usize,
    },
    Product {
        ty: TensorType,
        factor: Factor,
        n_rows: usize,
    },
    Gated {
        ty: TensorType,
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
    /// A token of each of so many sequences, after keys and values of a type.
    Decode {
        ty: KvType,
        n_seqs: usize,
        n_ctx: usize,
    },
    /// The same with norm, rotation and store before it, as a step launches it.
    Turn {
        n_seqs: usize,
        n_ctx: usize,
    },
    /// 512 tokens of one sequence.
    Prompt {
        ty: KvType,
        head_dim: usize,
    },
    Argmax,
    /// A draw by top-p, from the best `top_k` if that is not 0.
    Sample {
        top_k: u32,
    },
}

/// A matrix of the model.
#[derive(Clone, Copy, Debug)]
pub(super) enum Factor {
    Output,
    Gate,
    Down,
    Head,
}

/// Experts of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertShape {
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

const fn product(ty: TensorType, factor: Factor, n_rows: usize) -> What {
    What::Product { ty, factor, n_rows }
}

const fn gated(ty: TensorType, n_rows: usize) -> What {
    What::Gated { ty, n_rows }
}

const fn decode(ty: KvType, n_seqs: usize, n_ctx: usize) -> What {
    What::Decode { ty, n_seqs, n_ctx }
}

const fn turn(n_seqs: usize, n_ctx: usize) -> What {
    What::Turn { n_seqs, n_ctx }
}

const fn prompt(ty: KvType, head_dim: usize) -> What {
    What::Prompt { ty, head_dim }
}

use Factor::{Down, Gate, Head, Output};
use TensorType::{BF16, Q4_K, Q6_K, Q8_0};

/// All rows.
pub(super) const ROWS: [RowSpec; 53] = [
    row("q, k, v", What::Qkv { n_rows: 1 }, &["matvec_pair_m1"]),
    row(
        "turned attention, context 512",
        turn(1, 512),
        &["turn_attention_f16_d128"],
    ),
    row(
        "turned attention, context 8192",
        turn(1, 8192),
        &["turn_attention_f16_d128"],
    ),
    row("o", product(Q4_K, Output, 1), &["matvec_m1"]),
    row("add, norm", What::AddNorm { n_rows: 1 }, &["add_norm"]),
    row("gate, up", gated(Q4_K, 1), &["matvec_gated_m1"]),
    row("down", product(Q6_K, Down, 1), &["matvec_m1"]),
    row("head", product(Q6_K, Head, 1), &["matvec_m1"]),
    row("argmax", What::Argmax, &["argmax_partial"]),
    row(
        "sample top-k, top-p",
        What::Sample { top_k: 40 },
        &["sample_rows"],
    ),
    row("sample top-p", What::Sample { top_k: 0 }, &["sample_candidates"]),
    row("o, Q8_0", product(Q8_0, Output, 1), &["matvec_m1"]),
    row("gate, up, Q8_0", gated(Q8_0, 1), &["matvec_gated_m1"]),
    row("down, Q8_0", product(Q8_0, Down, 1), &["matvec_m1"]),
    row("o, BF16", product(BF16, Output, 1), &["matvec_m1"]),
    row("experts, MXFP4", experts(MXFP4_EXPERTS, 1), &["experts_m1"]),
    row("experts, Q4_K", experts(Q4_K_EXPERTS, 1), &["experts_m1"]),
    // Steps of several sequences.
    row("q, k, v, 16 rows", What::Qkv { n_rows: 16 }, &["matvec_pair_m16"]),
    row(
        "turned attention, 16 sequences",
        turn(16, 512),
        &["turn_attention_f16_d128"],
    ),
    row(
        "turned attention, 64 sequences",
        turn(64, 512),
        &["turn_attention_f16_d128"],
    ),
    row(
        "turned attention, 8 behind 8192",
        turn(8, 8192),
        &["turn_attention_f16_d128"],
    ),
    row("o, 4 rows", product(Q4_K, Output, 4), &["matvec_m4"]),
    row("o, 8 rows", product(Q4_K, Output, 8), &["matvec_m8"]),
    row("o, 16 rows", product(Q4_K, Output, 16), &["matvec_m16"]),
    row(
        "o, 16 rows, BF16",
        product(BF16, Output, 16),
        &["matmul_low_band_n16"],
    ),
    row(
        "o, 16 rows, Q8_0",
        product(Q8_0, Output, 16),
        &["wide_band_n16", "matmul_low_band_n16"],
    ),
    row(
        "o, 64 rows",
        product(Q4_K, Output, 64),
        &["wide_band", "matmul_low_band", "half_split"],
    ),
    row(
        "o, 64 rows, Q8_0",
        product(Q8_0, Output, 64),
        &["wide_band", "matmul_split_n64", "matmul_low_band"],
    ),
    row("gate, up, 8 rows", gated(Q4_K, 8), &["matvec_gated_m8"]),
    row(
        "gate, up, 16 rows",
        gated(Q4_K, 16),
        &["wide_gated_n16", "matmul_gated_n16"],
    ),
    row(
        "gate, up, 64 rows",
        gated(Q4_K, 64),
        &["wide_gated", "half_gated_n64"],
    ),
    without_wide(row(
        "gate, up, 64 rows, no wgmma",
        gated(Q4_K, 64),
        &["half_gated_n64"],
    )),
    row("down, 8 rows", product(Q6_K, Down, 8), &["matvec_m8"]),
    row(
        "down, 64 rows",
        product(Q6_K, Down, 64),
        &["wide_band", "matmul_low_band", "half_split"],
    ),
    row(
        "experts, MXFP4, 64 rows",
        experts(MXFP4_EXPERTS, 64),
        &["experts_n16"],
    ),
    row(
        "experts, Q4_K, 64 rows",
        experts(Q4_K_EXPERTS, 64),
        &["experts_n16"],
    ),
    row("add, norm, 64 rows", What::AddNorm { n_rows: 64 }, &["add_norm"]),
    // Attention over the other types.
    row(
        "attention, context 512",
        decode(KvType::F16, 1, 512),
        &["attention_f16_d128"],
    ),
    row(
        "attention, context 8192",
        decode(KvType::F16, 1, 8192),
        &["attention_f16_d128"],
    ),
    row(
        "attention, context 8192, q8_0",
        decode(KvType::Q8_0, 1, 8192),
        &["attention_of_types_g4"],
    ),
    row(
        "attention, context 8192, e4m3",
        decode(KvType::E4M3, 1, 8192),
        &["attention_of_types_d128"],
    ),
    row(
        "attention, 64 sequences, q8_0",
        decode(KvType::Q8_0, 64, 512),
        &["attention_of_types_g4"],
    ),
    row(
        "attention, 64 sequences, e4m3",
        decode(KvType::E4M3, 64, 512),
        &["attention_of_types_d128"],
    ),
    // Steps of prompts.
    row(
        "o, 512 rows",
        product(Q4_K, Output, 512),
        &["wide_band", "half_band_n64", "half_split"],
    ),
    row(
        "gate, 512 rows",
        product(Q4_K, Gate, 512),
        &["wide_band", "half_band_n64"],
    ),
    row(
        "gate, up, 512 rows",
        gated(Q4_K, 512),
        &["wide_gated", "half_gated_n64"],
    ),
    without_wide(row(
        "gate, up, 512 rows, no wgmma",
        gated(Q4_K, 512),
        &["half_gated_n64"],
    )),
    row(
        "gate, 512 rows, Q8_0",
        product(Q8_0, Gate, 512),
        &["wide_band", "matmul_band_n64"],
    ),
    row(
        "down, 512 rows",
        product(Q6_K, Down, 512),
        &["wide_band", "half_band_n64", "half_split"],
    ),
    row(
        "attention of a prompt of 512",
        prompt(KvType::F16, 128),
        &["attention_wide", "attention_prefill"],
    ),
    without_wide(row(
        "attention of a prompt of 512, no wgmma",
        prompt(KvType::F16, 128),
        &["attention_prefill"],
    )),
    row(
        "attention of a prompt of 512, q8_0",
        prompt(KvType::Q8_0, 128),
        &["attention_prefill"],
    ),
    row(
        "attention of a prompt of 512, heads of 256",
        prompt(KvType::F16, 256),
        &["attention_prefill"],
    ),
];

const fn experts(of: ExpertShape, n_rows: usize) -> What {
    What::Experts { of, n_rows }
}
