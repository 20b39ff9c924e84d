//! [`StepAngles`]: the angles of a rope in the current step.
//!
//! The angles outlive an operation, because all layers with one rope share them. Invariant: a step computes
//! the angles of a rope once.

use tokenmill_backend::Rope;

use super::{CpuBackend, CpuVector};

/// The angles of one rope, computed at their first use in a step.
pub(super) struct StepAngles {
    vector_id: usize,
    /// The step that the angles belong to.
    step: u64,
    pub(super) angles: crate::RopeAngles,
}

impl CpuBackend {
    /// Returns the index in `self.angles` of a rope's angles for the current step.
    pub(super) fn angles_of(&mut self, rope: &Rope<CpuVector>) -> usize {
        let found = (self.angles.iter()).position(|angles| angles.vector_id == rope.inv_freqs.id);
        let index = found.unwrap_or_else(|| {
            self.angles.push(StepAngles {
                vector_id: rope.inv_freqs.id,
                step: 0,
                angles: crate::RopeAngles::default(),
            });
            self.angles.len() - 1
        });
        let angles = &mut self.angles[index];
        if angles.step != self.n_steps {
            let rope = rope.map(|freqs| freqs.values.as_slice());
            let batch = self.step.batch();
            if batch.rope_positions.is_empty() {
                angles.angles.fill(&rope, &batch.positions);
            } else {
                (angles.angles).fill_axes(&rope, &batch.positions, &batch.rope_positions);
            }
            angles.step = self.n_steps;
        }
        index
    }
}
