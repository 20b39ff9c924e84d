//! Converts a folder's tensors to the form of the GGUF file made from it:
//! [`SafetensorsFolder::into_gguf_form`].
//!
//! Other changes apply on every use of a folder. Invariant: a change returns views; it reads only numbers
//! that become keys.

use std::{collections::BTreeMap, io, sync::Arc};

use tokenmill_gguf::{ReadAt, TensorType};

use super::{Entry, SafetensorsFolder, changes::map};
use crate::{
    AttentionDescriptor, DeltaNetDescriptor, Descriptor, LoadError, MixerDescriptor, PooledOutput, QkNorm,
    Residual, RopeScaling, WeightInfo,
    arch::GgufForm,
    hf_layout::Recast,
    tensor_view::{Reordered, Transposed},
};

/// Metadata lists by key, with one number per layer.
pub(crate) type LayerNumbers = BTreeMap<&'static str, Vec<f32>>;

/// A view that several tensors share.
struct Shared(Arc<dyn ReadAt>);

impl ReadAt for Shared {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(offset, out)
    }
}

/// Bytes in memory.
struct Owned(Vec<u8>);

impl ReadAt for Owned {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.as_slice().read_exact_at(offset, out)
    }
}

/// Divisor for frequencies that must not rotate: converters write it for infinity.
const NEVER: f32 = 1e30;

impl SafetensorsFolder {
    /// Converts all tensors to the form of a GGUF file; returns the numbers that are metadata there.
    pub(crate) fn into_gguf_form(
        mut self,
        form: &GgufForm,
        descriptor: &Descriptor,
    ) -> Result<(Self, LayerNumbers), LoadError> {
        let mut numbers = LayerNumbers::new();
        for &(end, recast) in form.recasts() {
            let names: Vec<String> = (self.tensors.keys())
                .filter(|name| ends_with(name, end))
                .cloned()
                .collect();
            for name in names {
                let Some(entry) = self.tensors.remove(&name) else {
                    continue;
                };
                let stem = &name[..name.len() - end.len()];
                match recast {
                    Recast::OfClassifier => {
                        let is_ranked = descriptor.pooling.as_ref();
                        if is_ranked.is_some_and(|pooling| pooling.output == PooledOutput::Rank) {
                            self.insert(name, entry);
                        }
                    }
                    Recast::IntoKey(key) => {
                        let number = only_number(&name, &entry)?;
                        numbers.entry(key).or_default().push(number);
                    }
                    _ => {
                        let recast = recast_one(recast, stem, end, entry, descriptor);
                        let recast = recast.map_err(|expected| LoadError::BadValue {
                            what: "form of a tensor",
                            found: name.clone(),
                            expected,
                        })?;
                        for (name, entry) in recast {
                            self.insert(name, entry);
                        }
                    }
                }
            }
        }
        self.add_rope_factors(descriptor);
        if form.has_plain_norms() {
            self.add_plain_norms(descriptor);
        }
        Ok((self, numbers))
    }

    fn insert(&mut self, name: String, mut entry: Entry) {
        entry.info.name.clone_from(&name);
        self.tensors.insert(name, entry);
    }

    fn insert_numbers(&mut self, name: &str, numbers: &[f32]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let info = WeightInfo {
            name: name.to_owned(),
            ty: TensorType::F32,
            dims: vec![numbers.len()],
            n_bytes: bytes.len(),
            stored: None,
        };
        self.insert(
            name.to_owned(),
            Entry {
                info,
                bytes: Box::new(Owned(bytes)),
            },
        );
    }

    /// Adds weights for query and key norms without any: files store the score scale there.
    fn add_plain_norms(&mut self, descriptor: &Descriptor) {
        for (layer_idx, layer) in descriptor.layers.iter().enumerate() {
            let attention = layer.mixer.attention();
            let Some(attention) = attention.filter(|own| own.qk_norm == Some(QkNorm::PlainHead)) else {
                continue;
            };
            for (name, number) in [("q", score_scale(attention)), ("k", 1.0)] {
                let name = format!("blk.{layer_idx}.attn_{name}_norm.weight");
                self.insert_numbers(&name, &vec![number; attention.head_dim_k]);
            }
        }
    }

    /// Adds the divisors of rope's frequencies, which files store as tensors.
    fn add_rope_factors(&mut self, descriptor: &Descriptor) {
        let Some(rope) = descriptor.ropes.first() else {
            return;
        };
        match &rope.scaling {
            RopeScaling::Llama3 { .. } => {
                self.insert_numbers("rope_freqs.weight", &rope.llama3_divisors());
            }
            RopeScaling::Proportional { n_rotated } => {
                let divisors: Vec<f32> = (0..rope.n_dims / 2)
                    .map(|pair| if pair < n_rotated / 2 { 1.0 } else { NEVER })
                    .collect();
                self.insert_numbers("rope_freqs.weight", &divisors);
            }
            RopeScaling::LongRope {
                factors: Some(factors),
                ..
            } => {
                self.insert_numbers("rope_factors_long.weight", &factors.long);
                self.insert_numbers("rope_factors_short.weight", &factors.short);
            }
            _ => {}
        }
    }
}

