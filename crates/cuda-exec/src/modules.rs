//! The modules of kernels: what there is, from which source, and the PTX that `cargo xtask ptx` built of it.
//!
//! Modules are small, so that a run loads (and the driver compiles) only what its types need. The PTX is in one compressed
//! archive, `kernels.ptx.z` of this crate; a module is inflated when it is loaded. Invariant: the archive has exactly the
//! modules of [`all`], in their order.

mod variant;

use std::{fmt, sync::Arc};

use tokenmill_gguf::TensorType;
use tokenmill_quant::Format;

pub use self::variant::{early_variant, waiting_kernels};

/// A module of kernels: what it is compiled from.
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
}

/// Modules that no weight type is compiled into, with their sources and flags.
const PLAIN: [(&str, &str, &[&str]); 38] = [
    ("argmax", "argmax.cu", &[]),
    ("attention_decode", "attention_decode.cu", &[]),
    ("attention_prefill", "attention_prefill.cu", &[]),
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
    (
        "attention_decode_f16_f32",
        "attention_decode.cu",
        &["-DKEYS=__half", "-DVALUES=float"],
    ),
    (
        "attention_decode_f16_q8_0",
        "attention_decode.cu",
        &["-DKEYS=__half", "-DVALUES=Q8Store"],
    ),
    (
        "attention_decode_f32_f16",
        "attention_decode.cu",
        &["-DKEYS=float", "-DVALUES=__half"],
    ),
    (
        "attention_decode_f32_q8_0",
        "attention_decode.cu",
        &["-DKEYS=float", "-DVALUES=Q8Store"],
    ),
    (
        "attention_decode_q8_0_f16",
        "attention_decode.cu",
        &["-DKEYS=Q8Store", "-DVALUES=__half"],
    ),
    (
        "attention_decode_q8_0_f32",
        "attention_decode.cu",
        &["-DKEYS=Q8Store", "-DVALUES=float"],
    ),
    (
        "attention_decode_q8_0_q8_0",
        "attention_decode.cu",
        &["-DKEYS=Q8Store", "-DVALUES=Q8Store"],
    ),
    (
        "attention_prefill_f16_f32",
        "attention_prefill_of_types.cu",
        &["-DKEYS=__half", "-DVALUES=float"],
    ),
    (
        "attention_prefill_f16_q8_0",
        "attention_prefill_of_types.cu",
        &["-DKEYS=__half", "-DVALUES=Q8Store"],
    ),
    (
        "attention_prefill_f32_f16",
        "attention_prefill_of_types.cu",
        &["-DKEYS=float", "-DVALUES=__half"],
    ),
    (
        "attention_prefill_f32_f32",
        "attention_prefill_of_types.cu",
        &["-DKEYS=float", "-DVALUES=float"],
    ),
    (
        "attention_prefill_f32_q8_0",
        "attention_prefill_of_types.cu",
        &["-DKEYS=float", "-DVALUES=Q8Store"],
    ),
    (
        "attention_prefill_q8_0_f16",
        "attention_prefill_of_types.cu",
        &["-DKEYS=Q8Store", "-DVALUES=__half"],
    ),
    (
        "attention_prefill_q8_0_f32",
        "attention_prefill_of_types.cu",
        &["-DKEYS=Q8Store", "-DVALUES=float"],
    ),
    (
        "attention_prefill_q8_0_q8_0",
        "attention_prefill_of_types.cu",
        &["-DKEYS=Q8Store", "-DVALUES=Q8Store"],
    ),
    (
        "rope_kv_f16_f32",
        "rope_kv.cu",
        &["-DKEYS=__half", "-DVALUES=float"],
    ),
    (
        "rope_kv_f16_q8_0",
        "rope_kv.cu",
        &["-DKEYS=__half", "-DVALUES=Q8Store"],
    ),
    (
        "rope_kv_f32_f16",
        "rope_kv.cu",
        &["-DKEYS=float", "-DVALUES=__half"],
    ),
    (
        "rope_kv_f32_q8_0",
        "rope_kv.cu",
        &["-DKEYS=float", "-DVALUES=Q8Store"],
    ),
    (
        "rope_kv_q8_0_f16",
        "rope_kv.cu",
        &["-DKEYS=Q8Store", "-DVALUES=__half"],
    ),
    (
        "rope_kv_q8_0_f32",
        "rope_kv.cu",
        &["-DKEYS=Q8Store", "-DVALUES=float"],
    ),
    (
        "rope_kv_q8_0_q8_0",
        "rope_kv.cu",
        &["-DKEYS=Q8Store", "-DVALUES=Q8Store"],
    ),
];

