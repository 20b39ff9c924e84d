//! The kernels: each module's PTX, as `cargo xtask ptx` built it from `kernels/`.
//!
//! Modules are small, so that a run loads (and the driver compiles) only what its types need. Invariant: the table has every
//! file of `kernels/ptx`.

use tokenmill_gguf::TensorType;

/// A module of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtxModule {
    /// Its name: that of the file.
    pub name: &'static str,
    /// Its PTX.
    pub text: &'static str,
}

macro_rules! modules {
    ($($name:literal)*) => {
        &[$(PtxModule {
            name: $name,
            text: include_str!(concat!("../ptx/", $name, ".ptx")),
        }),*]
    };
}

/// Every module.
pub const MODULES: &[PtxModule] = modules! {
    "argmax"
    "attention_decode"
    "attention_prefill"
    "elementwise"
    "embed_bf16"
    "embed_f16"
    "embed_f32"
    "embed_q2_k"
    "embed_q3_k"
    "embed_q4_0"
    "embed_q4_1"
    "embed_q4_k"
    "embed_q5_0"
    "embed_q5_1"
    "embed_q5_k"
    "embed_q6_k"
    "embed_q8_0"
    "matmul_bf16"
    "matmul_f16"
    "matmul_f32"
    "matmul_q2_k"
    "matmul_q3_k"
    "matmul_q4_0"
    "matmul_q4_1"
    "matmul_q4_k"
    "matmul_q5_0"
    "matmul_q5_1"
    "matmul_q5_k"
    "matmul_q6_k"
    "matmul_q8_0"
    "matvec_bf16"
    "matvec_f16"
    "matvec_f32"
    "matvec_q2_k"
    "matvec_q2_k_q3_k"
    "matvec_q2_k_q4_k"
    "matvec_q3_k"
    "matvec_q3_k_q4_k"
    "matvec_q3_k_q5_k"
    "matvec_q4_0"
    "matvec_q4_1"
    "matvec_q4_k"
    "matvec_q4_k_q5_k"
    "matvec_q4_k_q6_k"
    "matvec_q5_0"
    "matvec_q5_1"
    "matvec_q5_k"
    "matvec_q5_k_q6_k"
    "matvec_q6_k"
    "matvec_q8_0"
    "norm"
    "rope_kv"
    "sample"
};

/// Pairs of weight types that one launch multiplies by: that of query and key weights, and that of the value weights, as
/// quantizers mix them in a layer.
pub const PAIRS: [[TensorType; 2]; 7] = [
    [TensorType::Q2_K, TensorType::Q3_K],
    [TensorType::Q2_K, TensorType::Q4_K],
    [TensorType::Q3_K, TensorType::Q4_K],
    [TensorType::Q3_K, TensorType::Q5_K],
    [TensorType::Q4_K, TensorType::Q5_K],
    [TensorType::Q4_K, TensorType::Q6_K],
    [TensorType::Q5_K, TensorType::Q6_K],
];

/// The module of this name.
pub fn module(name: &str) -> Option<&'static PtxModule> {
    MODULES.iter().find(|module| module.name == name)
}

/// The name by which modules of a weight type are known: its own in lower case. `None` where no kernel reads the type.
pub fn type_suffix(ty: TensorType) -> Option<&'static str> {
    Some(match ty {
        TensorType::F32 => "f32",
        TensorType::F16 => "f16",
        TensorType::BF16 => "bf16",
        TensorType::Q4_0 => "q4_0",
        TensorType::Q4_1 => "q4_1",
        TensorType::Q5_0 => "q5_0",
        TensorType::Q5_1 => "q5_1",
        TensorType::Q8_0 => "q8_0",
        TensorType::Q2_K => "q2_k",
        TensorType::Q3_K => "q3_k",
        TensorType::Q4_K => "q4_k",
        TensorType::Q5_K => "q5_k",
        TensorType::Q6_K => "q6_k",
        _ => return None,
    })
}
