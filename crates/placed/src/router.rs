//! The router: runs the actions of a step's [`Schedule`](crate::schedule::Schedule), each on its side.
//!
//! In decode steps the device's operations between two borders, a segment, are recorded in a second pass that runs nothing, and
//! replayed when a step with the same shape comes again. Invariant: all passes of a shape have the same borders.

use tokenmill_backend::{BackendError, Side, SplitOperations, program::Op};

use crate::{
    Placed,
    pass::{Mode, Pass},
    programs::Programs,
    schedule::Action,
};

/// Number of values copied at a time: the size of a device's staging memory.
const PIECE: usize = 1 << 20;

impl<H: SplitOperations, D: SplitOperations> Placed<H, D> {
    /// Passes over the actions of the begun step once.
    pub(crate) fn pass(&mut self, programs: &Programs, mode: Mode) -> Result<(), BackendError> {
        self.pass = Pass::new(mode);
        let shape = self.shape_on(Side::Device);
        if shape.n_tokens == 0 {
            self.run_on(Side::Device, programs, &programs.of_empty_step)?;
            return self.leave_device();
        }
        for action in programs.schedules.of(self.goes_to_device, &shape) {
            match action {
                Action::Copy {
                    slot,
                    rows,
                    width,
                    to,
                } => {
                    self.bring(*to, *slot, rows.of(&shape) * width)?;
                }
                Action::Run { op, side } => self.run_on(*side, programs, op)?,
            }
        }
        self.leave_device()
    }

    /// Runs an operation on its side, if the pass does.
    fn run_on(&mut self, side: Side, programs: &Programs, op: &Op) -> Result<(), BackendError> {
        if !self.runs_on(side)? {
            return Ok(());
        }
        let shape = self.shape_on(side);
        match side {
            Side::Host => self.host.run(&programs.prepared, &shape, op),
            Side::Device => self.device.run(&programs.prepared, &shape, op),
        }
    }

    /// Copies the first values of a slot to a side.
    fn bring(&mut self, side: Side, slot: usize, n_values: usize) -> Result<(), BackendError> {
        if n_values == 0 {
            return Ok(());
        }
        self.leave_device()?;
        let (host, Some(on_host)) = self.host.buffer(slot) else {
            unreachable!("{COPIED}");
        };
        let (device, Some(on_device)) = self.device.buffer(slot) else {
            unreachable!("{COPIED}");
        };
        if self.pass.mode == Mode::Record {
            if side == Side::Device {
                device.will_be_filled(on_device);
            }
            return Ok(());
        }
        let mut start = 0;
        while start < n_values {
            let range = start..n_values.min(start + PIECE);
            match side {
                Side::Host => device.show_values(on_device, range.clone(), &mut |values| {
                    host.fill_values(on_host, range.clone(), &mut |room| {
                        room.copy_from_slice(values);
                        Ok(())
                    })
                })?,
                Side::Device => device.fill_values(on_device, range.clone(), &mut |room| {
                    host.show_values(on_host, range.clone(), &mut |values| {
                        room.copy_from_slice(values);
                        Ok(())
                    })
                })?,
            }
            start = range.end;
        }
        Ok(())
    }

    /// Enters an operation of a side; returns whether the pass runs it.
    fn runs_on(&mut self, side: Side) -> Result<bool, BackendError> {
        if side == Side::Host {
            self.leave_device()?;
            return Ok(self.pass.mode != Mode::Record);
        }
        if self.pass.mode == Mode::Run {
            return Ok(true);
        }
        let is_first = !std::mem::replace(&mut self.pass.is_open, true);
        match self.pass.mode {
            Mode::Record if is_first => self.device.backend.begin_segment()?,
            Mode::Replay if is_first => {
                let shape = self.shape_on(Side::Device);
                (self.device.backend).replay_segment(&shape, self.pass.segment)?;
            }
            _ => {}
        }
        Ok(self.pass.mode == Mode::Record)
    }

    /// Enters a border: the device's next operations belong to another segment.
    fn leave_device(&mut self) -> Result<(), BackendError> {
        if std::mem::replace(&mut self.pass.is_open, false) {
            self.pass.segment += 1;
            if self.pass.mode == Mode::Record {
                self.device.backend.end_segment()?;
            }
        }
        Ok(())
    }
}

const COPIED: &str = "a schedule copies slots that both sides have";