/// Modules that every weight type has, with the sources for quantized and for float weights.
const TYPED: [(&str, &str, &str); 4] = [
    ("embed", "embed.cu", "embed_float.cu"),
    ("experts", "experts.cu", "experts_float.cu"),
    ("matmul", "matmul.cu", "matmul_float.cu"),
    ("matvec", "matvec.cu", "matvec_float.cu"),
];

/// The weight types that are multiplied in f16 by many rows.
const HALVED: [TensorType; 3] = [TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K];

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

/// Every module, by name.
pub fn all() -> Vec<KernelModule> {
    let plain = PLAIN.into_iter().map(|(name, source, flags)| KernelModule {
        name: name.to_owned(),
        source,
        types: Vec::new(),
        flags,
    });
    let typed = TYPED.into_iter().flat_map(|(op, quantized, float)| {
        Format::all().iter().map(move |format| KernelModule {
            name: format!("{op}_{}", format.file_name()),
            source: if format.is_float() { float } else { quantized },
            types: vec![format.tensor_type()],
            flags: &[],
        })
    });
    let halved = HALVED.into_iter().map(|ty| KernelModule {
        name: format!("matmul_halves_{}", type_suffix(ty).expect("a type with kernels")),
        source: "matmul_halves.cu",
        types: vec![ty],
        flags: &[],
    });
    let pairs = PAIRS.into_iter().map(|types| KernelModule {
        name: pair_name(types),
        source: "matvec_pair.cu",
        types: types.to_vec(),
        flags: &[],
    });
    let mut all: Vec<_> = plain.chain(typed).chain(halved).chain(pairs).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The name of the module for a pair of [`PAIRS`].
pub(crate) fn pair_name(types: [TensorType; 2]) -> String {
    let [first, second] = types.map(|ty| type_suffix(ty).expect("pairs are of types with kernels"));
    format!("matvec_{first}_{second}")
}

/// The name by which modules of a weight type are known: its own in lower case. `None` where no kernel reads the type.
pub fn type_suffix(ty: TensorType) -> Option<&'static str> {
    tokenmill_quant::format(ty).map(Format::file_name)
}

/// The archive of every module's PTX.
static ARCHIVE: &[u8] = include_bytes!("../kernels.ptx.z");

/// A module in an archive: its name, the length of its PTX, and the PTX as a raw DEFLATE stream. In the archive it is the
/// length of the name (one byte), the name, the lengths of PTX and stream (four bytes each, little-endian), and the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The module's name.
    pub name: &'a str,
    /// Bytes of the PTX.
    pub ptx_bytes: usize,
    /// The PTX, compressed.
    pub stream: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The modules of an archive, up to the first that is damaged.
    pub fn all(archive: &'a [u8]) -> impl Iterator<Item = Self> {
        let mut rest = archive;
        std::iter::from_fn(move || {
            let entry;
            (entry, rest) = Self::split_first(rest)?;
            Some(entry)
        })
    }

    fn split_first(archive: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (&name_len, rest) = archive.split_first()?;
        let (name, rest) = rest.split_at_checked(name_len.into())?;
        let ([ptx_bytes, stream_bytes], rest) = rest.split_at_checked(8).and_then(|(lengths, rest)| {
            let lengths: &[[u8; 4]] = lengths.as_chunks().0;
            let lengths: [[u8; 4]; 2] = lengths.try_into().ok()?;
            Some((lengths.map(|bytes| u32::from_le_bytes(bytes) as usize), rest))
        })?;
        let (stream, rest) = rest.split_at_checked(stream_bytes)?;
        let name = std::str::from_utf8(name).ok()?;
        let entry = Self {
            name,
            ptx_bytes,
            stream,
        };
        Some((entry, rest))
    }

    /// Appends the module to an archive.
    ///
    /// # Panics
    /// When a length does not fit.
    pub fn append_to(&self, archive: &mut Vec<u8>) {
        let length = |bytes: usize| u32::try_from(bytes).expect("a module below 4 GiB").to_le_bytes();
        archive.push(u8::try_from(self.name.len()).expect("a name below 256 bytes"));
        archive.extend(self.name.as_bytes());
        archive.extend(length(self.ptx_bytes));
        archive.extend(length(self.stream.len()));
        archive.extend(self.stream);
    }

    /// Inflates the PTX; `None` where the stream is damaged.
    pub fn ptx(&self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }

    /// Inflates what the module is; `None` where the stream is damaged.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        miniz_oxide::inflate::decompress_to_vec_with_limit(self.stream, self.ptx_bytes).ok()
    }
}

