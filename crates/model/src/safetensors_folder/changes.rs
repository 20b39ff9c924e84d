//! Changes of a folder's tensors on their way to the network: [`apply`] and [`multiply`].
//!
//! Invariant: a change returns a view, and reads nothing.

use half::{bf16, f16};
use tokenmill_gguf::{ReadAt, TensorType};

use super::Entry;
use crate::{
    Descriptor, RowFactors, WeightInfo,
    hf_layout::Change,
    tensor_view::{Filled, Mapped, Reordered, Transposed},
};

/// Returns whether the experts' matrices, with gate and up joined, already have inputs along their rows.
fn has_inputs_last(entry: &Entry, descriptor: &Descriptor) -> bool {
    let moe = (descriptor.layers.iter()).find_map(|layer| layer.ffn.moe());
    let n_ff = moe.map_or(0, |moe| moe.n_ff);
    let expected = if entry.info.name.ends_with("ffn_down_exps.weight") {
        [n_ff, descriptor.n_embd]
    } else {
        [descriptor.n_embd, n_ff.saturating_mul(2)]
    };
    entry.info.dims.starts_with(&expected)
}

/// Changes the numbers of a tensor.
pub(super) fn apply(change: Change, entry: Entry, descriptor: &Descriptor) -> Result<Entry, String> {
    if change == Change::TransposeExpertsIfNeeded && has_inputs_last(&entry, descriptor) {
        return Ok(entry);
    }
    let Entry { mut info, bytes } = entry;
    let element_bytes = if info.ty == TensorType::F32 { 4 } else { 2 };
    let bytes: Box<dyn ReadAt> = match change {
        Change::TransposeExperts if info.ty == TensorType::MXFP4 => bytes,
        Change::TransposeExperts | Change::TransposeExpertsIfNeeded => {
            let &[n_out, n_in, _] = &info.dims[..] else {
                return Err(format!(
                    "tensor `{}` has shape {:?}, expected experts",
                    info.name, info.dims
                ));
            };
            info.dims.swap(0, 1);
            Box::new(Transposed {
                source: bytes,
                n_rows: n_out,
                n_cols: n_in,
                element_bytes,
            })
        }
        Change::SplitPairs => {
            // The rows of each expert's matrix, or the numbers of a vector.
            let [n_pairs, n_experts] = match info.dims[..] {
                [_, n_rows, n_experts] | [n_rows, n_experts] => [n_rows / 2, n_experts],
                _ => [0, 0],
            };
            if n_pairs == 0 || n_experts == 0 {
                return Err(format!(
                    "tensor `{}` has shape {:?}, expected experts",
                    info.name, info.dims
                ));
            }
            let of_expert = |expert: usize| {
                let rows =
                    move |first: usize| (0..n_pairs).map(move |pair| (expert * n_pairs + pair) * 2 + first);
                rows(0).chain(rows(1))
            };
            Box::new(Reordered {
                source: bytes,
                order: (0..n_experts).flat_map(of_expert).collect(),
                row_bytes: info.n_bytes / (2 * n_pairs * n_experts),
            })
        }
        Change::AddOne => return Ok(map(Entry { info, bytes }, Box::new(|_, x| x + 1.0))),
        Change::NegExp => return Ok(map(Entry { info, bytes }, Box::new(|_, x| -x.exp()))),
        Change::SplitGroups => {
            let mut models = (descriptor.layers.iter()).filter_map(|layer| layer.mixer.ssm());
            let n_groups = models.next().map_or(0, |ssm| ssm.n_groups);
            match info.dims[..] {
                [width] if n_groups > 0 && width.is_multiple_of(n_groups) => {
                    info.dims = vec![width / n_groups, n_groups];
                }
                _ => {
                    return Err(format!(
                        "tensor `{}` has shape {:?}, expected one number for each channel of {n_groups} groups",
                        info.name, info.dims
                    ));
                }
            }
            bytes
        }
        Change::Transpose => {
            let &[n_rows, n_cols] = &info.dims[..] else {
                return Err(format!(
                    "tensor `{}` has shape {:?}, expected a matrix",
                    info.name, info.dims
                ));
            };
            info.dims = vec![n_cols, n_rows];
            Box::new(Transposed {
                source: bytes,
                n_rows,
                n_cols,
                element_bytes,
            })
        }
        Change::FillVocabulary => {
            let n_rows = info.dims.last().copied().unwrap_or(0);
            if n_rows == 0 || n_rows >= descriptor.n_vocab {
                return Ok(Entry { info, bytes });
            }
            let row_bytes = info.n_bytes / n_rows;
            info.n_bytes = row_bytes
                .checked_mul(descriptor.n_vocab)
                .ok_or("a tensor is absurdly large")?;
            info.dims.pop();
            info.dims.push(descriptor.n_vocab);
            // The vocabulary's size has not been checked against a tensor yet, so nothing is allocated for
            // it.
            Box::new(Filled {
                source: bytes,
                n_rows,
                n_all_rows: descriptor.n_vocab,
                row_bytes,
            })
        }
        Change::SkipRows(n_skipped) => {
            let n_rows = info.dims.last().copied().unwrap_or(0);
            if n_rows <= n_skipped {
                return Err(format!(
                    "tensor `{}` has {n_rows} rows, expected more than {n_skipped}",
                    info.name
                ));
            }
            let row_bytes = info.n_bytes / n_rows;
            info.dims.pop();
            info.dims.push(n_rows - n_skipped);
            info.n_bytes -= n_skipped * row_bytes;
            Box::new(Reordered {
                source: bytes,
                order: (n_skipped..n_rows).collect(),
                row_bytes,
            })
        }
        Change::UngroupQkv => {
            let expected = descriptor.attentions().next().map_or(0, |attention| {
                let n_heads = (attention.n_kv_heads.saturating_mul(2)).saturating_add(attention.n_heads);
                n_heads.saturating_mul(attention.head_dim_k)
            });
            let n_rows = info.dims.last().copied().unwrap_or(0);
            if expected != n_rows || n_rows == 0 {
                return Err(format!(
                    "tensor `{}` has {n_rows} rows, expected {expected}, the queries, keys and values of all heads",
                    info.name
                ));
            }
            let order = ungrouped_rows(descriptor).unwrap_or_default();
            Box::new(Reordered {
                source: bytes,
                order,
                row_bytes: info.n_bytes / n_rows,
            })
        }
    };
    Ok(Entry { info, bytes })
}