/// Returns whether a name ends with `end` at a dot.
fn ends_with(name: &str, end: &str) -> bool {
    name.strip_suffix(end)
        .is_some_and(|stem| stem.is_empty() || stem.ends_with('.'))
}

/// Returns the number of a tensor with a single one.
fn only_number(name: &str, entry: &Entry) -> Result<f32, LoadError> {
    let read_error = |source| LoadError::ReadTensor {
        name: name.to_owned(),
        source,
    };
    let decode = |bytes: [u8; 4]| match entry.info.ty {
        TensorType::F16 => Some(half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()),
        TensorType::BF16 => Some(half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()),
        TensorType::F32 => Some(f32::from_le_bytes(bytes)),
        _ => None,
    };
    let mut bytes = [0; 4];
    let n_bytes = entry.info.n_bytes.min(4);
    entry
        .bytes
        .read_exact_at(0, &mut bytes[..n_bytes])
        .map_err(read_error)?;
    let is_one = entry.info.dims.iter().product::<usize>() == 1;
    decode(bytes)
        .filter(|_| is_one)
        .ok_or_else(|| LoadError::WrongShape {
            name: name.to_owned(),
            expected: vec![1],
            found: entry.info.dims.clone(),
        })
}

type Recasted = Result<Vec<(String, Entry)>, &'static str>;

/// Changes one tensor; its name is `stem` followed by `end`. The error states what was expected.
fn recast_one(recast: Recast, stem: &str, end: &str, entry: Entry, descriptor: &Descriptor) -> Recasted {
    let renamed = |end: &str, entry| Ok(vec![(format!("{stem}{end}"), entry)]);
    let layer = || {
        let layer_idx = stem.strip_prefix("blk.")?.strip_suffix('.')?;
        descriptor.layers.get(layer_idx.parse::<usize>().ok()?)
    };
    let has_experts = || layer().is_some_and(|layer| layer.ffn.moe().is_some());
    let attention = || {
        let attention = layer().and_then(|layer| layer.mixer.attention());
        attention.ok_or("a tensor of attention")
    };
    let mut entry = entry;
    match recast {
        Recast::Rename(other) => return renamed(other, entry),
        Recast::RenameOfTwoNorms(other) => {
            let has_two = layer().is_some_and(|layer| layer.residual == Residual::ParallelTwoNorms);
            return renamed(if has_two { other } else { end }, entry);
        }
        Recast::OfClassifier | Recast::IntoKey(_) => {}
        Recast::AddOne => entry = map(entry, Box::new(|_, x| x + 1.0)),
        Recast::Squeeze => entry.info.dims.retain(|&dim| dim != 1),
        Recast::Column => {
            if entry.info.dims.len() == 1 {
                entry.info.dims.insert(0, 1);
            }
        }
        Recast::FourDims => {
            if entry.info.dims.len() < 4 {
                entry.info.dims.resize(4, 1);
            }
        }
        Recast::NeighbouringQueries => {
            let attention = attention()?;
            entry = neighbours(entry, attention.n_heads, attention)?;
        }
        Recast::NeighbouringKeys => {
            let attention = attention()?;
            entry = neighbours(entry, attention.n_kv_heads, attention)?;
        }
        Recast::Halves(ends) => {
            let n_matrices = n_matrices(&entry.info.dims, end);
            let parts = split(entry, n_matrices, &[1, 1])?;
            return Ok(ends.iter().map(|end| format!("{stem}{end}")).zip(parts).collect());
        }
        Recast::SharedGateAndUp => {
            let parts = split(entry, 1, &[1, 1])?;
            let end = if has_experts() { "_shexp" } else { "" };
            let names = ["gate", "up"].map(|name| format!("{stem}ffn_{name}{end}.weight"));
            return Ok(names.into_iter().zip(parts).collect());
        }
        Recast::SharedDown => {
            let end = if has_experts() { end } else { "ffn_down.weight" };
            return renamed(end, entry);
        }
        Recast::LatentKeysAndValues => {
            let latent = layer().and_then(|layer| layer.mixer.latent());
            let latent = latent.ok_or("a tensor of latent attention")?;
            let n_cols = entry.info.dims[0];
            let widths = [latent.plain_dim, latent.head_dim_v];
            let mut parts = split(entry, latent.n_heads, &widths)?.into_iter();
            let (Some(mut keys), Some(mut values)) = (parts.next(), parts.next()) else {
                return Err("keys and values");
            };
            keys.info.dims = vec![latent.plain_dim, n_cols, latent.n_heads];
            values.info.dims = vec![n_cols, latent.head_dim_v, latent.n_heads];
            keys.bytes = Box::new(Transposed {
                source: keys.bytes,
                n_rows: n_cols,
                n_cols: latent.plain_dim,
                element_bytes: element_bytes(keys.info.ty),
            });
            return Ok(vec![
                (format!("{stem}attn_k_b.weight"), keys),
                (format!("{stem}attn_v_b.weight"), values),
            ]);
        }
        Recast::DeltaInputs => {
            let net = delta_net(descriptor)?;
            let values = net.n_v_heads / net.n_k_heads.max(1) * net.head_dim_v;
            let widths = [net.head_dim_k, net.head_dim_k, values, values];
            let n_cols = entry.info.dims[0];
            let parts = split(entry, net.n_k_heads, &widths)?;
            let [queries, keys, values, gate] =
                <[Entry; 4]>::try_from(parts).map_err(|_| "queries, keys, values and a gate")?;
            let mut inputs = join_rows([queries, keys, values]);
            inputs.info.dims = vec![n_cols, inputs.info.dims[1]];
            let mut gate = gate;
            gate.info.dims = vec![n_cols, gate.info.dims[1..].iter().product()];
            return Ok(vec![
                (format!("{stem}attn_qkv.weight"), inputs),
                (format!("{stem}attn_gate.weight"), gate),
            ]);
        }
        Recast::TiledRows | Recast::TiledColumns => {
            // Attention layers have no heads of this kind.
            if layer().is_some_and(|layer| matches!(layer.mixer, MixerDescriptor::DeltaNet(_))) {
                let is_columns = recast == Recast::TiledColumns;
                entry = tile(entry, &delta_net(descriptor)?, is_columns)?;
            }
        }
        Recast::EmbeddingScale => entry = scaled(entry, descriptor.embedding_scale),
        Recast::LogitScale => entry = scaled(entry, descriptor.logit_scale),
        Recast::ScoreScale => {
            entry = scaled(entry, score_scale(attention()?));
        }
    }
    renamed(end, entry)
}

