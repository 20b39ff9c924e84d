//! [`Shard`]: the part of a network that one rank of a group computes.
//!
//! The network does not know that it is a part: a shard is a descriptor with fewer heads and narrower
//! feed-forward networks, and a source with parts of the whole network's tensors. Heads are divided evenly,
//! feed-forward networks as evenly as whole blocks of their types allow. Matrices that produce heads or inner
//! rows give a rank some of their rows. Matrices that read them give it the same columns; each rank's product
//! is then one term of a sum, which the program adds up over the ranks. Every rank has everything else
//! whole: embedding, norms, routers, and the head unless it is to be divided.
//!
//! Invariants: each divided weight is in the part of one rank, except KV heads that several ranks share and,
//! if the ranks do not divide the tokens, a few rows of the head that two ranks have; a bias added to a sum
//! is rank 0's, and zero elsewhere.

mod cut;
mod share;

use std::collections::BTreeMap;

use tokenmill_backend::{MemoryPlan, Weigh, program::ProgramDevice};
use tokenmill_gguf::TensorBytes;

use crate::{
    Descriptor, FfnDescriptor, HeadPart, LoadError, LoadProgress, MixerDescriptor, Model, ModelExecutor,
    ModelOptions, OutputHead, QkNorm, WeightInfo, WeightSource, WeightTensor, model::build, plan::plan,
};

use cut::{Cut, Zeros};
use share::{HeadShare, InnerShare};

/// A rank of a group that computes a network together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Index, from 0 on.
    pub idx: usize,
    /// Number of ranks.
    pub n_ranks: usize,
}

/// The part of a network that a rank holds.
pub struct Shard<'a> {
    rank: Rank,
    descriptor: Descriptor,
    source: &'a dyn WeightSource,
    own: BTreeMap<String, OwnTensor<'a>>,
}

impl Model {
    /// Returns the part of a rank when several devices compute the network together.
    ///
    /// # Errors
    /// As [`Shard::new`].
    pub fn shard(&self, rank: Rank) -> Result<Shard<'_>, LoadError> {
        Shard::new(self.descriptor(), self.weights(), rank)
    }
}

/// A tensor that is divided or replaced for the rank.
struct OwnTensor<'a> {
    info: WeightInfo,
    bytes: OwnBytes<'a>,
}

enum OwnBytes<'a> {
    Cut(Cut<'a>),
    Zeros(Zeros),
}

impl<'a> Shard<'a> {
    /// Creates the part of a rank.
    ///
    /// # Errors
    /// [`LoadError::NotDivisible`] for heads or networks that the ranks do not divide,
    /// [`LoadError::UnsupportedFeature`] for networks that cannot be divided this way,
    /// [`LoadError::WrongShape`] for tensors smaller than the descriptor says, [`LoadError::NotWholeBlocks`]
    /// for columns that would cut a block of their type, and errors of the descriptor.
    ///
    /// # Panics
    /// If the rank does not exist.
    pub fn new(descriptor: &Descriptor, source: &'a dyn WeightSource, rank: Rank) -> Result<Self, LoadError> {
        assert!(rank.idx < rank.n_ranks, "a rank of the group");
        descriptor.validate()?;
        check_kinds(descriptor)?;
        let mut shard = Self {
            rank,
            descriptor: descriptor.clone(),
            source,
            own: BTreeMap::new(),
        };
        if rank.n_ranks == 1 {
            return Ok(shard);
        }
        shard.descriptor.n_ranks = rank.n_ranks;
        for layer_idx in 0..descriptor.layers.len() {
            let divided = shard.divide_layer(layer_idx, rank);
            // Errors about a folder use the folder's own tensor names.
            divided.map_err(|error| error.with_own_name(source))?;
        }
        Ok(shard)
    }

    /// Divides the output head as well: each rank computes the logits of some tokens, and the ranks exchange
    /// them. A head tied to the embedding stays whole, since look-ups need all of it.
    ///
    /// # Errors
    /// [`LoadError::WrongShape`] for a head with fewer rows than the descriptor says.
    pub fn with_divided_head(mut self) -> Result<Self, LoadError> {
        let Rank { idx, n_ranks } = self.rank;
        let n_vocab = self.descriptor.n_vocab;
        let is_own = match self.descriptor.head {
            OutputHead::Own => true,
            OutputHead::OwnIfPresent => self.source.contains("output.weight"),
            OutputHead::Tied | OutputHead::Part(_) | OutputHead::None => false,
        };
        if n_ranks == 1 || !is_own {
            return Ok(self);
        }
        let n_each = n_vocab.div_ceil(n_ranks);
        // All ranks have equally many rows; if the ranks do not divide the tokens, the last ones overlap
        // those before.
        let first = (idx * n_each).min(n_vocab - n_each);
        let own = first..first + n_each;
        (self.cut_rows("output", std::slice::from_ref(&own)))
            .map_err(|error| error.with_own_name(self.source))?;
        self.descriptor.head = OutputHead::Part(HeadPart { n_each, n_ranks });
        Ok(self)
    }

