//! [`RecordedLaunch`]: a launch with its buffers before and after, which any device can repeat; and [`Snapshot`]: buffers at one moment.
//!
//! Tools use them to find the kernel that is wrong on a GPU: they compare its results with those of a simulated device for the same bytes. Only a
//! device opened with [`Recording::On`] can record, and others pay nothing. Invariants: a recorded launch runs alone on the device; tables of
//! addresses in device memory are not followed; contents are written back to the buffer that they were read from.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use bytemuck::Pod;

use super::{
    Args, Buffer, Device, Kernel, LaunchShape, Stream, View, ViewMut,
    extents::{Extent, Extents},
    switch::Switch,
};
use crate::{CudaExecError, error::Result};

/// Whether a device can record launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// No.
    #[default]
    Off,
    /// Yes: the addresses of buffers are kept, and new buffers are zeroed, so that all of their bytes can be read, including those that no kernel
    /// has written.
    On,
}

/// A launch that was run alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedLaunch {
    /// The kernel's module.
    pub module: String,
    /// The kernel's name.
    pub name: String,
    /// Thread blocks, threads and dynamic shared memory, in bytes.
    pub shape: LaunchShape,
    /// The arguments in order.
    pub arguments: Vec<RecordedArgument>,
    /// The buffers that arguments point to.
    pub buffers: Vec<RecordedBuffer>,
    /// The device's error if the launch failed; the buffers then have no contents after it.
    pub failure: Option<String>,
}

/// An argument of a recorded launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedArgument {
    /// The bits of a number or of a null pointer.
    Value(u64),
    /// A place in a buffer.
    Pointer {
        /// Index of the buffer.
        buffer: usize,
        /// Distance from its start, in bytes.
        offset: usize,
    },
}

/// A buffer that a recorded launch points to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedBuffer {
    /// Type of its elements, as Rust names it.
    pub element: String,
    /// Its contents before the launch.
    pub before: Vec<u8>,
    /// Its contents after the launch; `None` if they are the same.
    pub after: Option<Vec<u8>>,
    address: u64,
}

impl RecordedBuffer {
    /// Makes a buffer that is on no device.
    pub fn new(element: &str, before: Vec<u8>, after: Option<Vec<u8>>) -> Self {
        Self {
            element: element.to_owned(),
            before,
            after,
            address: 0,
        }
    }
}

/// Holds the contents of buffers at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<u64, Contents>);

/// The contents of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contents {
    of: Extent,
    bytes: Vec<u8>,
}

impl Snapshot {
    /// Keeps only the buffers whose contents differ in a later snapshot of the same buffers.
    #[must_use]
    pub fn changed(mut self, later: &Self) -> Self {
        self.0
            .retain(|address, contents| later.0.get(address) != Some(contents));
        self
    }

    /// Returns the contents that a recorded buffer has here.
    pub fn of(&self, buffer: &RecordedBuffer) -> Option<&[u8]> {
        Some(&self.0.get(&buffer.address)?.bytes)
    }

    /// Returns whether there are no buffers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reason why tools may call these methods: they open their devices this way.
const OPENED_TO_RECORD: &str = "the device was opened with `Recording::On`";

/// Fate of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Launched,
    Recorded,
    LeftOut,
}

/// Holds the task for the next launches.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    is_on: AtomicBool,
    task: Mutex<Task>,
}

#[derive(Debug, Default)]
struct Task {
    n_seen: usize,
    /// Number of launches that run; later ones are skipped.
    limit: Option<usize>,
    /// Index of the launch that is recorded.
    wanted: Option<usize>,
    recorded: Option<RecordedLaunch>,
}

impl Recorder {
    /// Decides the treatment of the next launch.
    pub(super) fn turn(&self) -> Turn {
        if !self.is_on.load(SeqCst) {
            return Turn::Launched;
        }
        let mut task = self.task();
        let index = task.n_seen;
        task.n_seen += 1;
        if task.limit.is_some_and(|limit| index >= limit) {
            Turn::LeftOut
        } else if task.wanted == Some(index) {
            Turn::Recorded
        } else {
            Turn::Launched
        }
    }

    fn task(&self) -> MutexGuard<'_, Task> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a task while a function runs, and clears it even after a panic.
    fn with<T>(&self, task: Task, run: impl FnOnce() -> T) -> (T, Option<RecordedLaunch>) {
        *self.task() = task;
        let on = Switch::turn_on(&self.is_on);
        let result = run();
        drop(on);
        (result, self.task().recorded.take())
    }
}

impl Device {
    /// Fills a new buffer with zeros before any stream uses it, on a device that can record launches.
    pub(super) fn clear_if_recording<T: Pod>(&self, mut buffer: Buffer<T>) -> Result<Buffer<T>> {
        if self.recorder().is_some() && !buffer.is_empty() {
            self.zero(Stream::Compute, &buffer.view_mut())?;
            let fence = self.fence()?;
            fence.record(Stream::Compute)?;
            fence.synchronize()?;
        }
        Ok(buffer)
    }

