//! Runs queued work, but only when the host waits for it.
//!
//! Invariant: the work of a stream runs in order, and work after an event runs only when the event is reached.

use std::{collections::VecDeque, sync::Arc};

use tokenmill_ptx_sim::{DeviceMemory, DevicePtr, Kernel, LaunchConfig, MemoryError, Written, launch};

use super::{Context, Function, Operation, State, Waits};
use crate::{
    code::{self, Outcome},
    counts::Counts,
    fault::{Defect, Fault},
    nccl::{Kind, Met},
    rows::{Place, Rows},
    timing::Timing,
};

impl State {
    pub(super) fn run_all(&mut self) -> Outcome {
        while let Some((&stream, _)) = (self.context.streams.iter()).find(|(_, queue)| !queue.is_empty()) {
            self.run_next(stream, Waits::Here)?;
        }
        Ok(())
    }

    /// Runs a stream's work until an event was recorded for the `nth` time.
    pub(super) fn run_until(&mut self, event: u64, nth: u64, waits: Waits) -> Outcome {
        loop {
            let is_reached = (self.context.events.get(&event)).is_none_or(|found| found.n_reached >= nth);
            if is_reached {
                return Ok(());
            }
            let is_here = |operation: &Operation| matches!(operation, Operation::Record { event: found, .. } if *found == event);
            let stream = (self.context.streams.iter())
                .find(|(_, queue)| queue.iter().any(is_here))
                .map(|(&stream, _)| stream);
            let Some(stream) = stream else {
                self.context
                    .lose("an event is waited for that no stream will reach");
                return self.context.check();
            };
            self.run_next(stream, waits)?;
        }
    }

    pub(super) fn run_next(&mut self, stream: u64, waits: Waits) -> Outcome {
        match self.queue_of(stream)?.front() {
            Some(&Operation::Wait { event, nth }) => self.run_until(event, nth, waits)?,
            Some(Operation::Collective { .. }) => return self.run_collective(stream, waits),
            Some(Operation::Replay(operations)) => {
                // One after the other in place of the replay, since a sum among them may have to be resumed later.
                let operations = Arc::clone(operations);
                let queue = self.context.streams.entry(stream).or_default();
                queue.pop_front();
                queue.push_front(Operation::Replayed);
                for operation in operations.iter().rev() {
                    let mut operation = operation.clone();
                    if let Operation::Launch { is_replayed, .. } = &mut operation {
                        *is_replayed = true;
                    }
                    queue.push_front(operation);
                }
                return Ok(());
            }
            Some(Operation::Launch { function, .. }) => {
                let name = &self.context.functions[&(*function as u64)].name;
                if self.defects.iter().any(|defect| defect.hangs(name)) {
                    return self.hang(waits);
                }
            }
            _ => {}
        }
        let queue = self.context.streams.get_mut(&stream);
        if let Some(operation) = queue.and_then(VecDeque::pop_front)
            && let Err(reason) = self.context.run(
                stream,
                &operation,
                &mut self.counts,
                &mut self.fault,
                &self.defects,
                &mut self.timing,
            )
        {
            self.context.lose(&reason);
        }
        self.context.check()
    }

    /// Reports that a kernel has not ended. A wait without a limit fails, so that the test ends.
    fn hang(&mut self, waits: Waits) -> Outcome {
        if waits == Waits::Elsewhere {
            return Err(code::NOT_READY);
        }
        self.context
            .lose("a wait without a limit for a kernel that never ends");
        self.context.check()
    }

