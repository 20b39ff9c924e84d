//! [`StateSlots`]: the recurrent memory of every sequence, in slots on the device.
//!
//! A state is rewritten at every token and never moves: a step reads one slot and writes another, as its inputs say. A layer is one
//! array of slots; a slot has the rows of its convolution, then its matrices, each padded so that both are aligned for the widest
//! loads (`kernels/states.cuh`). Invariant: [`StateSlots::slot_bytes`] returns the size of a slot to the byte.

use tokenmill_backend::{SeqState, StateLayerShape, StateLayout};

use crate::{Buffer, CudaExecError, Device, Pinned, Stream, ViewMut, driver::MAX_COUNT, error::Result};

/// Parts of a slot have a multiple of this many values: 256 bytes.
const PART_LEN: usize = 64;

/// Largest length of a row of a recurrent matrix in the kernels: 32 lanes keep 16 values each.
pub(crate) const MAX_ROW: usize = 512;

/// Words of the record that tells kernels where a sequence's state is.
pub const SLOT_RECORD_WORDS: usize = 4;
/// In a record: no slot, no token.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// Returns the record of a sequence whose first token in the step is `first_token`, at `first_position` of the sequence.
pub(crate) fn slot_record(
    state: SeqState,
    first_token: u32,
    first_position: u32,
) -> [u32; SLOT_RECORD_WORDS] {
    let from = if first_position == 0 { NO_SLOT } else { state.from };
    let [save_after, save] = state.save.map_or([NO_SLOT; 2], |save| {
        [first_token + (save.n_tokens - 1 - first_position), save.slot]
    });
    [from, state.to, save_after, save]
}

/// Returns whether the kernels take recurrent matrices with rows of `len` values.
pub(crate) fn check_row(len: usize) -> Result<()> {
    if len <= MAX_ROW {
        return Ok(());
    }
    Err(CudaExecError::Unsupported {
        feature: format!("recurrent states with rows of {len} values, only of up to {MAX_ROW}"),
    })
}

/// States of all layers.
#[derive(Debug)]
pub struct StateSlots {
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    slots: Buffer<f32>,
    shape: StateLayerShape,
}

/// A layer's states, to write.
#[derive(Debug)]
pub struct StateLayerMut<'a> {
    pub(crate) slots: ViewMut<'a, f32>,
    pub(crate) shape: StateLayerShape,
    /// Values of a slot.
    pub(crate) stride: usize,
    /// Offset of a slot's matrices.
    pub(crate) matrix_start: usize,
}

/// Returns the numbers of values of a slot's two parts.
fn part_lens(shape: StateLayerShape) -> [usize; 2] {
    // The plan rejects a length that overflows, since its sum exceeds the available memory.
    [shape.conv_len, shape.matrix_len].map(|len| len.checked_next_multiple_of(PART_LEN).unwrap_or(usize::MAX))
}

fn slot_len(shape: StateLayerShape) -> usize {
    let [conv_len, matrix_len] = part_lens(shape);
    conv_len.saturating_add(matrix_len)
}

impl StateSlots {
    /// Checks that kernels take the states of such a layer.
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] if a row or a slot is too long.
    pub fn check(shape: StateLayerShape) -> Result<()> {
        check_row(shape.matrix_row)?;
        let len = slot_len(shape);
        if len <= MAX_COUNT {
            return Ok(());
        }
        Err(CudaExecError::Unsupported {
            feature: format!("recurrent states of {len} values in a layer, only of up to {MAX_COUNT}"),
        })
    }

    /// Allocates the slots, without contents: a sequence begins without reading its slot.
    ///
    /// # Errors
    /// As [`Self::check`], [`CudaExecError::OutOfMemory`], or the driver's.
    pub fn new(device: &Device, layout: &StateLayout) -> Result<Self> {
        for &shape in &layout.layers {
            Self::check(shape)?;
        }
        let layers = layout.layers.iter().map(|&shape| {
            let len = slot_len(shape).saturating_mul(layout.n_states);
            Ok(Layer {
                slots: device.alloc("recurrent states", len)?,
                shape,
            })
        });
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
        })
    }

    /// Bytes of a slot, all layers.
    pub fn slot_bytes(layout: &StateLayout) -> usize {
        (layout.layers.iter())
            .map(|&shape| slot_len(shape))
            .fold(0, usize::saturating_add)
            .saturating_mul(size_of::<f32>())
    }

    /// Values of a slot, all layers.
    pub fn len_of_slot(&self) -> usize {
        self.layers.iter().map(|layer| slot_len(layer.shape)).sum()
    }

    /// Copies a slot to the front of `staging`, which has room for one, after the work queued so far.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn read_slot(&self, slot: u32, staging: &mut Pinned<f32>) -> Result<()> {
        let mut offset = 0;
        for layer in &self.layers {
            let len = slot_len(layer.shape);
            let start = slot as usize * len;
            let source = layer.slots.view().range(start..start + len)?;
            staging.download(Stream::Compute, source, offset..offset + len)?;
            offset += len;
        }
        Ok(())
    }

    /// Copies the front of `staging` to a slot, after the work queued so far.
    ///
    /// # Errors
    /// As [`Self::read_slot`].
    pub fn write_slot(&mut self, slot: u32, staging: &mut Pinned<f32>) -> Result<()> {
        let mut offset = 0;
        for layer in &mut self.layers {
            let len = slot_len(layer.shape);
            let start = slot as usize * len;
            let target = layer.slots.view_mut().range(start..start + len)?;
            staging.upload(Stream::Compute, offset..offset + len, &target)?;
            offset += len;
        }
        Ok(())
    }

    /// Returns a layer, to write.
    pub fn layer_mut(&mut self, state_idx: usize) -> StateLayerMut<'_> {
        let layer = &mut self.layers[state_idx];
        let [matrix_start, _] = part_lens(layer.shape);
        StateLayerMut {
            slots: layer.slots.view_mut(),
            shape: layer.shape,
            stride: slot_len(layer.shape),
            matrix_start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_whose_values_kernels_cannot_count_is_refused() {
        let check = |matrix_len, matrix_row| {
            StateSlots::check(StateLayerShape {
                conv_len: 64,
                matrix_len,
                matrix_row,
            })
        };
        check((1 << 31) - 128, 512).unwrap();
        for len in [(1 << 31) - 64, 1 << 32, usize::MAX] {
            let error = check(len, 512).unwrap_err().to_string();
            assert!(
                error.contains("values in a layer, only of up to 2147483647"),
                "{error}"
            );
        }
        let error = check(1 << 20, 513).unwrap_err().to_string();
        assert!(error.contains("rows of 513 values"), "{error}");
    }
}
