//! [`StateStore`]: the recurrent memory of every sequence, in slots.
//!
//! Unlike the KV store, a state is rewritten at every token. A layer keeps its slots as rows, so that a part
//! of the columns, one group of channels in every slot, belongs to one thread. Invariant: a step reads a slot
//! before its sequence's first token and writes slots that no other sequence of the step accesses; the batch
//! was checked for this.

use std::ops::Range;

use tokenmill_backend::{ForwardBatch, SeqState, StateLayout};

use tokenmill_cpu_kernels::MAX_LANES;

use crate::{CpuExecError, pool::Patch, zeroed};

/// The states of all layers, in `n_states` slots. The system provides the memory as slots are first used.
#[derive(Debug)]
pub struct StateStore {
    layers: Vec<LayerStates>,
}

/// The states of one layer.
#[derive(Debug)]
pub(crate) struct LayerStates {
    /// `[n_states, conv_len]`.
    pub(crate) conv: Vec<f32>,
    /// `[n_states, matrix_len]`.
    pub(crate) matrix: Vec<f32>,
    pub(crate) conv_len: usize,
    pub(crate) matrix_len: usize,
}

/// The sequences of a step, and the slots of their states.
#[derive(Clone, Copy, Debug)]
pub struct StepStates<'a> {
    /// The position of each token.
    pub positions: &'a [u32],
    /// The offsets of the sequences in the tokens, `[n_seqs + 1]`.
    pub seq_starts: &'a [u32],
    /// The slots of each sequence.
    pub states: &'a [SeqState],
}

impl StateStore {
    /// Allocates slots.
    ///
    /// # Errors
    /// [`CpuExecError::OutOfMemory`].
    pub fn new(layout: &StateLayout) -> Result<Self, CpuExecError> {
        let rows = |len: usize| zeroed(layout.n_states.saturating_mul(len), "recurrent states");
        let layers = layout.layers.iter().map(|layer| {
            Ok::<_, CpuExecError>(LayerStates {
                conv: rows(layer.conv_len)?,
                matrix: rows(layer.matrix_len)?,
                conv_len: layer.conv_len,
                matrix_len: layer.matrix_len,
            })
        });
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the number of bytes of a slot, over all layers.
    pub(crate) fn bytes_of_slot(&self) -> usize {
        let values = |layer: &LayerStates| layer.conv_len + layer.matrix_len;
        self.layers.iter().map(values).sum::<usize>() * size_of::<f32>()
    }

    /// Appends a slot to `bytes`: layer by layer its convolution and its matrices.
    pub(crate) fn read_slot(&self, slot: u32, bytes: &mut Vec<u8>) {
        for layer in &self.layers {
            for (values, len) in [(&layer.conv, layer.conv_len), (&layer.matrix, layer.matrix_len)] {
                let row = &values[slot as usize * len..][..len];
                bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    }

    /// Writes a slot that [`Self::read_slot`] returned.
    pub(crate) fn write_slot(&mut self, slot: u32, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.bytes_of_slot(), "bytes of a state");
        let (mut words, _) = bytes.as_chunks::<4>();
        for layer in &mut self.layers {
            let parts = [
                (&mut layer.conv, layer.conv_len),
                (&mut layer.matrix, layer.matrix_len),
            ];
            for (values, len) in parts {
                let (own, rest) = words.split_at(len);
                for (value, word) in values[slot as usize * len..][..len].iter_mut().zip(own) {
                    *value = f32::from_le_bytes(*word);
                }
                words = rest;
            }
        }
    }

    pub(crate) fn layer(&mut self, state_idx: usize) -> &mut LayerStates {
        &mut self.layers[state_idx]
    }
}

/// A sequence's tokens and slots.
pub(crate) struct Run {
    pub(crate) tokens: Range<usize>,
    /// The slot of the state before the first token; `None` for zeros.
    pub(crate) from: Option<usize>,
    pub(crate) to: usize,
    /// The token after which a snapshot is saved, and its slot.
    pub(crate) save: Option<(usize, usize)>,
}

impl<'a> StepStates<'a> {
    /// Returns the states of a batch's sequences.
    pub fn of(batch: &'a ForwardBatch) -> Self {
        Self {
            positions: &batch.positions,
            seq_starts: &batch.seq_starts,
            states: &batch.states,
        }
    }

    /// Returns each sequence's part of the step.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> {
        let bounds = self.seq_starts.windows(2);
        bounds.zip(self.states).map(|(bounds, state)| {
            let tokens = bounds[0] as usize..bounds[1] as usize;
            let first = self.positions[tokens.start];
            let token_of = |n_tokens: u32| tokens.start + (n_tokens - 1 - first) as usize;
            Run {
                from: (first > 0).then_some(state.from as usize),
                to: state.to as usize,
                save: state
                    .save
                    .map(|save| (token_of(save.n_tokens), save.slot as usize)),
                tokens,
            }
        })
    }
}

impl Run {
    /// Returns the tokens in blocks of at most `max_tokens`. A block ends where a snapshot is saved; it then
    /// comes with the snapshot's slot.
    pub(crate) fn blocks(&self, max_tokens: usize) -> impl Iterator<Item = (Range<usize>, Option<usize>)> {
        let (end, save) = (self.tokens.end, self.save);
        let mut first = self.tokens.start;
        std::iter::from_fn(move || {
            let start = first;
            let save = save.filter(|&(token, _)| start <= token);
            first = end.min(start + max_tokens);
            if let Some((token, _)) = save {
                first = first.min(token + 1);
            }
            let slot = save.and_then(|(token, slot)| (token + 1 == first).then_some(slot));
            (start < end).then_some((start..first, slot))
        })
    }
}

/// Copies the state before a sequence's first token to the slot to be written.
pub(crate) fn begin(states: &mut Patch<'_, f32>, run: &Run) {
    match run.from {
        Some(from) if from != run.to => states.copy_row(from, run.to),
        Some(_) => {}
        None => states.row(run.to).fill(0.0),
    }
}

/// The number of tokens that one pass of a recurrence takes.
pub(crate) const RUN_TOKENS: usize = 16;

/// Returns the number of channels that are adjacent in a recurrence's state, if `width` channels
/// belong together.
pub(crate) fn lanes_of(width: usize) -> usize {
    (1 << width.trailing_zeros().min(31)).min(MAX_LANES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_where_a_snapshot_is_kept() {
        let check = |tokens: Range<usize>, save, expected: &[(Range<usize>, Option<usize>)]| {
            let run = Run {
                tokens,
                from: None,
                to: 0,
                save,
            };
            assert_eq!(run.blocks(4).collect::<Vec<_>>(), expected);
        };
        check(3..3, None, &[]);
        check(3..12, None, &[(3..7, None), (7..11, None), (11..12, None)]);
        check(
            3..12,
            Some((8, 5)),
            &[(3..7, None), (7..9, Some(5)), (9..12, None)],
        );
        check(3..8, Some((6, 5)), &[(3..7, Some(5)), (7..8, None)]);
        check(3..5, Some((3, 5)), &[(3..4, Some(5)), (4..5, None)]);
        check(0..4, Some((3, 5)), &[(0..4, Some(5))]);
    }
}