    /// Runs the stream's next collective call, or reports that another rank has not made it.
    fn run_collective(&mut self, stream: u64, waits: Waits) -> Outcome {
        let Some(Operation::Collective { end, from, to, call }) = self.queue_of(stream)?.front() else {
            return Ok(());
        };
        let (end, from, to, call) = (Arc::clone(end), *from, *to, *call);
        self.context.in_flight.remove(&stream);
        let memory = &mut self.context.memory;
        let read = || {
            let mut bytes = vec![0; call.n_bytes()];
            memory.read(DevicePtr(from), &mut bytes).map(|()| bytes)
        };
        let met = match end.meet(call, read, waits == Waits::Here) {
            Ok(Met::Pending) => return Err(code::NOT_READY),
            Ok(Met::Missed) => Err("a rank waits for a call that another one does not come to".to_owned()),
            // The results of an aborted communicator are useless, and are ignored.
            Ok(Met::Aborted) => Ok(()),
            Ok(Met::All(bytes)) => memory
                .write(DevicePtr(to), &bytes)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Some(queue) = self.context.streams.get_mut(&stream) {
            queue.pop_front();
        }
        self.counts.n_sums += u64::from(call.kind() == Kind::Sum);
        met.unwrap_or_else(|reason| self.context.lose(&reason));
        self.context.check()
    }
}

impl Context {
    fn run(
        &mut self,
        stream: u64,
        operation: &Operation,
        counts: &mut Counts,
        fault: &mut Option<Fault>,
        defects: &[Defect],
        timing: &mut Option<Timing>,
    ) -> Result<(), String> {
        let text = |error: MemoryError| error.to_string();
        let is_launch = matches!(operation, Operation::Launch { .. });
        if !is_launch {
            // All other work waits for the work before it, and later work waits for it.
            self.in_flight.remove(&stream);
            timing.as_mut().map(Timing::forget_last);
        }
        match operation {
            Operation::Launch { .. } => self.run_kernel(stream, operation, counts, fault, defects, timing),
            Operation::Upload { from, to } => {
                self.clock_ms += from.n_bytes() as f64 * 1e-7;
                from.read(|bytes| self.memory.write(DevicePtr(*to), bytes))
                    .map_err(text)
            }
            Operation::Download { from, to } => {
                self.clock_ms += to.n_bytes() as f64 * 1e-7;
                counts.n_downloaded_bytes += to.n_bytes() as u64;
                to.write(|bytes| self.memory.read(DevicePtr(*from), bytes))
                    .map_err(text)
            }
            &Operation::Copy { from, to, n_bytes } => {
                (self.memory.copy(DevicePtr(from), DevicePtr(to), n_bytes)).map_err(text)
            }
            Operation::Rows(rows) => self.run_rows(rows, counts).map_err(text),
            &Operation::Fill {
                address,
                byte,
                n_bytes,
            } => (self.memory.fill(DevicePtr(address), byte, n_bytes)).map_err(text),
            &Operation::Record { event, nth } => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.n_reached = nth;
                    event.at_ms = self.clock_ms;
                }
                Ok(())
            }
            // Their other requirements are done.
            Operation::Wait { .. }
            | Operation::Replayed
            | Operation::Replay(_)
            | Operation::Collective { .. } => Ok(()),
        }
    }

    fn run_rows(&mut self, rows: &Rows, counts: &mut Counts) -> Result<(), MemoryError> {
        let n_bytes = rows.row_bytes * rows.height;
        if rows.on_host().next().is_some() {
            self.clock_ms += n_bytes as f64 * 1e-7;
        }
        if matches!(rows.to, Place::Host(_)) {
            counts.n_downloaded_bytes += n_bytes as u64;
        }
        let [from_pitch, to_pitch] = rows.pitches;
        let row_bytes = rows.row_bytes;
        for row in 0..rows.height {
            let on_device = |address: u64, pitch: usize| DevicePtr(address + (row * pitch) as u64);
            let on_host = |pitch: usize| row * pitch..row * pitch + row_bytes;
            match (&rows.from, &rows.to) {
                (Place::Device(from), Place::Device(to)) => {
                    let (from, to) = (on_device(*from, from_pitch), on_device(*to, to_pitch));
                    self.memory.copy(from, to, row_bytes)?;
                }
                (Place::Host(from), Place::Device(to)) => {
                    let to = on_device(*to, to_pitch);
                    from.read(|bytes| self.memory.write(to, &bytes[on_host(from_pitch)]))?;
                }
                (Place::Device(from), Place::Host(to)) => {
                    let from = on_device(*from, from_pitch);
                    to.write(|bytes| self.memory.read(from, &mut bytes[on_host(to_pitch)]))?;
                }
                (Place::Host(from), Place::Host(to)) => {
                    from.read(|from| {
                        to.write(|to| to[on_host(to_pitch)].copy_from_slice(&from[on_host(from_pitch)]));
                    });
                }
            }
        }
        Ok(())
    }

    fn run_kernel(
        &mut self,
        stream: u64,
        operation: &Operation,
        counts: &mut Counts,
        fault: &mut Option<Fault>,
        defects: &[Defect],
        timing: &mut Option<Timing>,
    ) -> Result<(), String> {
        let Operation::Launch {
            function,
            config,
            arguments,
            is_early,
            is_replayed,
        } = operation
        else {
            return Ok(());
        };
        let Function {
            module,
            name,
            carveout,
            static_shared_bytes,
            ..
        } = &self.functions[&(*function as u64)];
        // Without a preference the carveout follows from the kernel's shared memory; this is a driver's choice.
        let own = -i64::from(static_shared_bytes + config.shared_bytes) - 1;
        let division = carveout.map_or(own, i64::from);
        let before = self.division.replace(division);
        counts.n_divisions += u64::from(before.is_some_and(|before| before != division));
        match fault {
            Some(Fault::Lose { after }) if *after > 0 => *after -= 1,
            Some(Fault::Lose { .. }) => {
                *fault = None;
                return Err(format!("kernel `{name}` was made to fault"));
            }
            _ => {}
        }
        let kernel = self.modules[*module].kernel(name);
        let kernel = kernel.ok_or_else(|| format!("there is no kernel `{name}`"))?;
        if let Some(timing) = timing {
            let text = self.texts[*module];
            return timing.launch(text, kernel, &self.memory, config, arguments, *is_early);
        }
        let before = self.in_flight.remove(&stream).unwrap_or_default();
        let is_spoiled = (defects.iter()).any(|defect| defect.spoils(name, *is_early, *is_replayed));
        let config = LaunchConfig {
            in_flight: is_early.then(|| Arc::clone(&before)),
            reports_written: self.capability.0 >= 9 || is_spoiled,
            resident_blocks: self.resident_blocks(kernel, config),
            ..config.clone()
        };
        let report = launch(kernel, &self.memory, &config, arguments).map_err(|error| error.to_string())?;
        if let Some(finding) = report.findings.first() {
            return Err(finding.to_string());
        }
        if is_spoiled {
            spoil(&self.memory, &report.written).map_err(|error| error.to_string())?;
        }
        // A launch that may begin early leaves earlier ones in flight for the next launch; one that may not has waited for
        // them.
        drop(config);
        let mut in_flight = if *is_early {
            Arc::unwrap_or_clone(before)
        } else {
            Written::default()
        };
        in_flight.extend(&report.written);
        self.in_flight.insert(stream, Arc::new(in_flight));
        counts.n_early += u64::from(*is_early);
        let total = counts.kernels.entry(name.clone()).or_default();
        total.0 += 1;
        total.1.add(&report.counters);
        self.clock_ms += report.counters.warp_instructions() as f64 * 1e-6;
        Ok(())
    }

    /// Returns the thread blocks that the GPU holds at once, if they may wait for each other.
    fn resident_blocks(&self, kernel: &Kernel, config: &LaunchConfig) -> u64 {
        self.card.holds(kernel, config)
    }
}

/// Changes one word in each 64 bytes of a launch's output: a mantissa bit of an f32.
fn spoil(memory: &DeviceMemory, written: &Written) -> Result<(), MemoryError> {
    for &(start, end) in written.ranges() {
        let first = start.next_multiple_of(4);
        for address in (first..end.saturating_sub(3)).step_by(64) {
            let mut word = [0; 4];
            memory.read(DevicePtr(address), &mut word)?;
            let word = u32::from_le_bytes(word) ^ 0x0040_0000;
            memory.write(DevicePtr(address), &word.to_le_bytes())?;
        }
    }
    Ok(())
}