/// An archive of kernels that were compiled ahead, for a driver that compiles none. Its modules are named `sm_90/norm`: the compute
/// capability, and the module.
#[derive(Clone)]
pub struct Cubins(Arc<[u8]>);

impl fmt::Debug for Cubins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cubins({} bytes)", self.0.len())
    }
}

impl Cubins {
    /// Takes an archive of [`Entry`]s.
    pub fn new(archive: impl Into<Arc<[u8]>>) -> Self {
        Self(archive.into())
    }

    /// The code of a module that a GPU of this compute capability runs: of the same major version, and the newest minor one that is
    /// not newer.
    pub(crate) fn find(&self, capability: (u32, u32), module: &str) -> Option<Vec<u8>> {
        let (major, minor) = capability;
        let version = |name: &str| -> Option<u32> {
            let (folder, name) = name.split_once('/')?;
            let version: u32 = folder.strip_prefix("sm_")?.parse().ok()?;
            (name == module && version / 10 == major && version % 10 <= minor).then_some(version)
        };
        Entry::all(&self.0)
            .filter_map(|entry| Some((version(entry.name)?, entry)))
            .max_by_key(|&(version, _)| version)
            .and_then(|(_, entry)| entry.bytes())
    }
}

/// The names of the modules in the archive.
pub fn names() -> impl Iterator<Item = &'static str> {
    Entry::all(ARCHIVE).map(|entry| entry.name)
}

/// The module of this name in the archive.
pub(crate) fn entry(name: &str) -> Option<Entry<'static>> {
    Entry::all(ARCHIVE).find(|entry| entry.name == name)
}

/// The PTX of a module; `None` where there is none of this name.
pub fn ptx(name: &str) -> Option<String> {
    entry(name)?.ptx()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_every_module_and_no_other() {
        let listed: Vec<String> = all().into_iter().map(|module| module.name).collect();
        assert_eq!(listed, names().collect::<Vec<_>>());
        for name in names() {
            assert!(ptx(name).is_some_and(|ptx| ptx.contains(".entry")), "{name}");
        }
        assert_eq!(ptx("nothing"), None);
    }

    #[test]
    fn a_gpu_gets_the_newest_code_that_it_runs() {
        let mut archive = Vec::new();
        for name in [
            "sm_80/norm",
            "sm_86/norm",
            "sm_90/norm",
            "sm_86/rope",
            "sm_x/norm",
            "norm",
        ] {
            let stream = miniz_oxide::deflate::compress_to_vec(name.as_bytes(), 1);
            let entry = Entry {
                name,
                ptx_bytes: name.len(),
                stream: &stream,
            };
            entry.append_to(&mut archive);
        }
        let cubins = Cubins::new(archive);
        let check = |capability, expected: Option<&str>| {
            let found = cubins.find(capability, "norm");
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{capability:?}");
        };
        check((8, 0), Some("sm_80/norm"));
        check((8, 9), Some("sm_86/norm"));
        check((9, 0), Some("sm_90/norm"));
        check((10, 0), None);
        assert_eq!(cubins.find((8, 0), "rope"), None);
    }

    #[test]
    fn an_archive_gives_what_was_appended_and_ends_where_it_is_cut() {
        let stream = miniz_oxide::deflate::compress_to_vec(b".version 7.4", 10);
        let entry = Entry {
            name: "norm",
            ptx_bytes: 12,
            stream: &stream,
        };
        let mut archive = Vec::new();
        entry.append_to(&mut archive);
        entry.append_to(&mut archive);
        assert_eq!(Entry::all(&archive).collect::<Vec<_>>(), [entry, entry]);
        assert_eq!(entry.ptx().as_deref(), Some(".version 7.4"));
        for end in archive.len() / 2..archive.len() {
            assert_eq!(Entry::all(&archive[..end]).collect::<Vec<_>>(), [entry]);
        }
        // A stream that inflates to more than was said is damaged.
        assert_eq!(
            Entry {
                ptx_bytes: 11,
                ..entry
            }
            .ptx(),
            None
        );
    }
}
