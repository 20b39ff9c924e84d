//! [`Network`]: a descriptor's weights on a device, and how they get there.
//!
//! Separate from the descriptor, which is data, and from the forward pass, which only reads. Invariants: every tensor has
//! the shape that the descriptor implies; every tensor of the source was used, since an ignored one would mean wrong
//! output; vectors are finite.

use std::collections::HashSet;

use half::{bf16, f16};
use tokenmill_backend::{Attention, Linear, MatrixData, MatrixUsage, Memory, Norm, NormKind, Rope};
use tokenmill_gguf::TensorType;

use crate::{
    Descriptor, LayerDescriptor, LoadError, NormDescriptor, OutputHead, Presence, QkNorm, Residual,
    WeightSource,
};

/// How far a load is, in bytes of the file's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes on the device.
    pub n_bytes_done: usize,
    /// Bytes in all.
    pub n_bytes_total: usize,
}

/// A network's weights on a device.
pub(crate) struct Network<M: Memory> {
    pub(crate) token_embd: Linear<M::Matrix, M::Vector>,
    pub(crate) embedding_scale: f32,
    pub(crate) ropes: Vec<Rope<M::Vector>>,
    pub(crate) layers: Vec<Layer<M>>,
    pub(crate) residual_scale: f32,
    pub(crate) output_norm: Norm<M::Vector>,
    /// `None` where the head is tied to the token embedding.
    pub(crate) output: Option<Linear<M::Matrix, M::Vector>>,
    pub(crate) logit_scale: f32,
    pub(crate) logit_softcap: Option<f32>,
}

/// One layer's weights.
pub(crate) struct Layer<M: Memory> {
    pub(crate) attn_norm: Option<Norm<M::Vector>>,
    pub(crate) attn_q: Linear<M::Matrix, M::Vector>,
    pub(crate) attn_k: Linear<M::Matrix, M::Vector>,
    pub(crate) attn_v: Linear<M::Matrix, M::Vector>,
    pub(crate) attn_q_norm: Option<Norm<M::Vector>>,
    pub(crate) attn_k_norm: Option<Norm<M::Vector>>,
    pub(crate) rope: Option<usize>,
    pub(crate) attention: Attention<M::Vector>,
    pub(crate) attn_output: Linear<M::Matrix, M::Vector>,
    pub(crate) attn_post_norm: Option<Norm<M::Vector>>,
    pub(crate) residual: Residual,
    pub(crate) ffn_norm: Option<Norm<M::Vector>>,
    pub(crate) ffn: Ffn<M>,
}

/// A feed-forward network's weights.
pub(crate) struct Ffn<M: Memory> {
    pub(crate) activation: tokenmill_backend::Activation,
    /// `None` for a network without a gate.
    pub(crate) gate: Option<Linear<M::Matrix, M::Vector>>,
    pub(crate) up: Linear<M::Matrix, M::Vector>,
    pub(crate) down: Linear<M::Matrix, M::Vector>,
    /// The norm of what the network gives.
    pub(crate) post_norm: Option<Norm<M::Vector>>,
}

impl<M: Memory> Network<M> {
    /// Uploads all weights.
    ///
    /// # Errors
    /// The first [`LoadError`].
    pub(crate) fn load(
        descriptor: &Descriptor,
        source: &dyn WeightSource,
        memory: &mut M,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let mut loader = Loader::new(descriptor, source, memory, on_progress);
        let network = loader.network()?;
        loader.check_all_used()?;
        Ok(network)
    }
}

struct Loader<'a, M> {
    descriptor: &'a Descriptor,
    source: &'a dyn WeightSource,
    memory: &'a mut M,
    used: HashSet<String>,
    progress: LoadProgress,
    on_progress: &'a mut dyn FnMut(LoadProgress),
}