    /// Runs a function and records its launch of this number, counted from 0, which must not be captured. Returns no record if there are fewer
    /// launches.
    ///
    /// # Panics
    /// If the device was not opened with [`Recording::On`].
    pub fn record_launch<T>(&self, index: usize, run: impl FnOnce() -> T) -> (T, Option<RecordedLaunch>) {
        let task = Task {
            wanted: Some(index),
            ..Task::default()
        };
        self.needed_recorder().with(task, run)
    }

    /// Runs a function of which only the first `n` launches are run or captured.
    ///
    /// # Panics
    /// If the device was not opened with [`Recording::On`].
    pub fn with_first_launches<T>(&self, n: usize, run: impl FnOnce() -> T) -> T {
        let task = Task {
            limit: Some(n),
            ..Task::default()
        };
        self.needed_recorder().with(task, run).0
    }

    fn needed_recorder(&self) -> &Recorder {
        self.recorder().expect(OPENED_TO_RECORD)
    }

    fn extents(&self) -> &Extents {
        self.driver().extents().expect(OPENED_TO_RECORD)
    }

    /// Repeats a recorded launch on this device, with the earlier contents of its buffers, and returns their contents after it.
    ///
    /// # Errors
    /// The driver's, or [`CudaExecError::NoKernel`].
    pub fn repeat(&self, launch: &RecordedLaunch) -> Result<Vec<Vec<u8>>> {
        let shared_bytes = launch.shape.shared_bytes as usize;
        let kernel = self.kernel_with_shared_bytes(&launch.module, &launch.name, shared_bytes)?;
        let buffers: Vec<Buffer<u8>> = (launch.buffers.iter())
            .map(|buffer| self.upload("a recorded launch", &buffer.before))
            .collect::<Result<_>>()?;
        let mut args = Args::new();
        for argument in &launch.arguments {
            args = args.push(match *argument {
                RecordedArgument::Value(bits) => bits,
                RecordedArgument::Pointer { buffer, offset } => {
                    buffers[buffer].view().address() + offset as u64
                }
            });
        }
        self.launch(kernel, launch.shape, &args)?;
        buffers
            .iter()
            .map(|buffer| self.download(buffer.view()))
            .collect()
    }