    /// Returns the network that the rank computes.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Returns the memory that loading the part on `backend` will take.
    ///
    /// # Errors
    /// As [`Model::plan`](crate::Model::plan).
    pub fn plan(&self, backend: &dyn Weigh, options: &ModelOptions) -> Result<MemoryPlan, LoadError> {
        plan(&self.descriptor, self, backend, options)
    }

    /// Loads the part on a device.
    ///
    /// # Errors
    /// As [`Model::load_on`](crate::Model::load_on).
    pub fn load_on(
        &self,
        device: impl Into<Box<dyn ProgramDevice>>,
        options: &ModelOptions,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<ModelExecutor, LoadError> {
        build(&self.descriptor, self, device, options, on_progress)
    }

    fn divide_layer(&mut self, layer_idx: usize, rank: Rank) -> Result<(), LoadError> {
        let layer = self.descriptor.layers[layer_idx].clone();
        let name = |part: &str| format!("blk.{layer_idx}.{part}");
        if let Some(attention) = layer.mixer.attention() {
            let share = HeadShare::of(attention, layer_idx, rank)?;
            let rows = |width: usize, share: &HeadShare| share.queries(width);
            let (q, k, v) = (
                attention.q_width(),
                attention.k_width(),
                attention.n_kv_heads * attention.head_dim_v,
            );
            // The rows of queries may alternate with those of a gate, head by head.
            self.cut_rows(
                &name("attn_q"),
                &[rows(self.n_rows(&name("attn_q")).unwrap_or(q), &share)],
            )?;
            self.cut_rows(&name("attn_k"), &[share.keys(k)])?;
            self.cut_rows(&name("attn_v"), &[share.keys(v)])?;
            let joined = [
                share.queries(q),
                shifted(share.keys(k), q),
                shifted(share.keys(v), q + k),
            ];
            self.cut_rows(&name("attn_qkv"), &joined)?;
            let width = attention.n_heads * attention.head_dim_v;
            self.cut_rows(&name("attn_gate"), &[share.queries(width)])?;
            self.cut(&name("attn_sinks.weight"), 0, &[share.queries(attention.n_heads)])?;
            self.cut_columns(&name("attn_output"), share.queries(width), rank)?;
            let own = self.descriptor.layers[layer_idx].attention_mut();
            (own.n_heads, own.n_kv_heads) = share.counts();
        }
        match &layer.ffn {
            FfnDescriptor::None | FfnDescriptor::Beside(_) => {}
            FfnDescriptor::Dense(dense) => {
                let n_ff = self.divide_inner(layer_idx, "", dense.n_ff, rank)?;
                self.descriptor.layers[layer_idx].dense_mut().n_ff = n_ff;
            }
            FfnDescriptor::Moe(moe) => {
                let n_ff = self.divide_inner(layer_idx, "_exps", moe.n_ff, rank)?;
                let n_shared = match &moe.shared {
                    Some(shared) => Some(self.divide_inner(layer_idx, "_shexp", shared.dense.n_ff, rank)?),
                    None => None,
                };
                if let FfnDescriptor::Moe(own) = &mut self.descriptor.layers[layer_idx].ffn {
                    own.n_ff = n_ff;
                    if let (Some(shared), Some(n_shared)) = (&mut own.shared, n_shared) {
                        shared.dense.n_ff = n_shared;
                    }
                }
            }
        }
        Ok(())
    }

    /// Divides a feed-forward network, or that of each expert; returns the width of the rank's part.
    fn divide_inner(
        &mut self,
        layer_idx: usize,
        suffix: &str,
        n_ff: usize,
        rank: Rank,
    ) -> Result<usize, LoadError> {
        let name = |part: &str| format!("blk.{layer_idx}.{part}{suffix}");
        let down = self.file_name(&format!("{}.weight", name("ffn_down")));
        let block_len = self
            .source
            .tensor(&down)
            .map_or(1, |tensor| tensor.ty.block_len());
        let share = InnerShare::of(n_ff, block_len, rank, &down)?;
        for part in ["ffn_gate", "ffn_up", "ffn_gate_up"] {
            // If one tensor has both, the rows of one follow those of the other.
            let runs = if self.n_rows(&name(part)) == Some(2 * n_ff) {
                vec![share.range(), shifted(share.range(), n_ff)]
            } else {
                vec![share.range()]
            };
            self.cut_rows(&name(part), &runs)?;
        }
        self.cut_columns(&name("ffn_down"), share.range(), rank)?;
        Ok(share.len())
    }

    /// Returns the file's name of a tensor, given its usual name.
    fn file_name(&self, name: &str) -> String {
        let start = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.find('.'))
            .map_or(0, |dot| dot + 5);
        let (layer, part) = name.split_at(start);
        match self
            .descriptor
            .tensor_names
            .iter()
            .find(|(usual, _)| *usual == part)
        {
            Some((_, own)) if !self.source.contains(name) => format!("{layer}{own}"),
            _ => name.to_owned(),
        }
    }

    /// Returns the rows of a matrix, or of each expert's matrix.
    fn n_rows(&self, name: &str) -> Option<usize> {
        let tensor = self.source.tensor(&self.file_name(&format!("{name}.weight")))?;
        tensor.dims.get(1).copied()
    }