impl<'a, M: Memory> Loader<'a, M> {
    fn new(
        descriptor: &'a Descriptor,
        source: &'a dyn WeightSource,
        memory: &'a mut M,
        on_progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Self {
        let n_bytes_total = source.infos().iter().map(|info| info.n_bytes).sum();
        Self {
            descriptor,
            source,
            memory,
            used: HashSet::new(),
            progress: LoadProgress {
                n_bytes_done: 0,
                n_bytes_total,
            },
            on_progress,
        }
    }

    fn network(&mut self) -> Result<Network<M>, LoadError> {
        let descriptor = self.descriptor;
        let (n_vocab, n_embd) = (descriptor.n_vocab, descriptor.n_embd);
        let is_tied = match descriptor.head {
            OutputHead::Own => false,
            OutputHead::Tied => true,
            OutputHead::OwnIfPresent => !self.source.contains("output.weight"),
        };
        let usage = if is_tied {
            MatrixUsage::Tied
        } else {
            MatrixUsage::Embedding
        };
        let token_embd = Linear {
            matrix: self.matrix("token_embd.weight", n_vocab, n_embd, usage)?,
            // The bias of a tied head is used with the head alone; looking up an embedding adds none.
            bias: if is_tied {
                self.vector("output.bias", n_vocab, descriptor.head_bias)?
            } else {
                None
            },
            n_out: n_vocab,
            n_in: n_embd,
        };
        let ropes = (0..descriptor.ropes.len())
            .map(|rope_idx| self.rope(rope_idx))
            .collect::<Result<_, _>>()?;
        let layers = (descriptor.layers.iter().enumerate())
            .map(|(layer_idx, layer)| self.layer(layer_idx, layer))
            .collect::<Result<_, _>>()?;
        let output = if is_tied {
            None
        } else {
            Some(self.linear("output", n_vocab, n_embd, descriptor.head_bias)?)
        };
        Ok(Network {
            token_embd,
            embedding_scale: descriptor.embedding_scale,
            ropes,
            layers,
            residual_scale: descriptor.residual_scale,
            output_norm: self.norm("output_norm", n_embd, descriptor.norm)?,
            output,
            logit_scale: descriptor.logit_scale,
            logit_softcap: descriptor.logit_softcap,
        })
    }

    fn rope(&mut self, rope_idx: usize) -> Result<Rope<M::Vector>, LoadError> {
        let rope = &self.descriptor.ropes[rope_idx];
        let factors = if rope.has_freq_factors {
            self.values("rope_freqs.weight", rope.n_dims / 2, Presence::Optional)?
        } else {
            None
        };
        // The frequencies are divided by them.
        let values = factors.as_deref().unwrap_or_default();
        if let Some(index) = values.iter().position(|&factor| factor <= 0.0) {
            return Err(LoadError::NotPositive {
                name: "rope_freqs.weight".to_owned(),
                index,
                value: values[index],
            });
        }
        let (inv_freqs, magnitude) = rope.frequencies(factors.as_deref());
        Ok(Rope {
            style: rope.style,
            head_dim: rope.head_dim,
            n_dims: rope.n_dims,
            inv_freqs: self.memory.upload_vector(&inv_freqs)?,
            magnitude,
        })
    }

    fn layer(&mut self, layer_idx: usize, layer: &LayerDescriptor) -> Result<Layer<M>, LoadError> {
        let n_embd = self.descriptor.n_embd;
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        let attention = &layer.attention;
        let q_width = attention.n_heads * attention.head_dim_k;
        let k_width = attention.n_kv_heads * attention.head_dim_k;
        let v_width = attention.n_kv_heads * attention.head_dim_v;
        let norms = layer.norms;
        let has_ffn_norm = norms.has_pre() && layer.residual != Residual::Parallel;
        let sinks = if attention.has_sinks {
            self.vector(&name("attn_sinks.weight"), attention.n_heads, Presence::Required)?
        } else {
            None
        };
        Ok(Layer {
            attn_norm: self.norm_if(norms.has_pre(), &name("attn_norm"))?,
            attn_q: self.linear(&name("attn_q"), q_width, n_embd, attention.qkv_bias)?,
            attn_k: self.linear(&name("attn_k"), k_width, n_embd, attention.qkv_bias)?,
            attn_v: self.linear(&name("attn_v"), v_width, n_embd, attention.qkv_bias)?,
            attn_q_norm: self.qk_norm(
                &name("attn_q_norm"),
                attention.qk_norm,
                attention.head_dim_k,
                q_width,
            )?,
            attn_k_norm: self.qk_norm(
                &name("attn_k_norm"),
                attention.qk_norm,
                attention.head_dim_k,
                k_width,
            )?,
            rope: attention.rope,
            attention: Attention {
                layer_idx,
                n_heads: attention.n_heads,
                scale: attention.scale,
                window: attention.window,
                softcap: attention.softcap,
                sinks,
            },
            attn_output: self.linear(
                &name("attn_output"),
                n_embd,
                attention.n_heads * attention.head_dim_v,
                attention.output_bias,
            )?,
            attn_post_norm: self.norm_if(norms.has_post(), &name("post_attention_norm"))?,
            residual: layer.residual,
            ffn_norm: self.norm_if(has_ffn_norm, &name("ffn_norm"))?,
            ffn: Ffn {
                activation: layer.ffn.activation,
                gate: if layer.ffn.is_gated {
                    Some(self.linear(&name("ffn_gate"), layer.ffn.n_ff, n_embd, layer.ffn.bias)?)
                } else {
                    None
                },
                up: self.linear(&name("ffn_up"), layer.ffn.n_ff, n_embd, layer.ffn.bias)?,
                down: self.linear(&name("ffn_down"), n_embd, layer.ffn.n_ff, layer.ffn.bias)?,
                post_norm: self.norm_if(norms.has_post(), &name("post_ffw_norm"))?,
            },
        })
    }

    fn qk_norm(
        &mut self,
        name: &str,
        kind: Option<QkNorm>,
        head_dim: usize,
        row_width: usize,
    ) -> Result<Option<Norm<M::Vector>>, LoadError> {
        let width = match kind {
            None => return Ok(None),
            Some(QkNorm::Head) => head_dim,
            Some(QkNorm::Row) => row_width,
        };
        let norm = NormDescriptor {
            kind: NormKind::Rms,
            eps: self.descriptor.norm.eps,
            bias: Presence::Absent,
        };
        self.norm(name, width, norm).map(Some)
    }

    fn norm_if(&mut self, is_present: bool, name: &str) -> Result<Option<Norm<M::Vector>>, LoadError> {
        if !is_present {
            return Ok(None);
        }
        let descriptor = self.descriptor;
        self.norm(name, descriptor.n_embd, descriptor.norm).map(Some)
    }

    fn norm(&mut self, name: &str, width: usize, norm: NormDescriptor) -> Result<Norm<M::Vector>, LoadError> {
        Ok(Norm {
            kind: norm.kind,
            width,
            weight: self.vector(&format!("{name}.weight"), width, Presence::Required)?,
            bias: self.vector(&format!("{name}.bias"), width, norm.bias)?,
            eps: norm.eps,
        })
    }

    fn linear(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
        bias: Presence,
    ) -> Result<Linear<M::Matrix, M::Vector>, LoadError> {
        Ok(Linear {
            matrix: self.matrix(&format!("{name}.weight"), n_out, n_in, MatrixUsage::Linear)?,
            bias: self.vector(&format!("{name}.bias"), n_out, bias)?,
            n_out,
            n_in,
        })
    }

    fn matrix(
        &mut self,
        name: &str,
        n_out: usize,
        n_in: usize,
        usage: MatrixUsage,
    ) -> Result<M::Matrix, LoadError> {
        let source = self.source;
        let tensor = source.tensor(name).ok_or_else(|| LoadError::MissingTensor {
            name: name.to_owned(),
        })?;
        check_shape(name, &tensor.dims, &[n_in, n_out])?;
        let matrix = self.memory.upload_matrix(&MatrixData {
            name,
            ty: tensor.ty,
            n_out,
            n_in,
            bytes: tensor.bytes,
            usage,
        })?;
        self.mark_used(name, tensor.bytes.len());
        Ok(matrix)
    }

    fn vector(&mut self, name: &str, len: usize, presence: Presence) -> Result<Option<M::Vector>, LoadError> {
        match self.values(name, len, presence)? {
            Some(values) => Ok(Some(self.memory.upload_vector(&values)?)),
            None => Ok(None),
        }
    }

    /// The numbers of a vector, checked.
    fn values(&mut self, name: &str, len: usize, presence: Presence) -> Result<Option<Vec<f32>>, LoadError> {
        if presence == Presence::Absent {
            return Ok(None);
        }
        let source = self.source;
        let Some(tensor) = source.tensor(name) else {
            if presence == Presence::Optional {
                return Ok(None);
            }
            return Err(LoadError::MissingTensor {
                name: name.to_owned(),
            });
        };
        check_shape(name, &tensor.dims, &[len])?;
        let bytes = tensor.bytes.to_vec().map_err(|source| LoadError::ReadTensor {
            name: name.to_owned(),
            source,
        })?;
        let values = decode_vector(name, tensor.ty, &bytes)?;
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            return Err(LoadError::NotFinite {
                name: name.to_owned(),
                index,
                value: values[index],
            });
        }
        self.mark_used(name, tensor.bytes.len());
        Ok(Some(values))
    }

