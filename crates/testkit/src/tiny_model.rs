//! [`TinyModel`]: random networks made in memory from a descriptor, as weights or as the bytes of a GGUF file.
//!
//! Tests of other crates use small models too. Invariant: a tensor's numbers depend only on the seed and its name, so two networks
//! that differ in one feature share all other weights.

use std::collections::BTreeMap;

use tokenmill_backend::{RopeStyle, program::ProgramDevice};
use tokenmill_gguf::{GgufError, GgufWriter, TensorType};
use tokenmill_model::{
    AttentionDescriptor, Descriptor, LayerDescriptor, LoadError, ModelExecutor, ModelOptions, OutputHead,
    RopeDescriptor, WeightInfo, WeightSource, WeightTensor, build,
};
use tokenmill_quant::{dequantize_row, quantize_row};

use crate::{NaiveBackend, random::Random};

/// A random network.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// The network's descriptor.
    pub descriptor: Descriptor,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    ty: TensorType,
    dims: Vec<usize>,
    bytes: Vec<u8>,
}

/// Describes a two-layer llama: 64 wide, 4 query heads over 2 KV heads of 16, a vocabulary of 96.
pub fn tiny_llama() -> Descriptor {
    let layer = LayerDescriptor::plain(AttentionDescriptor::plain(4, 2, [16, 16]), 96);
    let rope = RopeDescriptor::plain(RopeStyle::Norm, 16, 10_000.0);
    let mut descriptor = Descriptor::plain([96, 64, 256], rope, vec![layer; 2]);
    "llama".clone_into(&mut descriptor.arch);
    descriptor.head = OutputHead::Own;
    descriptor
}

impl TinyModel {
    /// Makes random weights for a descriptor. Matrices have type `ty`, which must divide their rows into blocks.
    ///
    /// # Panics
    /// If it does not.
    pub fn random(descriptor: Descriptor, ty: TensorType, seed: u64) -> Self {
        let tensors = (tensor_dims(&descriptor).into_iter())
            .map(|(name, dims)| {
                let tensor = random_tensor(&name, dims, ty, seed);
                (name, tensor)
            })
            .collect();
        Self { descriptor, tensors }
    }

    /// Replaces the numbers of a tensor, which becomes F32.
    ///
    /// # Panics
    /// If there is no such tensor or it has another number of elements.
    pub fn set(&mut self, name: &str, values: &[f32]) {
        let tensor = self.tensors.get_mut(name).expect("a tensor of the model");
        assert_eq!(tensor.dims.iter().product::<usize>(), values.len(), "{name}");
        tensor.ty = TensorType::F32;
        tensor.bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    }

    /// Replaces a matrix by a random one of another type, as in files of mixed types.
    ///
    /// # Panics
    /// If there is no such tensor or the type does not divide its rows into blocks.
    pub fn set_type(&mut self, name: &str, ty: TensorType, seed: u64) {
        let tensor = self.tensors.get_mut(name).expect("a tensor of the model");
        *tensor = random_tensor(name, tensor.dims.clone(), ty, seed);
    }

    /// Joins the rows of tensors in one, as some files do.
    ///
    /// # Panics
    /// If one is missing.
    pub fn join(&mut self, names: &[&str], joined: &str) {
        let parts: Vec<Tensor> = (names.iter())
            .map(|&name| self.tensors.remove(name).expect("a tensor of the model"))
            .collect();
        let mut whole = parts[0].clone();
        for part in &parts[1..] {
            *whole.dims.last_mut().expect("a dimension") += part.dims.last().expect("a dimension");
            whole.bytes.extend_from_slice(&part.bytes);
        }
        self.tensors.insert(joined.to_owned(), whole);
    }

