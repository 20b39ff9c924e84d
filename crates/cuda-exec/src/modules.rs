//! The modules of kernels: their list, their sources, and the PTX that `cargo lab ptx` built.
//!
//! Modules are small, so that a run loads (and the driver compiles) only what its types need. The PTX is in one compressed
//! archive, `kernels.ptx.z` of this crate; a module is unpacked when it is loaded. Invariant: the archive has exactly the
//! modules of [`all`], in their order.

mod archive;
mod text;
mod variant;

use tokenmill_gguf::TensorType;
use tokenmill_quant::Format;

pub(crate) use self::text::ModuleText;
pub(crate) use self::variant::EARLY_CAPABILITY;
pub use self::{
    archive::{Cubins, Entry},
    text::ModuleTexts,
    variant::{early_variant, text_for, waiting_kernels},
};

/// A module of kernels, and its inputs for the compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelModule {
    /// Its name.
    pub name: String,
    /// The source in `kernels`.
    pub source: &'static str,
    /// The weight types that it is compiled for: none, one, or the two of a pair.
    pub types: Vec<TensorType>,
    /// Further flags of the compiler.
    pub flags: &'static [&'static str],
    /// The GPUs that it is for.
    pub target: Target,
}

/// Selects the GPUs that a module is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// All GPUs that this crate runs on.
    All,
    /// Compute capability 9.0 only: neither older nor newer GPUs have its wgmma.
    Hopper,
}

impl Target {
    /// Returns the architecture that the compiler targets, without its prefix.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::All => "80",
            Self::Hopper => "90a",
        }
    }

    /// Returns the PTX version of the module: the oldest with everything that its kernels use, so that older drivers load
    /// it.
    pub fn ptx_version(self) -> &'static str {
        match self {
            Self::All => "7.4",
            Self::Hopper => "8.0",
        }
    }

    /// Returns the reason why a GPU that this crate opens, with this driver, cannot have such modules; `None` if it can.
    pub fn refusal(self, capability: (u32, u32), cuda_version: (u32, u32)) -> Option<String> {
        let ((major, minor), (cuda_major, cuda_minor)) = (capability, cuda_version);
        if self == Self::All {
            None
        } else if capability != (9, 0) {
            Some(format!(
                "compute capability {major}.{minor}; only 9.0 (H100, H200) has matrix operations of warpgroups"
            ))
        } else if cuda_version < (12, 0) {
            // CUDA 12.0 introduced the version of their PTX.
            Some(format!(
                "the driver is for CUDA {cuda_major}.{cuda_minor}; they need one for 12.0 or newer"
            ))
        } else {
            None
        }
    }
}

/// Modules without a weight type, with their sources and flags.
const PLAIN: [(&str, &str, &[&str]); 28] = [
    ("argmax", "argmax.cu", &[]),
    ("attention_decode", "attention_decode.cu", &[]),
    ("attention_prefill", "attention_prefill.cu", &[]),
    ("attention_rest", "attention_decode.cu", &["-DREST"]),
    ("attention_shared", "attention_shared.cu", &[]),
    ("delta_net", "delta_net.cu", &[]),
    ("elementwise", "elementwise.cu", &[]),
    ("halves", "halves.cu", &[]),
    ("latent_attention", "latent_attention.cu", &[]),
    ("layers", "layers.cu", &[]),
    ("lora", "lora.cu", &[]),
    ("norm", "norm.cu", &[]),
    ("rope_kv", "rope_kv.cu", &[]),
    ("route", "route.cu", &[]),
    ("sample", "sample.cu", &["-fmad=false"]),
    ("short_conv", "short_conv.cu", &[]),
    ("ssm_scan", "ssm_scan.cu", &[]),
    ("streams", "streams.cu", &[]),
    ("attention_decode_mixed", "attention_decode.cu", &["-DMIXED"]),
    (
        "attention_prefill_mixed",
        "attention_prefill_of_types.cu",
        &["-DMIXED"],
    ),
    ("rope_kv_mixed", "rope_kv.cu", &["-DMIXED"]),
    (
        "attention_decode_e4m3_e4m3",
        "attention_decode.cu",
        &["-DBOTH=E4m3"],
    ),
    (
        "attention_decode_q8_0_q8_0",
        "attention_decode.cu",
        &["-DKEYS=Q8Store", "-DVALUES=Q8Store"],
    ),
    (
        "attention_prefill_e4m3_e4m3",
        "attention_prefill_of_types.cu",
        &["-DKEYS=E4m3", "-DVALUES=E4m3"],
    ),
    (
        "attention_prefill_f32_f32",
        "attention_prefill_of_types.cu",
        &["-DKEYS=float", "-DVALUES=float"],
    ),
    (
        "attention_prefill_q8_0_q8_0",
        "attention_prefill_of_types.cu",
        &["-DKEYS=Q8Store", "-DVALUES=Q8Store"],
    ),
    (
        "rope_kv_e4m3_e4m3",
        "rope_kv.cu",
        &["-DKEYS=E4m3", "-DVALUES=E4m3"],
    ),
    (
        "rope_kv_q8_0_q8_0",
        "rope_kv.cu",
        &["-DKEYS=Q8Store", "-DVALUES=Q8Store"],
    ),
];

/// Modules that exist for every weight type, with the sources for quantized and for float weights.
const TYPED: [(&str, &str, &str); 4] = [
    ("embed", "embed.cu", "embed_float.cu"),
    ("experts", "experts.cu", "experts_float.cu"),
    ("matmul", "matmul.cu", "matmul_float.cu"),
    ("matvec", "matvec.cu", "matvec_float.cu"),
];

