//! [`Programs`]: the programs of a network, with the schedules of both routes.
//!
//! Invariant: there is a schedule for each variant of a step and each route, and memory on each side that one of them uses.

use tokenmill_backend::{
    BackendError, Side, StepShape,
    program::{Op, Prepared, Slot, StepVariant, VariantProgram},
};

use crate::{
    Placement,
    placement::Sides,
    schedule::{Action, Schedule, schedule},
};

/// The programs of a network, and what each variant of them does.
pub(crate) struct Programs {
    pub(crate) prepared: Prepared,
    pub(crate) schedules: Schedules,
    pub(crate) of_empty_step: Op,
}

impl Programs {
    /// Places all programs.
    ///
    /// # Errors
    /// As [`Schedules::new`].
    pub(crate) fn new(prepared: Prepared, placement: &Placement) -> Result<Self, BackendError> {
        Ok(Self {
            schedules: Schedules::new(&prepared, placement)?,
            prepared,
            of_empty_step: Op::Sample {
                logits: None,
                rows: None,
            },
        })
    }

    /// Returns each slot; `None` stands for one that a side does not use.
    pub(crate) fn slots_on(&self, side: Side) -> impl Iterator<Item = Option<&Slot>> {
        let sides = self.schedules.slots.iter();
        let slots = self.prepared.slots().iter().zip(sides);
        slots.map(move |(slot, sides)| sides.has(side).then_some(slot))
    }
}

/// The schedules of a network's programs.
pub(crate) struct Schedules {
    /// By route, to the host or to the device, and by variant.
    by_route: [Vec<Schedule>; 2],
    /// The sides that use each slot.
    slots: Vec<Sides>,
}

impl Schedules {
    /// Places all programs.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if an operation has its weights, its store or its rows on different sides.
    pub(crate) fn new(prepared: &Prepared, placement: &Placement) -> Result<Self, BackendError> {
        let mut slots = vec![Sides::NONE; prepared.slots().len()];
        // The device samples also in steps without rows.
        for slot in prepared.spare() {
            slots[slot] = Sides::one(Side::Device);
        }
        let mut of_route = |goes_to_device| -> Result<Vec<Schedule>, BackendError> {
            let of_variant = |program: &VariantProgram| {
                let schedule = schedule(prepared, program, placement, goes_to_device)?;
                note_slots(&schedule, program, &mut slots);
                Ok(schedule)
            };
            prepared.variants().iter().map(of_variant).collect()
        };
        Ok(Self {
            by_route: [of_route(false)?, of_route(true)?],
            slots,
        })
    }

    /// Returns the schedule of a step.
    pub(crate) fn of(&self, goes_to_device: bool, shape: &StepShape) -> &Schedule {
        &self.by_route[usize::from(goes_to_device)][StepVariant::of(shape).index()]
    }

    /// Returns whether a side uses each slot.
    pub(crate) fn slots_used(&self, side: Side) -> Vec<bool> {
        self.slots.iter().map(|sides| sides.has(side)).collect()
    }
}

/// Adds the sides that use each slot in a schedule.
fn note_slots(schedule: &[Action], program: &VariantProgram, slots: &mut [Sides]) {
    for action in schedule {
        match action {
            Action::Copy { slot, .. } => slots[*slot] = Sides::BOTH,
            Action::Run { op, side } => {
                for (value, _) in op.operands() {
                    let sides = &mut slots[program.slot(value)];
                    *sides = sides.with(*side);
                }
            }
        }
    }
}
