//! Reads how networks take image inputs: the axes of rope, and the layers after which parts of the inputs are
//! added.
//!
//! Text needs none of it, and both GGUF files and folders describe it. Invariant: sections that do not fit
//! the heads are ignored, so such a file still computes text.

use tokenmill_backend::RopeAxes;
use tokenmill_gguf::{Array, Value};

use crate::{Descriptor, LoadError};

use super::GgufConfig;

/// A function that builds axes from the number of pairs that each axis rotates, in the order of the pairs.
type Form = fn([usize; 3]) -> RopeAxes;

impl GgufConfig<'_> {
    /// Returns how many pairs each axis rotates; empty if the file does not say.
    fn rope_sections(&self) -> Vec<usize> {
        let count = |&number: &i32| usize::try_from(number).ok();
        let sections: Option<Vec<usize>> = match self.value("rope.dimension_sections") {
            Some(Value::Array(Array::I32(numbers))) => numbers.iter().map(count).collect(),
            Some(Value::Array(Array::U32(numbers))) => {
                Some(numbers.iter().map(|&number| number as usize).collect())
            }
            _ => None,
        };
        sections.unwrap_or_default()
    }

    /// Returns whether rope divides the pairs among axes.
    pub(super) fn has_rope_sections(&self) -> bool {
        matches!(self.rope_sections()[..], [time, row, ..] if time > 0 && row > 0)
    }

    /// Sets the image inputs that the file describes.
    pub(super) fn set_image_inputs(&self, descriptor: &mut Descriptor, form: Form) -> Result<(), LoadError> {
        set_axes(descriptor, &self.rope_sections(), form);
        descriptor.n_deep_inputs = self.opt_usize("n_deepstack_layers")?.unwrap_or(0);
        Ok(())
    }
}

fn set_axes(descriptor: &mut Descriptor, sections: &[usize], form: Form) {
    let [time, row, column, ..] = *sections else {
        return;
    };
    let sum = [time, row, column]
        .into_iter()
        .fold(0usize, usize::saturating_add);
    for rope in &mut descriptor.ropes {
        if sum == rope.n_dims / 2 {
            rope.axes = form([time, row, column]);
        }
    }
}
