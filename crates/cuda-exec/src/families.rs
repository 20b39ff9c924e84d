//! [`families`]: which kinds of products and of attention a GPU gets, and why it does not get the others.
//!
//! A load silently replaces kernels that are unavailable; this list names them. Invariant: it uses the same conditions and loads as steps do, so a
//! family that it lists as available is in use.

use tokenmill_gguf::TensorType;

use crate::{
    Device,
    driver::{EARLY_CAPABILITY, EARLY_CUDA, Launches},
    modules::{Target, WIDE_ATTENTION, WIDE_ROWS, type_suffix, wide_name},
};

/// A kind of product or of attention, or a way to launch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Family {
    /// Kind of the family: `products`, `attention` or `launches`.
    pub kind: &'static str,
    /// Name of the family.
    pub name: &'static str,
    /// The reason why the GPU does not get the family; `None` if it does.
    pub missing: Option<String>,
}

/// The type whose modules represent those of all types of a family.
const TYPE: TensorType = TensorType::Q4_K;

/// Lists the families, the general ones first. Loads the modules of one type if they were not loaded yet.
pub fn families(device: &Device) -> Vec<Family> {
    let suffix = type_suffix(TYPE).unwrap_or_default();
    let loaded = |modules: &[&str]| -> Option<String> {
        let loaded = device.load_modules(modules);
        loaded.err().map(|error| error.to_string())
    };
    let wide = device.refusal(Target::Hopper);
    let (few, many) = (format!("matvec_{suffix}"), format!("matmul_{suffix}"));
    let halves = format!("matmul_halves_{suffix}");
    let family = |kind, name, missing| Family { kind, name, missing };
    let apart =
        (device.options().reads_apart).then(|| "they are turned off (TOKENMILL_CUDA_NO_SHARED=1)".to_owned());
    vec![
        family("products", "few rows", loaded(&[&few])),
        family("products", "many rows, int8 on tensor cores", loaded(&[&many])),
        family(
            "products",
            "K-quants by many rows, f16 on tensor cores",
            loaded(&["halves", &halves]),
        ),
        family(
            "products",
            "9 rows and more, matrix operations of warpgroups (wgmma)",
            wide.clone().or_else(|| loaded(&[WIDE_ROWS, &wide_name(TYPE)])),
        ),
        family(
            "attention",
            "prompts in f16, heads of up to 128 values (wgmma)",
            wide.or_else(|| loaded(&[WIDE_ATTENTION])),
        ),
        family(
            "attention",
            "pages that sequences share, read once for all of them",
            apart.or_else(|| loaded(&["attention_shared", "attention_rest"])),
        ),
        family(
            "launches",
            "steps that decode, captured once and replayed",
            (device.options().runs_eagerly)
                .then(|| "they are turned off (TOKENMILL_CUDA_NO_GRAPHS=1)".to_owned()),
        ),
        family("launches", "launches that begin early", early_refusal(device)),
    ]
}

/// Returns the reason why early launches are off, if they are.
fn early_refusal(device: &Device) -> Option<String> {
    let info = device.info();
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    if device.options().launches == Launches::InOrder {
        Some("they are turned off (TOKENMILL_CUDA_IN_ORDER=1)".to_owned())
    } else if info.capability < EARLY_CAPABILITY {
        Some(format!(
            "compute capability {}; they need {} or newer",
            version(info.capability),
            version(EARLY_CAPABILITY)
        ))
    } else if info.cuda_version < EARLY_CUDA {
        Some(format!(
            "the driver is for CUDA {}; they need one for {} or newer",
            version(info.cuda_version),
            version(EARLY_CUDA)
        ))
    } else if !device.begins_early() {
        Some("the driver has no function for them".to_owned())
    } else {
        None
    }
}