    fn mark_used(&mut self, name: &str, n_bytes: usize) {
        if self.used.insert(name.to_owned()) {
            self.progress.n_bytes_done += n_bytes;
            (self.on_progress)(self.progress);
        }
    }

    fn check_all_used(&self) -> Result<(), LoadError> {
        let unused = (self.source.infos().into_iter())
            .map(|info| info.name)
            .find(|name| !self.used.contains(name) && !is_redundant(name, self.descriptor));
        match unused {
            None => Ok(()),
            Some(name) => Err(LoadError::UnusedTensor {
                name,
                arch: self.descriptor.arch.clone(),
            }),
        }
    }
}

/// Whether a tensor repeats what is known without it.
fn is_redundant(name: &str, descriptor: &Descriptor) -> bool {
    // Early converters stored the plain rope frequencies; some files repeat a tied head.
    name.ends_with(".attn_rot_embd") || name.ends_with(".rotary_emb.inv_freq") || {
        descriptor.head == OutputHead::Tied && name == "output.weight"
    }
}

fn check_shape(name: &str, found: &[usize], expected: &[usize]) -> Result<(), LoadError> {
    // Trailing dimensions of 1 mean nothing.
    let significant = |dims: &[usize]| -> Vec<usize> {
        let len = dims.iter().rposition(|&dim| dim != 1).map_or(1, |last| last + 1);
        dims[..len.min(dims.len())].to_vec()
    };
    if significant(found) == significant(expected) {
        return Ok(());
    }
    Err(LoadError::WrongShape {
        name: name.to_owned(),
        expected: expected.to_vec(),
        found: found.to_vec(),
    })
}

fn decode_vector(name: &str, ty: TensorType, bytes: &[u8]) -> Result<Vec<f32>, LoadError> {
    let pairs = || (bytes.chunks_exact(2)).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    match ty {
        TensorType::F32 => Ok((bytes.chunks_exact(4))
            .map(|quad| f32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]]))
            .collect()),
        TensorType::F16 => Ok(pairs().map(|bits| f16::from_bits(bits).to_f32()).collect()),
        TensorType::BF16 => Ok(pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect()),
        other => Err(LoadError::VectorType {
            name: name.to_owned(),
            found: other.name(),
        }),
    }
}
