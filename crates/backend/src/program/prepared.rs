//! [`Prepared`]: a network's programs for all variants of a step, with their memory.

use std::sync::Arc;

use crate::{Backend, BackendError, ExecutorLimits, StepShape};

use super::{
    Op, Program, Slot, Slots, Stamped, StepVariant, Value, ValueInfo, Weights, run::Run, slots::Beside,
    tables::Tables,
};

/// The programs of a network, ready to run.
#[derive(Clone, Debug)]
pub struct Prepared {
    variants: Vec<VariantProgram>,
    weights: Arc<Weights>,
    slots: Vec<Slot>,
    spare: [usize; 2],
    pub(super) n_vocab: usize,
    pub(super) n_embd: usize,
}

/// The operations that a pass fuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fusion {
    /// All that it can.
    #[default]
    All,
    /// None, so that a test can compare both.
    None,
}

/// A variant's program, with the slots of its values.
#[derive(Clone, Debug)]
pub struct VariantProgram {
    pub(super) ops: Vec<Stamped>,
    pub(super) values: Vec<ValueInfo>,
    slot_of: Vec<Option<u32>>,
    beside: Vec<Option<Beside>>,
}

impl VariantProgram {
    /// Returns the operations, in order.
    pub fn ops(&self) -> &[Stamped] {
        &self.ops
    }

    /// Returns the shape of a value.
    pub fn value(&self, value: Value) -> &ValueInfo {
        &self.values[value.index()]
    }

    /// Returns the index of a value's slot.
    pub fn slot(&self, value: Value) -> usize {
        self.slot_of[value.index()].expect("a verified program has memory for its values") as usize
    }

    /// Returns the experts and the shared network after the route at an index, if these may run in either order.
    pub fn beside(&self, route_idx: usize) -> Option<&Beside> {
        self.beside[route_idx].as_ref()
    }
}

impl Prepared {
    /// Makes the programs of all variants, for a network of `n_vocab` tokens whose rows have `n_embd` values.
    ///
    /// # Panics
    /// If `program` does not verify, or a pass breaks it.
    pub fn new(
        program: &Program,
        limits: &ExecutorLimits,
        [n_vocab, n_embd]: [usize; 2],
        fusion: Fusion,
    ) -> Self {
        check(program, "as written");
        let mut slots = Slots::default();
        let variants = StepVariant::ALL.map(|variant| {
            let narrowed = program.narrowed(variant);
            check(&narrowed, "narrowed");
            let mut fused = match fusion {
                Fusion::All => narrowed.fused(),
                Fusion::None => narrowed,
            };
            check(&fused, "fused");
            let slot_of = slots.assign(&mut fused, limits);
            check(&fused, "with memory");
            let beside = (0..fused.ops.len()).map(|op_idx| fused.beside(op_idx)).collect();
            VariantProgram {
                ops: fused.ops,
                values: fused.values,
                slot_of,
                beside,
            }
        });
        let slots = slots.slots().to_vec();
        Self {
            spare: spare_of(&variants, &slots),
            variants: Vec::from(variants),
            weights: Arc::clone(&program.weights),
            slots,
            n_vocab,
            n_embd,
        }
    }

    /// Returns the weights that the programs name.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Returns the two slots that stand for output rows and logits in a step without them.
    pub fn spare(&self) -> [usize; 2] {
        self.spare
    }

    /// Returns the memory that the programs work in.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the programs, in the order of [`StepVariant::ALL`].
    pub fn variants(&self) -> &[VariantProgram] {
        &self.variants
    }

    pub(super) fn variant(&self, shape: &StepShape) -> &VariantProgram {
        &self.variants[StepVariant::of(shape).index()]
    }

    /// Runs the step of a shape, except that the device has begun it.
    pub(super) fn run<B: Backend>(
        &self,
        backend: &mut B,
        tables: &mut Tables<B>,
        shape: &StepShape,
    ) -> Result<(), BackendError> {
        Run {
            backend,
            tables,
            program: self.variant(shape),
            shape,
            prepared: self,
        }
        .step()
    }

    /// Returns a value that the program of a step's shape keeps until the next step, with its width.
    pub(super) fn tap<'a, B: Backend>(
        &self,
        tables: &'a Tables<B>,
        shape: &StepShape,
        tap_idx: usize,
    ) -> Option<(&'a B::Buffer, usize)> {
        let program = self.variant(shape);
        let mut taps = (program.ops.iter()).filter_map(|stamped| match stamped.op {
            Op::Tap { y, .. } => Some(y),
            _ => None,
        });
        let value = taps.nth(tap_idx)?;
        let buffer = tables.buffers[program.slot(value)].as_ref()?;
        Some((buffer, program.values[value.index()].width()))
    }
}

/// Returns the slots of output rows and logits in steps that have them, and others where no step has both.
fn spare_of(variants: &[VariantProgram], slots: &[Slot]) -> [usize; 2] {
    let sampled = |program: &VariantProgram| match program.ops.last()?.op {
        Op::Sample { logits, rows } => {
            Some([rows, logits].map(|value| value.map(|value| program.slot(value))))
        }
        _ => None,
    };
    let of_steps: Vec<_> = variants.iter().filter_map(sampled).collect();
    let floats = (slots.iter().enumerate())
        .filter(|(_, slot)| matches!(slot, Slot::Floats { .. }))
        .map(|(idx, _)| idx);
    let of_rows = of_steps.iter().filter_map(|[rows, _]| *rows);
    let rows = of_rows.chain(floats.clone()).next().unwrap_or(0);
    let of_logits = of_steps.iter().filter_map(|[_, logits]| *logits);
    let logits = of_logits.chain(floats).find(|&slot| slot != rows);
    [rows, logits.unwrap_or(rows)]
}

fn check(program: &Program, state: &str) {
    if let Err(error) = program.verify() {
        panic!("the program, {state}: {error}\n{program}");
    }
}