    /// Reads all buffers, after all work queued on the compute stream.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the device was not opened with [`Recording::On`].
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.snapshot_of_extents(self.extents().all().into_iter())
    }

    /// Reads the buffers of an earlier snapshot again, except those freed since.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the device was not opened with [`Recording::On`].
    pub fn snapshot_like(&self, earlier: &Snapshot) -> Result<Snapshot> {
        let extents = earlier.0.values().map(|contents| contents.of);
        self.snapshot_of_extents(extents.filter(|extent| self.extents().has(extent)))
    }

    fn snapshot_of_extents(&self, extents: impl Iterator<Item = Extent>) -> Result<Snapshot> {
        let read = |of: Extent| {
            let bytes = self.bytes_at(&of)?;
            Ok((of.address, Contents { of, bytes }))
        };
        Ok(Snapshot(extents.map(read).collect::<Result<_>>()?))
    }

    /// Writes the contents of a snapshot back.
    ///
    /// # Errors
    /// [`CudaExecError::Freed`] for a buffer whose memory is no longer allocated, before anything is written; or the driver's.
    ///
    /// # Panics
    /// If the device was not opened with [`Recording::On`].
    pub fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        for Contents { of, .. } in snapshot.0.values() {
            if !self.extents().has(of) {
                return Err(CudaExecError::Freed {
                    element: of.element,
                    n_bytes: of.n_bytes,
                });
            }
        }
        for (&address, Contents { bytes, .. }) in &snapshot.0 {
            self.upload_to(bytes, &ViewMut::at(address, bytes.len()))?;
        }
        Ok(())
    }

    fn bytes_at(&self, extent: &Extent) -> Result<Vec<u8>> {
        self.download(View::<u8>::at(extent.address, extent.n_bytes))
    }

    /// Runs a launch alone, and records its effect on the buffers.
    pub(super) fn launch_recorded(&self, kernel: Kernel, shape: LaunchShape, args: &Args<'_>) -> Result<()> {
        let [module, name] = self.notes().names_of(kernel);
        let mut launch = RecordedLaunch {
            module,
            name,
            shape,
            ..RecordedLaunch::default()
        };
        let mut extents: Vec<Extent> = Vec::new();
        for &value in args.values() {
            launch.arguments.push(match self.extents().at(value) {
                None => RecordedArgument::Value(value),
                Some(extent) => {
                    let known = extents.iter().position(|known| *known == extent);
                    let buffer = known.unwrap_or(extents.len());
                    if known.is_none() {
                        extents.push(extent);
                    }
                    RecordedArgument::Pointer {
                        buffer,
                        offset: (value - extent.address) as usize,
                    }
                }
            });
        }
        for extent in &extents {
            launch.buffers.push(RecordedBuffer {
                element: extent.element.to_owned(),
                before: self.bytes_at(extent)?,
                after: None,
                address: extent.address,
            });
        }
        let done = self.launch_alone(kernel, shape, args, &extents, &mut launch.buffers);
        launch.failure = done.as_ref().err().map(CudaExecError::to_string);
        self.needed_recorder().task().recorded = Some(launch);
        done
    }

    fn launch_alone(
        &self,
        kernel: Kernel,
        shape: LaunchShape,
        args: &Args<'_>,
        extents: &[Extent],
        buffers: &mut [RecordedBuffer],
    ) -> Result<()> {
        self.driver().launch(Stream::Compute, kernel, shape, args)?;
        for (extent, buffer) in extents.iter().zip(buffers) {
            let after = self.bytes_at(extent)?;
            buffer.after = (after != buffer.before).then_some(after);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_sim_driver::{Defect, SimOptions, Simulator, When};

    use super::*;
    use crate::{
        Ops, QuantizedRows,
        driver::{simulated, simulated_with},
    };

    fn recording() -> Device {
        simulated_with(&Simulator::new(&SimOptions::default()), Recording::On)
    }

    #[test]
    fn a_recorded_launch_is_repeated_on_another_device_and_shows_a_wrong_kernel() {
        let simulator = Simulator::new(&SimOptions::default());
        let device = simulated_with(&simulator, Recording::On);
        let ops = Ops::load(&device).unwrap();
        let x = device.upload("x", &[1.0f32; 64]).unwrap();
        let mut rows = QuantizedRows::new(&device, 2, 32).unwrap();
        let mut quantize = || ops.quantize(2, 32, x.view(), rows.view_mut());
        let (done, launch) = device.record_launch(0, &mut quantize);
        done.unwrap();
        let launch = launch.unwrap();
        assert_eq!((&*launch.module, &*launch.name), ("norm", "quantize_rows"));
        assert_eq!(
            (launch.buffers[0].element.as_str(), &launch.buffers[0].after),
            ("f32", &None)
        );
        let after = |launch: &RecordedLaunch| -> Vec<Vec<u8>> {
            let buffers = launch.buffers.iter();
            buffers
                .map(|buffer| buffer.after.as_ref().unwrap_or(&buffer.before).clone())
                .collect()
        };
        let other = simulated(&Simulator::new(&SimOptions::default()));
        assert_eq!(other.repeat(&launch).unwrap(), after(&launch));
        simulator.plant(Defect::Wrong {
            kernel: "quantize_rows".to_owned(),
            when: When::Always,
        });
        let (_, wrong) = device.record_launch(0, &mut quantize);
        let wrong = wrong.unwrap();
        assert_ne!(other.repeat(&wrong).unwrap(), after(&wrong));
        assert!(device.record_launch(1, &mut quantize).1.is_none());
    }

    #[test]
    fn launches_past_the_limit_are_left_out_and_a_snapshot_is_written_back() {
        let device = recording();
        let ops = Ops::load(&device).unwrap();
        let [ones, twos] = [1.0f32, 2.0].map(|value| device.upload("x", &[value; 32]).unwrap());
        let mut rows = QuantizedRows::new(&device, 1, 32).unwrap();
        let mut quantize = |x: &Buffer<f32>| ops.quantize(1, 32, x.view(), rows.view_mut()).unwrap();
        quantize(&ones);
        let before = device.snapshot().unwrap();
        device.with_first_launches(0, || quantize(&twos));
        assert_eq!(device.snapshot().unwrap(), before);
        device.with_first_launches(1, || quantize(&twos));
        let changed = before.clone().changed(&device.snapshot().unwrap());
        assert!(!changed.is_empty() && changed != before);
        device.restore(&changed).unwrap();
        assert_eq!(device.snapshot_like(&changed).unwrap(), changed);
    }

    #[test]
    fn a_snapshot_with_a_freed_buffer_is_not_written_back() {
        let device = recording();
        let mut kept = device.upload("kept", &[1u8; 16]).unwrap();
        let freed = device.upload("freed", &[2u8; 16]).unwrap();
        let before = device.snapshot().unwrap();
        device.upload_to(&[3u8; 16], &kept.view_mut()).unwrap();
        drop(freed);
        let refused = device.restore(&before).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a buffer of 16 bytes of u8 was freed; its contents cannot be written back"
        );
        assert_eq!(device.download(kept.view()).unwrap(), [3; 16]);
        assert_eq!(device.snapshot_like(&before).unwrap().0.len(), 1);
    }

    #[test]
    fn launches_are_done_again_after_something_that_was_recorded_panicked() {
        let device = recording();
        let ops = Ops::load(&device).unwrap();
        let x = device.upload("x", &[1.0f32; 32]).unwrap();
        let mut rows = QuantizedRows::new(&device, 1, 32).unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            device.with_first_launches(0, || panic!("as a step may"));
        }));
        caught.unwrap_err();
        let before = device.snapshot().unwrap();
        ops.quantize(1, 32, x.view(), rows.view_mut()).unwrap();
        assert_ne!(device.snapshot().unwrap(), before);
    }
}