/// Weight types that are multiplied in f16 by many rows.
const HALVED: [TensorType; 3] = [TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K];

/// Weight types that are multiplied by matrix operations of warpgroups.
pub const WIDE: [TensorType; 13] = [
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::MXFP4,
];

/// The module that prepares rows of x for products by matrix operations of warpgroups.
pub(crate) const WIDE_ROWS: &str = "wide_rows";

/// The module for attention of prompts by these operations.
pub(crate) const WIDE_ATTENTION: &str = "attention_wide";

/// Returns the name of the module of such products.
///
/// # Panics
/// With a type that no kernel reads.
pub(crate) fn wide_name(ty: TensorType) -> String {
    format!("matmul_wide_{}", type_suffix(ty).expect("a type with kernels"))
}

/// Pairs of weight types that one launch multiplies by: the type of query and key weights, and that of the value weights,
/// as quantizers mix them in a layer.
pub const PAIRS: [[TensorType; 2]; 7] = [
    [TensorType::Q2_K, TensorType::Q3_K],
    [TensorType::Q2_K, TensorType::Q4_K],
    [TensorType::Q3_K, TensorType::Q4_K],
    [TensorType::Q3_K, TensorType::Q5_K],
    [TensorType::Q4_K, TensorType::Q5_K],
    [TensorType::Q4_K, TensorType::Q6_K],
    [TensorType::Q5_K, TensorType::Q6_K],
];

/// Lists every module, by name.
pub fn all() -> Vec<KernelModule> {
    let plain = PLAIN.into_iter().map(|(name, source, flags)| KernelModule {
        name: name.to_owned(),
        source,
        types: Vec::new(),
        flags,
        target: Target::All,
    });
    let typed = TYPED.into_iter().flat_map(|(op, quantized, float)| {
        Format::all().iter().map(move |format| KernelModule {
            name: format!("{op}_{}", format.file_name()),
            source: if format.is_float() { float } else { quantized },
            types: vec![format.tensor_type()],
            flags: &[],
            target: Target::All,
        })
    });
    let halved = HALVED.into_iter().map(|ty| KernelModule {
        name: format!("matmul_halves_{}", type_suffix(ty).expect("a type with kernels")),
        source: "matmul_halves.cu",
        types: vec![ty],
        flags: &[],
        target: Target::All,
    });
    let wide = WIDE.into_iter().map(|ty| KernelModule {
        name: wide_name(ty),
        source: "matmul_wide.cu",
        types: vec![ty],
        flags: &[],
        target: Target::Hopper,
    });
    let untyped = [(WIDE_ROWS, "wide_rows.cu"), (WIDE_ATTENTION, "attention_wide.cu")];
    let wide_untyped = untyped.map(|(name, source)| KernelModule {
        name: name.to_owned(),
        source,
        types: Vec::new(),
        flags: &[],
        target: Target::Hopper,
    });
    let pairs = PAIRS.into_iter().map(|types| KernelModule {
        name: pair_name(types),
        source: "matvec_pair.cu",
        types: types.to_vec(),
        flags: &[],
        target: Target::All,
    });
    let mut all: Vec<_> = (plain.chain(typed).chain(halved).chain(wide).chain(pairs))
        .chain(wide_untyped)
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Returns the name of the module for a pair of [`PAIRS`].
pub(crate) fn pair_name(types: [TensorType; 2]) -> String {
    let [first, second] = types.map(|ty| type_suffix(ty).expect("pairs are of types with kernels"));
    format!("matvec_{first}_{second}")
}

/// Returns the suffix of a weight type in module names: its own name in lower case. `None` if no kernel reads the type.
pub fn type_suffix(ty: TensorType) -> Option<&'static str> {
    tokenmill_quant::format(ty).map(Format::file_name)
}

/// The archive of every module's PTX.
static ARCHIVE: &[u8] = include_bytes!("../kernels.ptx.z");

/// Lists the names of the modules in the archive.
pub fn names() -> impl Iterator<Item = &'static str> {
    Entry::all(ARCHIVE).map(|entry| entry.name)
}

/// Identifies this build's kernels.
pub fn fingerprint() -> u64 {
    archive::fingerprint(ARCHIVE)
}

/// Returns the module of this name in the archive.
pub(crate) fn entry(name: &str) -> Option<Entry<'static>> {
    Entry::all(ARCHIVE).find(|entry| entry.name == name)
}

/// Returns the PTX of a module; `None` if there is none of this name.
pub fn ptx(name: &str) -> Option<String> {
    entry(name)?.ptx()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_hopper_are_for_its_capability_and_newer_drivers() {
        let check = |capability, cuda, expected| {
            let found =
                [Target::All, Target::Hopper].map(|target| target.refusal(capability, cuda).is_none());
            assert_eq!(found, expected, "{capability:?} {cuda:?}");
        };
        check((9, 0), (12, 0), [true, true]);
        check((9, 0), (11, 8), [true, false]);
        check((8, 9), (13, 0), [true, false]);
        check((10, 0), (13, 0), [true, false]);
    }

    #[test]
    fn the_archive_has_every_module_and_no_other() {
        let listed: Vec<String> = all().into_iter().map(|module| module.name).collect();
        assert_eq!(listed, names().collect::<Vec<_>>());
        for name in names() {
            assert!(ptx(name).is_some_and(|ptx| ptx.contains(".entry")), "{name}");
        }
        assert_eq!(ptx("nothing"), None);
    }
}
