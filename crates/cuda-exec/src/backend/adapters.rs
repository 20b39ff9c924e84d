//! Adapters on the GPU: the loaded ones, the rows of a step that use each, and their changes to the step's
//! products.
//!
//! Most steps have no adapter and launch nothing of this file; a step with adapters uploads its tiles of rows in a separate copy.
//! Invariants: the beginnings of tiles depend only on a decode step's shape, and the products that adapters change depend only on
//! which adapters were ever loaded, so a captured step serves all adapters of its rows. Memory that captured steps refer to is
//! replaced only in a new epoch.

use std::{ops::Range, sync::Arc};

use tokenmill_backend::{
    AdapterError, AdapterId, AdapterMatrices, AdapterOperations, AdapterRuns, BackendError, ForwardBatch,
    Linear, LinearJob, Phase, StepShape,
};

use super::{CudaBackend, prepared};

/// Tiles begin at multiples of this many words.
const TILE_ALIGN: usize = 4;

/// Identifies the weight of a product.
type Weight = Linear<crate::Matrix, crate::Buffer<f32>>;

/// Holds the loaded adapters and the memory that products with them need.
#[derive(Default)]
pub(super) struct Adapters {
    loaded: Vec<Loaded>,
    /// Whether any adapter loaded so far changes the weight of a place.
    changed: Vec<bool>,
    /// Largest number of adapters loaded at one time so far, rounded up to a power of two.
    n_places: usize,
    /// Largest rank of all adapters loaded so far.
    max_rank: usize,
    /// Width of the widest rows that adapters multiply.
    max_in: usize,
    room: Option<Room>,
    runs: AdapterRuns,
    /// Counts a step's tokens, outputs and logits.
    kinds: [Kind; 3],
}

/// Describes the rows of one kind of product in a step.
#[derive(Default)]
struct Kind {
    n_rows: usize,
    list: crate::AdapterTiles,
    /// Position of the list among the uploaded words: its tiles, and the rows that they name.
    words: [Range<usize>; 2],
}

struct Loaded {
    id: AdapterId,
    table: crate::AdapterTable,
    /// Keeps the matrices alive that the table points to.
    _matrices: Arc<AdapterMatrices<crate::Matrix>>,
}

/// Memory for steps with adapters.
struct Room {
    words: crate::Buffer<u32>,
    /// Used in turn, so that the host can write one while the device reads the other.
    staging: [crate::Pinned<u32>; 2],
    n_steps: usize,
    scratch: crate::Buffer<f32>,
}

impl AdapterOperations for CudaBackend {
    fn add_adapter(
        &mut self,
        id: AdapterId,
        matrices: Arc<AdapterMatrices<crate::Matrix>>,
        strength: f32,
    ) -> Result<(), AdapterError> {
        self.add(id, matrices, strength)
            .map_err(|error| AdapterError::from(BackendError::from(error)))
    }

    fn remove_adapter(&mut self, id: AdapterId) {
        self.adapters.loaded.retain(|loaded| loaded.id != id);
    }

    fn takes_adapters(&self) -> bool {
        // Ranks of a group and parts of a split hold other rows and columns of a weight than the adapter does.
        self.group_end.is_none()
    }

    fn check_adapter_room(&self, n_bytes: usize) -> Result<(), AdapterError> {
        let room_bytes = self.room_bytes().map_err(BackendError::from)?;
        Ok(check_room(n_bytes, room_bytes).map_err(BackendError::from)?)
    }
}

impl CudaBackend {
    fn add(
        &mut self,
        id: AdapterId,
        matrices: Arc<AdapterMatrices<crate::Matrix>>,
        strength: f32,
    ) -> Result<(), crate::CudaExecError> {
        // The adapter's matrices are being copied.
        self.uploader.finish()?;
        self.ops.load_adapters()?;
        let changes = || {
            matrices.by_place().map(|change| {
                change.map(|change| crate::Change {
                    a: &change.a,
                    b: &change.b,
                    scale: change.scale * strength,
                })
            })
        };
        let table = crate::AdapterTable::new(&self.device, changes())?;
        let room_bytes = self.room_bytes()?;
        let (adapters, limits) = (&mut self.adapters, prepared(&mut self.workspace).inputs.limits());
        let max_rank = changes().flatten().map(|change| change.a.n_out()).max();
        let max_rank = max_rank.unwrap_or(0).max(adapters.max_rank);
        let max_in = changes().flatten().map(|change| change.a.n_in()).max();
        let max_in = max_in.unwrap_or(0).max(adapters.max_in);
        if adapters.room.is_none() || [max_rank, max_in] != [adapters.max_rank, adapters.max_in] {
            let n_tokens = limits.max_batch_tokens;
            let len = crate::Ops::adapter_scratch_len(n_tokens, max_in, max_rank);
            let n_words = crate::AdapterTiles::max_words(2 * n_tokens + limits.max_logit_rows);
            // Tiles and rows of each kind begin at the alignment of tiles.
            let n_words = n_words + 6 * TILE_ALIGN;
            let n_new_words = if adapters.room.is_some() { 0 } else { n_words };
            let n_bytes = crate::buffer_bytes::<f32>(len) + crate::buffer_bytes::<u32>(n_new_words);
            check_room(n_bytes, room_bytes)?;
            let scratch = self.device.alloc("adapters", len)?;
            if let Some(room) = &mut adapters.room {
                room.scratch = scratch;
            } else {
                let staging = || self.device.alloc_pinned(n_words);
                adapters.room = Some(Room {
                    words: self.device.alloc("adapters", n_words)?,
                    staging: [staging()?, staging()?],
                    n_steps: 0,
                    scratch,
                });
            }
            (adapters.max_rank, adapters.max_in) = (max_rank, max_in);
            self.epoch += 1;
        }
        let n_changed = adapters.n_changed();
        adapters
            .changed
            .resize(changes().count().max(adapters.changed.len()), false);
        for (is_changed, change) in adapters.changed.iter_mut().zip(changes()) {
            *is_changed |= change.is_some();
        }
        self.epoch += u64::from(adapters.n_changed() != n_changed);
        adapters.loaded.push(Loaded {
            id,
            table,
            _matrices: matrices,
        });
        // Captured steps have tiles for this number of adapters.
        let n_places = adapters.n_places.max(adapters.loaded.len().next_power_of_two());
        self.epoch += u64::from(n_places != adapters.n_places);
        adapters.n_places = n_places;
        Ok(())
    }
}