    /// Removes a tensor.
    pub fn remove(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    /// Adds a random matrix.
    ///
    /// # Panics
    /// If the type does not divide its rows into blocks.
    pub fn add_random(&mut self, name: &str, dims: &[usize], ty: TensorType, seed: u64) {
        let tensor = random_tensor(name, dims.to_vec(), ty, seed);
        self.tensors.insert(name.to_owned(), tensor);
    }

    /// Replaces a matrix by its numbers in F32.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn dequantize(&mut self, name: &str) {
        let tensor = &self.tensors[name];
        let mut values = vec![0.0; tensor.dims.iter().product()];
        dequantize_row(tensor.ty, &tensor.bytes, &mut values).expect("whole blocks");
        self.set(name, &values);
    }

    /// Adds a tensor of zeros.
    pub fn add_zeros(&mut self, name: &str, dims: &[usize]) {
        let n_bytes = 4 * dims.iter().product::<usize>();
        let tensor = Tensor {
            ty: TensorType::F32,
            dims: dims.to_vec(),
            bytes: vec![0; n_bytes],
        };
        self.tensors.insert(name.to_owned(), tensor);
    }

    /// Loads it on a device.
    ///
    /// # Panics
    /// If it does not load.
    #[track_caller]
    pub fn load_on(
        &self,
        device: impl Into<Box<dyn ProgramDevice>>,
        options: &ModelOptions,
    ) -> ModelExecutor {
        build(&self.descriptor, self, device, options, &mut |_| {}).expect("a tiny model loads")
    }

    /// Returns the model as a GGUF file of architecture `llama`. It can express only the sizes of [`tiny_llama`].
    ///
    /// # Errors
    /// [`GgufError`] if the writer refuses a tensor.
    pub fn to_gguf(&self) -> Result<Vec<u8>, GgufError> {
        let Descriptor { layers, ropes, .. } = &self.descriptor;
        let attention = layers[0].mixer.attention().expect("a llama has attention");
        let mut writer = GgufWriter::new();
        let metadata = writer.metadata_mut();
        metadata.insert("general.architecture", "llama")?;
        for (key, value) in [
            ("block_count", layers.len()),
            ("context_length", self.descriptor.n_ctx_train),
            ("embedding_length", self.descriptor.n_embd),
            (
                "feed_forward_length",
                layers[0].ffn.dense().expect("a llama is dense").n_ff,
            ),
            ("attention.head_count", attention.n_heads),
            ("attention.head_count_kv", attention.n_kv_heads),
            ("attention.key_length", attention.head_dim_k),
            ("attention.value_length", attention.head_dim_v),
            ("rope.dimension_count", ropes[0].n_dims),
        ] {
            metadata.insert(format!("llama.{key}"), value as u32)?;
        }
        metadata.insert("llama.attention.layer_norm_rms_epsilon", self.descriptor.norm.eps)?;
        metadata.insert("llama.rope.freq_base", ropes[0].base)?;
        if let Some(window) = attention.window {
            metadata.insert("llama.attention.sliding_window", window as u32)?;
        }
        for (name, tensor) in &self.tensors {
            let dims: Vec<u64> = tensor.dims.iter().map(|&dim| dim as u64).collect();
            writer.add_tensor(name, tensor.ty, &dims)?;
        }
        let mut out = writer.write_header(Vec::new())?;
        for tensor in self.tensors.values() {
            out.write(&tensor.bytes)?;
        }
        out.finish()
    }
}

impl WeightSource for TinyModel {
    fn infos(&self) -> Vec<WeightInfo> {
        (self.tensors.iter())
            .map(|(name, tensor)| WeightInfo {
                name: name.clone(),
                ty: tensor.ty,
                dims: tensor.dims.clone(),
                n_bytes: tensor.bytes.len(),
                stored: None,
            })
            .collect()
    }

    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        self.tensors.get(name).map(|tensor| WeightTensor {
            ty: tensor.ty,
            dims: tensor.dims.clone(),
            bytes: (&tensor.bytes).into(),
        })
    }
}