    /// Keeps some rows of a matrix, or of each expert's matrix, and the same part of its bias, if they exist.
    fn cut_rows(&mut self, name: &str, runs: &[std::ops::Range<usize>]) -> Result<(), LoadError> {
        self.cut(&format!("{name}.weight"), 1, runs)?;
        self.cut(&format!("{name}.bias"), 0, runs)
    }

    /// Keeps some columns of a matrix, or of each expert's matrix; rank 0 keeps the bias.
    fn cut_columns(
        &mut self,
        name: &str,
        columns: std::ops::Range<usize>,
        rank: Rank,
    ) -> Result<(), LoadError> {
        self.cut(&format!("{name}.weight"), 0, &[columns])?;
        let bias = self.file_name(&format!("{name}.bias"));
        if let Some(tensor) = self.source.tensor(&bias)
            && rank.idx > 0
        {
            let info = info_of(&bias, &tensor);
            let bytes = OwnBytes::Zeros(Zeros);
            self.own.insert(bias, OwnTensor { info, bytes });
        }
        Ok(())
    }

    /// Keeps some runs along a dimension of a tensor, if it exists.
    fn cut(&mut self, name: &str, axis: usize, runs: &[std::ops::Range<usize>]) -> Result<(), LoadError> {
        let name = self.file_name(name);
        let Some(tensor) = self.source.tensor(&name) else {
            return Ok(());
        };
        let mut info = info_of(&name, &tensor);
        let cut = Cut::new(&name, tensor, axis, runs)?;
        info.dims[axis] = runs.iter().map(ExactSizeIterator::len).sum();
        info.n_bytes = cut.n_bytes();
        let bytes = OwnBytes::Cut(cut);
        self.own.insert(name, OwnTensor { info, bytes });
        Ok(())
    }
}

fn shifted(range: std::ops::Range<usize>, by: usize) -> std::ops::Range<usize> {
    range.start + by..range.end + by
}

fn info_of(name: &str, tensor: &WeightTensor<'_>) -> WeightInfo {
    WeightInfo {
        name: name.to_owned(),
        ty: tensor.ty,
        dims: tensor.dims.clone(),
        n_bytes: tensor.bytes.len(),
        stored: None,
    }
}

/// Refuses, by name, networks with halves that are more than sums over heads or inner rows.
fn check_kinds(descriptor: &Descriptor) -> Result<(), LoadError> {
    let mixer = |layer: &crate::LayerDescriptor| match &layer.mixer {
        MixerDescriptor::None => None,
        MixerDescriptor::Attention(attention) => match attention.qk_norm {
            _ if attention.alibi.is_some() => Some("distances instead of positions (ALiBi)"),
            Some(QkNorm::Row | QkNorm::RowAsLayers) => Some("norms over the queries of all heads"),
            Some(QkNorm::EachHead) => Some("norms with weights for each head"),
            _ => None,
        },
        MixerDescriptor::Latent(_) => Some("latent attention"),
        _ => Some("recurrent layers"),
    };
    let ffn = |layer: &crate::LayerDescriptor| match &layer.ffn {
        FfnDescriptor::Beside(_) => Some("a dense network next to experts"),
        FfnDescriptor::Moe(moe) if moe.latent.is_some() => Some("experts with rows of their own"),
        ffn if ffn.dense().is_some_and(|dense| dense.cutoff.is_some()) => {
            Some("rows that are cut by their mean")
        }
        _ => None,
    };
    let of_network = [
        (descriptor.is_encoder(), "attention to both sides"),
        (descriptor.layer_embeddings.is_some(), "embeddings of each layer"),
        (descriptor.alt_up.is_some(), "several streams"),
    ];
    let found = (of_network.into_iter())
        .find_map(|(is_there, what)| is_there.then_some(what))
        .or_else(|| descriptor.layers.iter().find_map(mixer))
        .or_else(|| descriptor.layers.iter().find_map(ffn));
    match found {
        None => Ok(()),
        Some(what) => Err(LoadError::UnsupportedFeature {
            arch: descriptor.arch.clone(),
            feature: format!("{what}, divided among several devices,"),
        }),
    }
}

impl WeightSource for Shard<'_> {
    fn infos(&self) -> Vec<WeightInfo> {
        let mut infos = self.source.infos();
        for info in &mut infos {
            if let Some(own) = self.own.get(&info.name) {
                *info = own.info.clone();
            }
        }
        infos
    }

    fn contains(&self, name: &str) -> bool {
        self.source.contains(name)
    }

    fn own_name(&self, name: &str) -> Option<String> {
        self.source.own_name(name)
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        let Some(own) = self.own.get(name) else {
            return self.source.tensor(name);
        };
        let bytes = match &own.bytes {
            OwnBytes::Cut(cut) => TensorBytes::in_file(cut, 0, own.info.n_bytes),
            OwnBytes::Zeros(zeros) => TensorBytes::in_file(zeros, 0, own.info.n_bytes),
        };
        Some(WeightTensor {
            ty: own.info.ty,
            dims: own.info.dims.clone(),
            bytes,
        })
    }
}