/// Returns the factor of the scores apart from the head width, rounded to remove the error of multiplying and
/// dividing by a square root.
fn score_scale(attention: &AttentionDescriptor) -> f32 {
    let factor = attention.scale * (attention.head_dim_k as f32).sqrt();
    format!("{factor:.6}").parse().unwrap_or(factor)
}

/// Returns the number of matrices in a tensor of experts; 1 for other tensors.
fn n_matrices(dims: &[usize], end: &str) -> usize {
    let is_vector_of_each = end.rsplit_once('.').is_some_and(|(_, part)| part == "bias");
    if is_vector_of_each && dims.len() == 2 {
        dims[1]
    } else {
        dims.iter().skip(2).product()
    }
}

fn element_bytes(ty: TensorType) -> usize {
    if ty == TensorType::F32 { 4 } else { 2 }
}

fn delta_net(descriptor: &Descriptor) -> Result<DeltaNetDescriptor, &'static str> {
    let nets = descriptor.layers.iter().map(|layer| &layer.mixer);
    let mut nets = nets.filter_map(|mixer| match mixer {
        MixerDescriptor::DeltaNet(net) => Some(*net),
        _ => None,
    });
    nets.next().ok_or("a tensor of a delta net")
}

/// Reorders the rows of a tensor.
fn reorder(entry: Entry, n_units: usize, order: Vec<usize>) -> Entry {
    Entry {
        bytes: Box::new(Reordered {
            source: entry.bytes,
            order,
            row_bytes: entry.info.n_bytes / n_units.max(1),
        }),
        info: entry.info,
    }
}

/// Makes rope pairs adjacent that are half a head apart.
fn neighbours(entry: Entry, n_heads: usize, attention: &AttentionDescriptor) -> Result<Entry, &'static str> {
    let head_dim = attention.head_dim_k;
    let n_rows = n_heads.saturating_mul(head_dim);
    let outermost = entry.info.dims.last().copied();
    if outermost != Some(n_rows) || n_rows == 0 || !head_dim.is_multiple_of(2) {
        return Err("a row for each value of each head");
    }
    let half = head_dim / 2;
    let order = (0..n_rows)
        .map(|row| {
            let (head, value) = (row / head_dim, row % head_dim);
            head * head_dim + value / 2 + if value % 2 == 0 { 0 } else { half }
        })
        .collect();
    Ok(reorder(entry, n_rows, order))
}