impl Adapters {
    fn n_changed(&self) -> usize {
        self.changed.iter().filter(|&&is_changed| is_changed).count()
    }

    /// Determines which rows of a step have which adapter, and queues the upload. `outputs` are the tokens of the output rows,
    /// without padding.
    pub(super) fn begin(
        &mut self,
        batch: &ForwardBatch,
        shape: &StepShape,
        outputs: &[u32],
    ) -> Result<(), BackendError> {
        self.runs.set(batch, outputs);
        let Some(room) = self.room.as_mut().filter(|_| !self.runs.is_empty()) else {
            return Ok(());
        };
        let counts = [
            (batch.n_tokens(), shape.n_tokens),
            (outputs.len(), shape.n_outputs),
            (batch.logit_rows.len(), shape.n_logits),
        ];
        let staging = &mut room.staging[room.n_steps % 2];
        room.n_steps += 1;
        let words = staging.host()?;
        let mut end = 0_usize;
        for (kind, (n_rows, n_padded)) in self.kinds.iter_mut().zip(counts) {
            let runs = self.runs.of(n_rows);
            kind.list.clear();
            for loaded in &self.loaded {
                let runs = runs.iter().filter(|run| run.adapter == loaded.id);
                (kind.list).add(&loaded.table, runs.flat_map(|run| run.rows.clone()));
            }
            if shape.phase != Phase::Mixed {
                // Captured steps of one shape have the same number of tiles.
                kind.list.pad(n_padded, self.n_places);
            }
            kind.n_rows = n_padded;
            for (place, part) in kind.words.iter_mut().zip([kind.list.tiles(), kind.list.rows()]) {
                let first = end.next_multiple_of(TILE_ALIGN);
                end = first + part.len();
                words[first..end].copy_from_slice(part);
                *place = first..end;
            }
        }
        let target = room.words.view_mut().range(0..end)?;
        Ok(staging.upload(crate::Stream::Compute, 0..end, &target)?)
    }

    /// Returns whether rows of the current step have adapters.
    pub(super) fn has_step_some(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Returns whether adapters may change one of these products in the current step.
    pub(super) fn change<const N: usize>(&self, linears: [&Weight; N]) -> bool {
        self.has_step_some()
            && linears
                .iter()
                .any(|linear| place_in(&self.changed, linear).is_some())
    }

    /// Does the same for any number of products.
    pub(super) fn change_any(&self, jobs: &[LinearJob<'_, CudaBackend>]) -> bool {
        jobs.iter().any(|job| self.change([job.linear]))
    }

    /// Adds the changes of adapters to products of the current step.
    pub(super) fn add_to(
        &mut self,
        ops: &crate::Ops,
        input: crate::View<'_, f32>,
        n_rows: usize,
        jobs: &mut [LinearJob<'_, CudaBackend>],
    ) -> Result<(), BackendError> {
        if !self.has_step_some() {
            return Ok(());
        }
        let Some(n_in) = jobs.first().map(|job| job.linear.n_in) else {
            return Ok(());
        };
        let changed = &self.changed;
        let mut products = jobs.iter_mut().filter_map(|job| {
            Some(crate::AdaptedProduct {
                place: place_in(changed, job.linear)?,
                n_out: job.linear.n_out,
                output: job.output.write(),
            })
        });
        let room = self.room.as_mut().expect("made with the first adapter");
        let mut add = |products: &mut [crate::AdaptedProduct<'_>]| -> Result<(), BackendError> {
            let kind = (self.kinds.iter())
                .find(|kind| kind.n_rows == n_rows)
                .expect("a product is of a step's tokens, outputs or logits");
            let [tiles, rows] = &kind.words;
            let rows = crate::ChangedRows {
                n_rows,
                input,
                tiles: room.words.view().range(tiles.clone())?,
                rows: room.words.view().range(rows.clone())?,
                max_rank: self.max_rank,
            };
            Ok(ops.adapt(&rows, n_in, products, &mut room.scratch)?)
        };
        // Arrays instead of a vector: nothing is allocated on the step path.
        loop {
            match (products.next(), products.next(), products.next()) {
                (Some(a), Some(b), Some(c)) => add(&mut [a, b, c])?,
                (Some(a), Some(b), None) => return add(&mut [a, b]),
                (Some(a), None, _) => return add(&mut [a]),
                _ => return Ok(()),
            }
        }
    }
}

/// Returns whether this much memory is free for adapters beyond the driver's reserve.
fn check_room(n_bytes: usize, free_bytes: u64) -> Result<(), crate::CudaExecError> {
    if n_bytes as u64 <= free_bytes {
        return Ok(());
    }
    Err(crate::CudaExecError::OutOfMemory {
        purpose: "adapters",
        needed_bytes: n_bytes as u64,
        free_bytes,
    })
}

/// Returns the place of a product's weight if adapters change it.
fn place_in(changed: &[bool], linear: &Weight) -> Option<u32> {
    let place = linear.adapter_place?;
    changed.get(place as usize)?.then_some(place)
}