/// Returns the tensors that a descriptor needs, including optional ones, with their dimensions, the contiguous one first. A load
/// requests them one by one, so that there is no second list of a network's tensors.
fn tensor_dims(descriptor: &Descriptor) -> Vec<(String, Vec<usize>)> {
    let mut probe = Probe {
        dims: Vec::new(),
        ones: 1.0_f32.to_le_bytes().repeat(1 << 20),
    };
    loop {
        let load = build(
            descriptor,
            &probe,
            NaiveBackend::default(),
            &ModelOptions::default(),
            &mut |_| {},
        );
        match load {
            Err(LoadError::WrongShape { name, expected, .. }) => {
                let n_values = expected.iter().product::<usize>();
                if probe.ones.len() < 4 * n_values {
                    probe.ones = 1.0_f32.to_le_bytes().repeat(n_values);
                }
                probe.dims.push((name, expected));
            }
            _ => return probe.dims,
        }
    }
}

/// A source whose tensors have no numbers until their dimensions are known.
struct Probe {
    dims: Vec<(String, Vec<usize>)>,
    /// As long as the longest tensor.
    ones: Vec<u8>,
}

impl WeightSource for Probe {
    fn infos(&self) -> Vec<WeightInfo> {
        Vec::new()
    }

    fn contains(&self, name: &str) -> bool {
        self.dims.iter().any(|(known, _)| known == name)
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        let known = self.dims.iter().find(|(known, _)| known == name);
        let dims = known.map_or(vec![0], |(_, dims)| dims.clone());
        let n_bytes = 4 * dims.iter().product::<usize>();
        Some(WeightTensor {
            ty: TensorType::F32,
            dims,
            bytes: self.ones[..n_bytes].into(),
        })
    }
}
/// Returns whether a tensor of two dimensions is not a matrix of a product.
fn is_vector(name: &str) -> bool {
    let part = name.rsplit_once("blk.").map_or(name, |(_, part)| part);
    [
        "conv1d.weight",
        "shortconv.conv.weight",
        "ssm_a",
        "ssm_norm.weight",
    ]
    .iter()
    .any(|end| part.ends_with(end))
}

/// Makes matrices that preserve the size of their input, norm weights and frequency divisors near 1, and other vectors near 0.
fn random_tensor(name: &str, dims: Vec<usize>, ty: TensorType, seed: u64) -> Tensor {
    let mut random = Random::named(seed, name);
    let mut values = |centre: f32, spread: f32| -> Vec<f32> {
        (0..dims.iter().product())
            .map(|_| centre + spread * random.symmetric())
            .collect()
    };
    let f32_bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (ty, bytes) = match dims[..] {
        _ if name.starts_with("position_embd") => (TensorType::F32, f32_bytes(&values(0.0, 0.5))),
        // For experts, the rows of one expert follow those of another. Their biases have two dimensions as
        // well.
        [n_in, ref rest @ ..]
            if !rest.is_empty() && !is_vector(name) && name.strip_suffix(".bias").is_none() =>
        {
            let n_out: usize = rest.iter().product();
            // Rows of this spread have a length of about 1.6, so that attention and logits are far from uniform.
            let values = values(0.0, 2.8 / (n_in as f32).sqrt());
            let row_bytes = ty.row_bytes(n_in).expect("a row that is not absurdly long");
            let mut bytes = vec![0; row_bytes * n_out];
            for (row, bytes) in values.chunks_exact(n_in).zip(bytes.chunks_exact_mut(row_bytes)) {
                quantize_row(ty, row, bytes).expect("whole blocks in a row");
            }
            (ty, bytes)
        }
        // Decays are negative.
        _ if name.ends_with("ssm_a") => (TensorType::F32, f32_bytes(&values(-1.0, 0.5))),
        _ if name.starts_with("rope_f") => (TensorType::F32, f32_bytes(&values(2.0, 1.0))),
        _ if ["norm.weight", "scale.weight", ".scale"]
            .iter()
            .any(|end| name.ends_with(end)) =>
        {
            (TensorType::F32, f32_bytes(&values(1.0, 0.3)))
        }
        _ => (TensorType::F32, f32_bytes(&values(0.0, 0.5))),
    };
    Tensor { ty, dims, bytes }
}