/// Splits the rows of each of `n_groups` groups into parts of these widths, and vectors in proportion. Each
/// result concatenates one part of all groups.
fn split(entry: Entry, n_groups: usize, widths: &[usize]) -> Result<Vec<Entry>, &'static str> {
    let dims = entry.info.dims.clone();
    let n_rows: usize = match dims[..] {
        // One vector per group.
        [width, n]
            if n == n_groups
                && n_groups > 1
                && dims.len() == 2
                && width % widths.len() == 0
                && widths == [1, 1] =>
        {
            width * n
        }
        _ => dims.iter().skip(1).product(),
    };
    let is_vectors = n_rows == entry_elements(&dims);
    let total: usize = widths.iter().sum();
    let group_rows = n_rows / n_groups.max(1);
    if n_groups == 0 || total == 0 || !n_rows.is_multiple_of(n_groups) || !group_rows.is_multiple_of(total) {
        return Err("rows for each part of each group");
    }
    let unit = group_rows / total;
    let row_bytes = entry.info.n_bytes / n_rows;
    let source: Arc<dyn ReadAt> = Arc::from(entry.bytes);
    let mut first = 0;
    let parts = widths.iter().map(|width| {
        let n = width * unit;
        let order: Vec<usize> = (0..n_groups)
            .flat_map(|group| (0..n).map(move |row| group * group_rows + row))
            .map(|row| row + first)
            .collect();
        first += n;
        let mut info = entry.info.clone();
        info.n_bytes = order.len() * row_bytes;
        info.dims = if is_vectors {
            vec![n, n_groups]
        } else if dims.len() > 2 {
            vec![dims[0], n, n_groups]
        } else {
            vec![dims[0], n * n_groups]
        };
        Entry {
            info,
            bytes: Box::new(Reordered {
                source: Box::new(Shared(Arc::clone(&source))),
                order,
                row_bytes,
            }),
        }
    });
    Ok(parts.collect())
}

fn entry_elements(dims: &[usize]) -> usize {
    dims.iter().product()
}

/// Stacks matrices with equal row lengths.
fn join_rows(parts: [Entry; 3]) -> Entry {
    let n_rows = parts
        .iter()
        .map(|part| part.info.dims[1..].iter().product::<usize>())
        .sum();
    let n_bytes = parts.iter().map(|part| part.info.n_bytes).sum();
    let mut info = parts[0].info.clone();
    (info.dims, info.n_bytes) = (vec![info.dims[0], n_rows], n_bytes);
    let parts = parts.map(|part| (part.info.n_bytes, part.bytes));
    Entry {
        info,
        bytes: Box::new(Stacked(parts.into_iter().collect())),
    }
}

/// Tensors of any length, concatenated.
struct Stacked(Vec<(usize, Box<dyn ReadAt>)>);

impl ReadAt for Stacked {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (mut offset, mut rest) = (offset as usize, out);
        for (len, part) in &self.0 {
            if offset < *len && !rest.is_empty() {
                let n = rest.len().min(len - offset);
                let (wanted, others) = rest.split_at_mut(n);
                part.read_exact_at(offset as u64, wanted)?;
                (offset, rest) = (0, others);
            } else {
                offset = offset.saturating_sub(*len);
            }
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// Reorders value heads: first by their index within a key head's group, then by key head.
fn tile(entry: Entry, net: &DeltaNetDescriptor, is_columns: bool) -> Result<Entry, &'static str> {
    let expected = "values for each head";
    let n_k_heads = net.n_k_heads.max(1);
    let per_key = net.n_v_heads / n_k_heads;
    let head = move |tiled: usize| tiled % n_k_heads * per_key + tiled / n_k_heads;
    let heads = move || (0..net.n_v_heads).map(head);
    let dims = &entry.info.dims;
    if is_columns {
        let (n_cols, n_rows) = (dims[0], dims.iter().skip(1).product::<usize>());
        if n_cols != net.n_v_heads.saturating_mul(net.head_dim_v) || n_cols == 0 {
            return Err(expected);
        }
        let order = (0..n_rows)
            .flat_map(|row| heads().map(move |head| row * net.n_v_heads + head))
            .collect();
        return Ok(reorder(entry, n_rows * net.n_v_heads, order));
    }
    let n_rows = dims.last().copied().unwrap_or(0);
    let n_values = net.n_v_heads.saturating_mul(net.head_dim_v);
    // The rows of queries and keys stay in place.
    let (n_before, width) = if n_rows == net.n_v_heads {
        (0, 1)
    } else if n_rows >= n_values && n_values > 0 {
        (n_rows - n_values, net.head_dim_v)
    } else {
        return Err(expected);
    };
    let order = (0..n_before)
        .chain(heads().flat_map(|head| (0..width).map(move |value| n_before + head * width + value)))
        .collect();
    Ok(reorder(entry, n_rows, order))
}

fn scaled(entry: Entry, factor: f32) -> Entry {
    if factor == 1.0 {
        return entry;
    }
    map(entry, Box::new(move |_, x| x * factor))
}