/// Applies a function of the row index and the number to all numbers, which become F32.
pub(super) fn map(entry: Entry, function: Box<dyn Fn(usize, f32) -> f32 + Send + Sync>) -> Entry {
    let (info, bytes) = mapped(entry.info, entry.bytes, function);
    Entry { info, bytes }
}

/// Does the same as [`map`], for the parts of a tensor.
pub(crate) fn mapped(
    mut info: WeightInfo,
    bytes: Box<dyn ReadAt>,
    function: Box<dyn Fn(usize, f32) -> f32 + Send + Sync>,
) -> (WeightInfo, Box<dyn ReadAt>) {
    let (decode, element_bytes): (fn(&[u8]) -> f32, usize) = match info.ty {
        TensorType::F16 => (|bytes| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(), 2),
        TensorType::BF16 => (|bytes| bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(), 2),
        _ => (
            |bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            4,
        ),
    };
    (info.ty, info.n_bytes) = (TensorType::F32, info.n_bytes / element_bytes * 4);
    let n_cols = info.dims.first().copied().unwrap_or(1).max(1);
    let view = Mapped {
        source: bytes,
        decode,
        element_bytes,
        n_cols,
        map: function,
    };
    (info, Box::new(view))
}

/// Multiplies the rows of a matrix.
pub(super) fn multiply(factors: &RowFactors, entry: Entry) -> Result<Entry, String> {
    let n_rows: usize = factors.rows.iter().map(|(n_rows, _)| n_rows).sum();
    if entry.info.dims.len() != 2 || entry.info.dims[1] != n_rows {
        return Err(format!(
            "tensor `{}` has shape {:?}, expected {n_rows} rows",
            entry.info.name, entry.info.dims
        ));
    }
    let rows: Vec<f32> = (factors.rows.iter())
        .flat_map(|&(n_rows, factor)| std::iter::repeat_n(factor, n_rows))
        .collect();
    if rows.iter().all(|&factor| factor == 1.0) {
        return Ok(entry);
    }
    Ok(map(entry, Box::new(move |row, x| x * rows[row])))
}

/// Returns, for each row of all queries, all keys and all values, its index among rows grouped by KV head.
pub(crate) fn ungrouped_rows(descriptor: &Descriptor) -> Option<Vec<usize>> {
    let attention = descriptor.attentions().next()?;
    let (head_dim, n_kv_heads) = (attention.head_dim_k, attention.n_kv_heads);
    let queries = attention.n_heads / n_kv_heads;
    let group = queries + 2;
    let rows_of = |heads: std::ops::Range<usize>| {
        (0..n_kv_heads)
            .flat_map(move |kv_head| heads.clone().map(move |head| kv_head * group + head))
            .flat_map(move |head| head * head_dim..(head + 1) * head_dim)
    };
    let queries_and_keys = rows_of(0..queries).chain(rows_of(queries..queries + 1));
    Some(queries_and_keys.chain(rows_of(queries + 1..group)).collect())
}
