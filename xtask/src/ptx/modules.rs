//! The table of modules: which source, compiled how, becomes which PTX file.
//!
//! A new kernel is a `.cu` file and a row here; a new weight format is a header and the rows that name it.

/// A PTX module.
pub(super) struct Module {
    /// Name of the PTX file.
    pub(super) name: &'static str,
    /// Source in `kernels`.
    pub(super) source: &'static str,
    /// The weight format it is compiled for.
    pub(super) format: Option<&'static str>,
    /// Further compiler flags.
    pub(super) flags: &'static [&'static str],
}

impl Module {
    /// Preprocessor definitions: the format and the header that defines it.
    pub(super) fn defines(&self) -> Vec<String> {
        let Some(format) = self.format else {
            return Vec::new();
        };
        let header = match format {
            "F32" | "F16" | "BF16" => "float".to_owned(),
            quantized => quantized.to_lowercase(),
        };
        vec![
            format!("FORMAT={format}"),
            format!("HEADER=\"formats/{header}.cuh\""),
        ]
    }
}

const fn module(
    name: &'static str,
    source: &'static str,
    format: Option<&'static str>,
    flags: &'static [&'static str],
) -> Module {
    Module {
        name,
        source,
        format,
        flags,
    }
}

pub(super) const MODULES: &[Module] = &[
    module("argmax", "argmax.cu", None, &[]),
    module("attention_decode", "attention_decode.cu", None, &[]),
    module("attention_prefill", "attention_prefill.cu", None, &[]),
    module("elementwise", "elementwise.cu", None, &[]),
    module("embed_bf16", "embed_float.cu", Some("BF16"), &[]),
    module("embed_f16", "embed_float.cu", Some("F16"), &[]),
    module("embed_f32", "embed_float.cu", Some("F32"), &[]),
    module("embed_q2_k", "embed.cu", Some("Q2_K"), &[]),
    module("embed_q3_k", "embed.cu", Some("Q3_K"), &[]),
    module("embed_q4_0", "embed.cu", Some("Q4_0"), &[]),
    module("embed_q4_1", "embed.cu", Some("Q4_1"), &[]),
    module("embed_q4_k", "embed.cu", Some("Q4_K"), &[]),
    module("embed_q5_0", "embed.cu", Some("Q5_0"), &[]),
    module("embed_q5_1", "embed.cu", Some("Q5_1"), &[]),
    module("embed_q5_k", "embed.cu", Some("Q5_K"), &[]),
    module("embed_q6_k", "embed.cu", Some("Q6_K"), &[]),
    module("embed_q8_0", "embed.cu", Some("Q8_0"), &[]),
    module("matmul_bf16", "matmul_float.cu", Some("BF16"), &[]),
    module("matmul_f16", "matmul_float.cu", Some("F16"), &[]),
    module("matmul_f32", "matmul_float.cu", Some("F32"), &[]),
    module("matmul_q2_k", "matmul.cu", Some("Q2_K"), &[]),
    module("matmul_q3_k", "matmul.cu", Some("Q3_K"), &[]),
    module("matmul_q4_0", "matmul.cu", Some("Q4_0"), &[]),
    module("matmul_q4_1", "matmul.cu", Some("Q4_1"), &[]),
    module("matmul_q4_k", "matmul.cu", Some("Q4_K"), &[]),
    module("matmul_q5_0", "matmul.cu", Some("Q5_0"), &[]),
    module("matmul_q5_1", "matmul.cu", Some("Q5_1"), &[]),
    module("matmul_q5_k", "matmul.cu", Some("Q5_K"), &[]),
    module("matmul_q6_k", "matmul.cu", Some("Q6_K"), &[]),
    module("matmul_q8_0", "matmul.cu", Some("Q8_0"), &[]),
    module("matvec_bf16", "matvec_float.cu", Some("BF16"), &[]),
    module("matvec_f16", "matvec_float.cu", Some("F16"), &[]),
    module("matvec_f32", "matvec_float.cu", Some("F32"), &[]),
    module("matvec_q2_k", "matvec.cu", Some("Q2_K"), &[]),
    module(
        "matvec_q2_k_q3_k",
        "matvec_pair.cu",
        Some("Q2_K"),
        &["-DSECOND=Q3_K", "-DSECOND_HEADER=\"formats/q3_k.cuh\""],
    ),
    module(
        "matvec_q2_k_q4_k",
        "matvec_pair.cu",
        Some("Q2_K"),
        &["-DSECOND=Q4_K", "-DSECOND_HEADER=\"formats/q4_k.cuh\""],
    ),
    module("matvec_q3_k", "matvec.cu", Some("Q3_K"), &[]),
    module(
        "matvec_q3_k_q4_k",
        "matvec_pair.cu",
        Some("Q3_K"),
        &["-DSECOND=Q4_K", "-DSECOND_HEADER=\"formats/q4_k.cuh\""],
    ),
    module(
        "matvec_q3_k_q5_k",
        "matvec_pair.cu",
        Some("Q3_K"),
        &["-DSECOND=Q5_K", "-DSECOND_HEADER=\"formats/q5_k.cuh\""],
    ),
    module("matvec_q4_0", "matvec.cu", Some("Q4_0"), &[]),
    module("matvec_q4_1", "matvec.cu", Some("Q4_1"), &[]),
    module("matvec_q4_k", "matvec.cu", Some("Q4_K"), &[]),
    module(
        "matvec_q4_k_q5_k",
        "matvec_pair.cu",
        Some("Q4_K"),
        &["-DSECOND=Q5_K", "-DSECOND_HEADER=\"formats/q5_k.cuh\""],
    ),
    module(
        "matvec_q4_k_q6_k",
        "matvec_pair.cu",
        Some("Q4_K"),
        &["-DSECOND=Q6_K", "-DSECOND_HEADER=\"formats/q6_k.cuh\""],
    ),
    module("matvec_q5_0", "matvec.cu", Some("Q5_0"), &[]),
    module("matvec_q5_1", "matvec.cu", Some("Q5_1"), &[]),
    module("matvec_q5_k", "matvec.cu", Some("Q5_K"), &[]),
    module(
        "matvec_q5_k_q6_k",
        "matvec_pair.cu",
        Some("Q5_K"),
        &["-DSECOND=Q6_K", "-DSECOND_HEADER=\"formats/q6_k.cuh\""],
    ),
    module("matvec_q6_k", "matvec.cu", Some("Q6_K"), &[]),
    module("matvec_q8_0", "matvec.cu", Some("Q8_0"), &[]),
    module("norm", "norm.cu", None, &[]),
    module("rope_kv", "rope_kv.cu", None, &[]),
    module("sample", "sample.cu", None, &["-fmad=false"]),
];
